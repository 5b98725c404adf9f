"""Makes workers exit with a given code, through a pipe to each of them.

No system call makes another process exit with a code. So the worker's interpreter imports a
`sitecustomize` from this package, which waits for the code on a thread.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile

VARIABLE = "PLAUNCH_CHAOS_EXIT"  # path of the worker's pipe; the same in `hook/sitecustomize.py`
_HOOK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hook")
_MAX_MESSAGE = 1000  # bytes, so that a write to the pipe is atomic


class ExitPipes:
    """The pipes to the workers of one node.

    Raises:
        OSError: the temporary folder for them cannot be created.
    """

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="plaunch_chaos_")

    def environment(self, rank: int, python_path: str) -> dict[str, str]:
        """Create the pipe of a worker that is about to start; returns the variables for it.

        Args:
            rank: the global rank of the worker.
            python_path: its own `PYTHONPATH`; empty for none.

        Raises:
            OSError: the pipe cannot be created.
        """
        path = self._path(rank)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # the pipe of an earlier round, which a process may have open
        os.mkfifo(path, 0o600)
        return {
            VARIABLE: path,
            "PYTHONPATH": f"{_HOOK}{os.pathsep}{python_path}" if python_path else _HOOK,
        }

    def send(self, rank: int, code: int, text: str) -> bool:
        """Make a worker write `text` to its stderr and exit; False if it does not read its pipe."""
        try:
            # Fails if the worker does not have the pipe open.
            pipe = os.open(self._path(rank), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            os.write(pipe, f"{code} {text}".encode()[:_MAX_MESSAGE])
        finally:
            os.close(pipe)
        return True

    def close(self) -> None:
        """Remove the pipes."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, rank: int) -> str:
        return os.path.join(self._folder, str(rank))
