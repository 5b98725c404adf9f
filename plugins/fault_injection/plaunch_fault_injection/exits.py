"""Has workers end with an exit code as if by themselves: a pipe to each, and what reads it there.

No process can be made to exit with a code from outside. So a worker's interpreter finds a
`sitecustomize` of ours, which waits for the code on a thread.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile

VARIABLE = "PLAUNCH_CHAOS_EXIT"  # the worker's pipe; `hook/sitecustomize.py` knows it too
_HOOK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hook")
_LONGEST = 1000  # bytes of a message, so that the pipe takes it at once


class ExitPipes:
    """The pipes to the workers of one node.

    Raises:
        OSError: there can be no folder for them.
    """

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="plaunch_chaos_")

    def environment(self, rank: int, python_path: str) -> dict[str, str]:
        """Make the pipe of a worker that is about to start; the variables that it needs.

        Args:
            rank: the global rank of the worker.
            python_path: its `PYTHONPATH` otherwise; empty if it has none.

        Raises:
            OSError: the pipe cannot be made.
        """
        path = self._path(rank)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # that of an earlier round, which somebody may have open
        os.mkfifo(path, 0o600)
        return {
            VARIABLE: path,
            "PYTHONPATH": f"{_HOOK}{os.pathsep}{python_path}" if python_path else _HOOK,
        }

    def send(self, rank: int, code: int, text: str) -> bool:
        """Have a worker write `text` to its stderr and exit; whether it reads its pipe."""
        try:
            # Refused if nobody reads.
            pipe = os.open(self._path(rank), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            os.write(pipe, f"{code} {text}".encode()[:_LONGEST])
        finally:
            os.close(pipe)
        return True

    def close(self) -> None:
        """Remove the pipes."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, rank: int) -> str:
        return os.path.join(self._folder, str(rank))
