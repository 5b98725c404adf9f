"""The handle of a child process: its exit code, signals, and when it is reaped."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from typing import TYPE_CHECKING, Protocol

from plaunch.errors import WorkerStartError

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("plaunch")

LOST_EXIT_CODE = 255  # also what multiprocessing reports for an unknown exit code


class Popen(Protocol):
    """What `subprocess.Popen` and multiprocessing's `Popen` have in common."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """Reap the process if it has ended; its exit code if this method has reaped it."""


class ProcessHandle:
    """A child of the launcher.

    A subclass may represent a process that another process has forked and reaps. It defines how the
    exit code is read (`poll`), and which descriptor announces it (`exit_fd`).

    The exit code is read without reaping: as long as the process is a zombie, its id and that of
    its process group cannot be reused. An exception from a signal handler loses nothing either.

    Args:
        popen: the object that started it.
        release: closes what belongs to it in the launcher.
    """

    def __init__(self, popen: Popen, release: Callable[[], None] | None = None) -> None:
        self.pid = popen.pid
        self._popen = popen
        self._release = release
        self._exitcode: int | None = None

    def poll(self) -> int | None:
        """The exit code if the process has ended, negative for a signal; it is not reaped."""
        if self._exitcode is None:
            self._exitcode = self._peek()
        return self._exitcode

    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self.poll() is not None

    def reap(self) -> None:
        """Reap the process, which has ended; its id may be reused."""
        self._popen.poll()

    def owns_pid(self) -> bool:
        """Whether the id cannot have been reused, because the process was not reaped."""
        return self._popen.returncode is None

    def send_signal(self, signum: signal.Signals) -> None:
        """Send a signal to this process only; does nothing if it has ended.

        Raises:
            PermissionError: it runs as another user.
        """
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def exit_fd(self) -> int | None:
        """A descriptor that becomes readable when the process has ended; None for a child."""
        return None

    def release(self) -> None:
        """Close what belongs to the process in the launcher; called once, at the end."""
        if self._release is not None:
            self._release()

    def _peek(self) -> int | None:
        if not hasattr(os, "waitid"):
            return self._popen.poll()
        try:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return self._taken_exitcode()
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def _taken_exitcode(self) -> int:
        """The exit code of a process that has been reaped.

        The `Popen` object knows it if it has reaped the process. If other code has, by
        `waitpid(-1)`, the code is lost, and the object would return 0, as for a success.
        """
        known = self._popen.returncode
        if known is not None:
            return known
        _log.warning(
            "pid %d was reaped by other code in this process; that code must wait for its own "
            "children only. The exit code is lost and counts as %d",
            self.pid,
            LOST_EXIT_CODE,
        )
        return LOST_EXIT_CODE


def restore_sigchld() -> None:
    """Restore the default of SIGCHLD if it is ignored, because exit codes would be lost.

    Raises:
        WorkerStartError: it is ignored, and only the main thread can change that.
    """
    if signal.getsignal(signal.SIGCHLD) != signal.SIG_IGN:
        return
    if threading.current_thread() is not threading.main_thread():
        raise WorkerStartError(
            "SIGCHLD is ignored in this process, so the exit codes of workers are lost; call "
            "signal.signal(signal.SIGCHLD, signal.SIG_DFL) on the main thread first"
        )
    _log.warning("SIGCHLD was ignored, so exit codes would have been lost; plaunch has restored it")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
