"""multiprocessing's "spawn", with the worker's environment, session and streams from the start.

multiprocessing itself starts the interpreter with the launcher's environment, and the worker
imports the user's `__main__` before it runs plaunch's code. Variables such as `LD_LIBRARY_PATH` or
`CUDA_VISIBLE_DEVICES` would then be set too late.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from multiprocessing import popen_spawn_posix, resource_tracker, spawn, util
from typing import TYPE_CHECKING, Any

from plaunch_multiprocessing.payload import make_payload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.process import BaseProcess


def spawn_command(**fds: int) -> list[str]:
    """The command of a spawned worker; `fds` are the numbers of its descriptors."""
    return [os.fsdecode(word) for word in spawn.get_command_line(**fds)]


class SpawnPopen(popen_spawn_posix.Popen):
    """One spawned worker; the interface is multiprocessing's.

    `popen` starts it, with the arguments of `subprocess.Popen`.
    """

    def __init__(
        self,
        process: BaseProcess,
        *,
        env: Mapping[str, str],
        stdout: int | None,
        stderr: int | None,
        popen: Callable[..., Any],
    ) -> None:
        self._env = env
        self._popen = popen
        self._fds: list[int]  # collected during pickling: descriptors that the worker inherits
        self._stdout = stdout
        self._stderr = stderr
        super().__init__(process)

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """Reap the worker if it has ended, and return its exit code; with `flag` 0, wait for it."""
        self.returncode = self._program.poll() if flag == os.WNOHANG else self._program.wait()
        return self.returncode

    def _launch(self, process_obj: BaseProcess) -> None:
        tracker_fd: Any = resource_tracker.getfd()
        payload = make_payload(self, process_obj)
        reader, writer = os.pipe()
        # The worker reads its payload, then detects the launcher's end by the pipe.
        self.finalizer = util.Finalize(self, os.close, (writer,))
        self.sentinel = writer
        try:
            self._program = self._popen(
                spawn_command(tracker_fd=tracker_fd, pipe_handle=reader),
                pass_fds=[*self._fds, tracker_fd, reader],
                env=self._env,
                stdout=self._stdout,
                stderr=self._stderr,
            )
        finally:
            os.close(reader)
        self.pid = self._program.pid
        _write_all(writer, payload)


def _write_all(fd: int, data: memoryview) -> None:
    if len(data) > 1 << 16:
        # If the pipe cannot grow, the write below blocks until the worker reads.
        with contextlib.suppress(OSError, AttributeError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, len(data))
    # If the worker ends before it reads, its exit code reports that.
    with contextlib.suppress(BrokenPipeError), open(fd, "wb", closefd=False) as pipe:
        pipe.write(data)
