"""multiprocessing's "forkserver", with workers that are bound to processors from the start.

A worker of the server imports the user's `__main__` before it runs plaunch's code, so it would bind
itself too late.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from multiprocessing import forkserver, popen_forkserver, util
from typing import TYPE_CHECKING, Any

from plaunch.process import ProcessHandle, read_process

from plaunch_multiprocessing.payload import make_payload

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from plaunch.process import Binding

_log = logging.getLogger("plaunch")

_LOST_EXIT_CODE = 255  # reported by multiprocessing if the server has ended
_KILL_TIMEOUT = 5.0  # seconds for a worker without a server to end after SIGKILL
_KILL_INTERVAL = 0.01  # seconds between two checks whether it has ended


def fork_in_server(process: Any, binding: Binding | None) -> ForkServerHandle:
    """Start `process` in the fork server, with its binding, if any."""
    if binding is not None:
        return ForkServerHandle(BoundForkServerPopen(process, binding))
    return ForkServerHandle(process._Popen(process))


class BoundForkServerPopen(popen_forkserver.Popen):
    """One bound worker of the fork server; the interface is multiprocessing's."""

    def __init__(self, process: BaseProcess, binding: Binding) -> None:
        self._fds: list[int]  # collected during pickling: descriptors that the worker inherits
        self._binding = binding
        super().__init__(process)

    def _launch(self, process_obj: Any) -> None:
        payload = make_payload(self, process_obj)
        self.sentinel, writer = forkserver.connect_to_new_process(self._fds)
        # The worker detects the launcher's end by the other ends.
        self.finalizer = util.Finalize(self, _close, (os.dup(writer), self.sentinel))
        with open(writer, "wb") as pipe:
            self.pid = forkserver.read_signed(self.sentinel)
            # It waits for its payload, and has not run any code of the user.
            try:
                self._binding.bind(self.pid)
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
                raise
            pipe.write(payload)


class ForkServerHandle(ProcessHandle):
    """A process that multiprocessing's fork server has forked.

    The server reaps it and sends the exit code. If the server has ended, the end of the worker is
    unknown; the worker is then killed and counts as lost.
    """

    def __init__(self, popen: popen_forkserver.Popen) -> None:
        super().__init__(popen, popen.close)
        self._sentinel: int = popen.sentinel
        self._process = read_process(self.pid)  # pid and start time; None without /proc

    def poll(self) -> int | None:
        """The exit code, once the server has sent it or has ended."""
        was_running = self._popen.returncode is None
        exitcode = self._popen.poll()
        if was_running and exitcode == _LOST_EXIT_CODE:
            self._kill_if_alive()
        return exitcode

    def reap(self) -> None:
        """Do nothing: the server reaps the worker."""

    def owns_pid(self) -> bool:
        """Whether the pid still is this worker's: False once the server has reaped it.

        True if unknown, without /proc.
        """
        if self._process is None:
            return True
        now = read_process(self.pid)
        return now is not None and now.identity == self._process.identity

    def send_signal(self, signum: signal.Signals) -> None:
        """Send a signal to this process only; does nothing if it has ended.

        Raises:
            PermissionError: it runs as another user.
        """
        if self._process is not None:
            self._process.send_signal(signum)
        else:
            super().send_signal(signum)

    def exit_fd(self) -> int | None:
        """The descriptor on which the server sends the exit code."""
        return self._sentinel

    def _kill_if_alive(self) -> None:
        if self._process is None or not self._is_alive():
            return
        _log.warning(
            "multiprocessing's fork server has ended, so the exit code of pid %d is unknown; "
            "plaunch kills it",
            self.pid,
        )
        self._process.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + _KILL_TIMEOUT
        while self._is_alive() and time.monotonic() < deadline:
            time.sleep(_KILL_INTERVAL)

    def _is_alive(self) -> bool:
        now = read_process(self.pid)
        return now is not None and now.is_alive and self.owns_pid()


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)
