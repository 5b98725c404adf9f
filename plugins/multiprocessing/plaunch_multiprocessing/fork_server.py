"""multiprocessing's "forkserver", with a worker that is bound to processors before it does a thing.

A worker that the server has forked imports the user's `__main__` before any of our code runs, so
that it would be too late to bind itself.
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

_LOST_EXIT_CODE = 255  # multiprocessing's, when the server is gone
_KILL_WAIT = 5.0  # seconds for a worker without a server to end after SIGKILL
_KILL_LOOK = 0.01  # seconds between two looks at it


def fork_in_server(process: Any, binding: Binding | None) -> ForkServerHandle:
    """Start `process` in the fork server, bound if need be."""
    if binding is not None:
        return ForkServerHandle(BoundForkServerPopen(process, binding))
    return ForkServerHandle(process._Popen(process))


class BoundForkServerPopen(popen_forkserver.Popen):
    """One worker of the fork server; `pid`, `poll` and the rest are as multiprocessing has them."""

    def __init__(self, process: BaseProcess, binding: Binding) -> None:
        self._fds: list[int]  # what pickling found that the worker has to inherit
        self._binding = binding
        super().__init__(process)

    def _launch(self, process_obj: Any) -> None:
        payload = make_payload(self, process_obj)
        self.sentinel, writer = forkserver.connect_to_new_process(self._fds)
        # The worker keeps the other end open to notice the launcher's end.
        self.finalizer = util.Finalize(self, _close, (os.dup(writer), self.sentinel))
        with open(writer, "wb") as pipe:
            self.pid = forkserver.read_signed(self.sentinel)
            # It waits for its payload, and has not looked at anything of the user's.
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
        self._process = read_process(self.pid)  # its number and start; None without /proc

    def poll(self) -> int | None:
        """The exit code once the server has sent it, or can send it no more."""
        was_running = self._popen.returncode is None
        exitcode = self._popen.poll()
        if was_running and exitcode == _LOST_EXIT_CODE:
            self._kill_if_alive()
        return exitcode

    def reap(self) -> None:
        """Do nothing: the server does it."""

    def owns_pid(self) -> bool:
        """Whether the server has not reaped it, as far as the system tells."""
        if self._process is None:
            return True
        now = read_process(self.pid)
        return now is not None and now.identity == self._process.identity

    def send_signal(self, signum: signal.Signals) -> None:
        """Send a signal to it alone; nothing happens if it has ended.

        Raises:
            PermissionError: it runs as another user.
        """
        if self._process is not None:
            self._process.send_signal(signum)
        else:
            super().send_signal(signum)

    def exit_fd(self) -> int | None:
        """The descriptor on which the exit code comes."""
        return self._sentinel

    def _kill_if_alive(self) -> None:
        if self._process is None or not self._is_alive():
            return
        _log.warning(
            "multiprocessing's fork server has ended, and nothing watches pid %d any more; "
            "plaunch kills it",
            self.pid,
        )
        self._process.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + _KILL_WAIT
        while self._is_alive() and time.monotonic() < deadline:
            time.sleep(_KILL_LOOK)

    def _is_alive(self) -> bool:
        now = read_process(self.pid)
        return now is not None and now.is_alive and self.owns_pid()


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)
