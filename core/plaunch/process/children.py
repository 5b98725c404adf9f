"""The children of this process: handles of them, and the wait for their exits."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import threading
import time
from typing import TYPE_CHECKING, Protocol

from plaunch.durations import waitable
from plaunch.errors import WorkerStartError
from plaunch.process.proc import open_pidfd

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_log = logging.getLogger("plaunch")

LOST_EXIT_CODE = 255  # also what multiprocessing reports for an unknown exit code


class Popen(Protocol):
    """What `subprocess.Popen` and multiprocessing's `Popen` have in common."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """Reap the process if it has ended; return its exit code if this call has reaped it."""


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

    @property
    def popen(self) -> Popen:
        """The object that started it."""
        return self._popen

    def poll(self) -> int | None:
        """Return the exit code if it has ended, negative for a signal; does not reap it."""
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
        """Return a descriptor that is readable when the process has ended; None for a child."""
        return None

    def release(self) -> None:
        """Close what belongs to the process in the launcher; called once, at the end."""
        if self._release is not None:
            self._release()

    def _peek(self) -> int | None:
        try:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return self._taken_exitcode()
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def _taken_exitcode(self) -> int:
        """Return the exit code of a process that has been reaped.

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


_SHORTEST_POLL = 0.001  # seconds between two polls of processes without a descriptor
_LONGEST_POLL = 0.02


class ExitPoller:
    """Waits for the end of several processes at once.

    Where the kernel has pidfds, the end of a process wakes `wait` at once, and `fileno` becomes
    readable. Elsewhere `wait` polls, less often while nothing happens. It is for one thread, with
    two exceptions: `wake` may be called from signal handlers and other threads, and a thread may
    `wait`, with a short timeout, while another one uses the object.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._has_ended: dict[int, Callable[[], bool]] = {}
        self._fds: dict[int, int] = {}
        self._pidfds: set[int] = set()
        self._leaving: set[int] = set()  # keys that `_forget` has begun to forget
        self._poll_after = _SHORTEST_POLL
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        self._selector.register(self._wake_r, selectors.EVENT_READ, None)
        self._is_closed = False
        # `wake` must not write to a descriptor that was closed and reused. A signal handler may run
        # in the middle of `close`, on the thread that has the lock.
        self._wake_lock = threading.RLock()

    def add(
        self, key: int, pid: int, has_ended: Callable[[], bool], *, fd: int | None = None
    ) -> None:
        """Watch a process.

        Call it before the process can be reaped, so that its id is not reused.

        Args:
            key: identifies the process in the result of `ended`.
            pid: its process id.
            has_ended: whether it has ended and its exit code is known; must not wait.
            fd: a descriptor that becomes readable at that moment, for a process that is not a child
                of this one. The caller owns it, and keeps it open until `ended` has returned `key`.
        """
        self._has_ended[key] = has_ended
        if fd is None and (pidfd := open_pidfd(pid)) >= 0:
            fd = pidfd
            self._pidfds.add(fd)
        if fd is not None:
            self._fds[key] = fd
            self._selector.register(fd, selectors.EVENT_READ, key)

    def add_fd(self, fd: int) -> None:
        """Also wake when `fd` is readable."""
        self._selector.register(fd, selectors.EVENT_READ, None)

    def remove_fd(self, fd: int) -> None:
        """Undo `add_fd`, before `fd` is closed; does nothing after `close`."""
        if not self._is_closed:
            self._selector.unregister(fd)

    def fileno(self) -> int | None:
        """Return a descriptor that is readable when `wait` would return; None if it has to poll."""
        return self._selector.fileno() if len(self._fds) == len(self._has_ended) else None

    def own_fds(self) -> list[int]:
        """Return all descriptors of this object, which a forked child must close."""
        return [self._wake_r, self._wake_w, self._selector.fileno(), *self._pidfds]

    def ended(self, unnoted: Collection[int] = ()) -> list[int]:
        """Return the keys of processes that have ended since the last call, in the order seen.

        Args:
            unnoted: the keys whose end the caller has not noted. Those that an earlier call has
                returned, and whose result an interrupt has lost, come first.
        """
        if self._is_closed:
            return []
        lost = [key for key in unnoted if key not in self._has_ended]
        _, ready = self._select(0)
        silent = [key for key in self._has_ended if key not in self._fds or key in self._leaving]
        seen = [key for key in dict.fromkeys((*ready, *silent)) if key in self._has_ended]
        seen = [key for key in seen if self._has_ended[key]()]
        for key in seen:
            self._forget(key)
        if seen:
            self._poll_after = _SHORTEST_POLL
        return [*lost, *seen]

    def wait(self, timeout: float | None) -> None:
        """Wait at most `timeout` seconds; None means no limit.

        Returns when a watched process has ended, when a descriptor of `add_fd` is readable, after
        `wake`, and sometimes for no reason.
        """
        if len(self._fds) == len(self._has_ended):
            self._select(timeout)
            return
        deadline = None if timeout is None else self._clock() + timeout
        while not any(has_ended() for has_ended in list(self._has_ended.values())):
            pause = self._poll_after
            if deadline is not None:
                pause = min(pause, deadline - self._clock())
                if pause <= 0:
                    return
            self._poll_after = min(self._poll_after * 2, _LONGEST_POLL)
            has_events, _ = self._select(pause)
            if has_events:
                return

    def wake(self) -> None:
        """End the `wait` in progress, or the next one; does nothing after `close`."""
        with self._wake_lock:
            if not self._is_closed:
                with contextlib.suppress(BlockingIOError):  # full, so it wakes anyway
                    os.write(self._wake_w, b"\0")

    def close(self) -> None:
        """Release every descriptor; may be called more than once."""
        if self._is_closed:
            return
        with self._wake_lock:
            self._is_closed = True
        for key in list(self._has_ended):
            self._forget(key)
        self._selector.close()
        os.close(self._wake_r)
        os.close(self._wake_w)

    def _select(self, timeout: float | None) -> tuple[bool, list[int]]:
        """Wait; return whether anything is ready, and the keys of the processes that have ended."""
        try:
            events = self._selector.select(waitable(timeout))
        except (OSError, ValueError):
            if self._is_closed:  # by another thread
                return True, []
            raise
        if any(entry.fd == self._wake_r for entry, _ in events):
            with contextlib.suppress(BlockingIOError):  # until it is empty
                while os.read(self._wake_r, 4096):
                    pass
        return bool(events), [entry.data for entry, _ in events if entry.data is not None]

    def _forget(self, key: int) -> None:
        # Another call completes what an interrupt has left; the descriptor may not wake any more.
        self._leaving.add(key)
        fd = self._fds.get(key)
        if fd is not None:
            # If a forked child holds a copy, closing alone does not remove it from the epoll.
            with contextlib.suppress(KeyError):
                self._selector.unregister(fd)
            if fd in self._pidfds:
                self._pidfds.remove(fd)
                os.close(fd)
        self._fds.pop(key, None)
        self._has_ended.pop(key, None)
        self._leaving.discard(key)
