"""Waiting for processes to end, within milliseconds and without polling where the kernel can."""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
import time
from typing import TYPE_CHECKING

from plaunch.durations import waitable
from plaunch.process.kernel.pidfd import open_pidfd

if TYPE_CHECKING:
    from collections.abc import Callable

_SHORTEST_LOOK = 0.001  # seconds between two looks at a process that has no descriptor
_LONGEST_LOOK = 0.02


class ExitWatch:
    """Waits for the end of several processes at once.

    Where the kernel has pidfds, the end of a process wakes `wait` at once, and `fileno` becomes
    readable. Elsewhere `wait` looks again and again, less often while nothing happens. It is for
    one thread; only `wake` may also be called from signal handlers and other threads, and a thread
    may `wait` while another one uses the watch, if its timeout is short.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._has_ended: dict[int, Callable[[], bool]] = {}
        self._fds: dict[int, int] = {}
        self._pidfds: set[int] = set()
        self._look_after = _SHORTEST_LOOK
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        self._selector.register(self._wake_r, selectors.EVENT_READ, None)
        self._is_closed = False
        # Whoever wakes from another thread must not write to what is a stranger's file by then. A
        # signal handler may come in the middle of closing, on the thread that has the lock.
        self._wake_lock = threading.RLock()

    def add(
        self, key: int, pid: int, has_ended: Callable[[], bool], *, fd: int | None = None
    ) -> None:
        """Watch the process `pid` under the name `key`.

        Call it before the process can be reaped, so that the pid is still its own.

        Args:
            key: what `ended` calls it.
            pid: its process id.
            has_ended: says, without waiting, whether it has ended and its exit code is known.
            fd: a descriptor that becomes readable at that moment, for a process that is no child of
                this one. It stays the caller's, and open until `ended` has named the key.
        """
        self._has_ended[key] = has_ended
        if fd is None and (pidfd := open_pidfd(pid)) >= 0:
            fd = pidfd
            self._pidfds.add(fd)
        if fd is not None:
            self._fds[key] = fd
            self._selector.register(fd, selectors.EVENT_READ, key)

    def add_fd(self, fd: int) -> None:
        """Let `wait` return, and `fileno` be readable, also when `fd` is readable."""
        self._selector.register(fd, selectors.EVENT_READ, None)

    def remove_fd(self, fd: int) -> None:
        """Take back `add_fd`; do it before `fd` is closed. Nothing happens after `close`."""
        if not self._is_closed:
            self._selector.unregister(fd)

    def fileno(self) -> int | None:
        """A descriptor that is readable when `wait` would return at once; None if there is none."""
        return self._selector.fileno() if len(self._fds) == len(self._has_ended) else None

    def own_fds(self) -> list[int]:
        """All descriptors that belong to this watch, for a forked child to close."""
        return [self._wake_r, self._wake_w, self._selector.fileno(), *self._pidfds]

    def ended(self) -> list[int]:
        """The keys of the processes that have ended since the last call, in the order seen."""
        if self._is_closed:
            return []
        _, ready = self._select(0)
        silent = [key for key in self._has_ended if key not in self._fds]
        seen = [key for key in (*ready, *silent) if self._has_ended[key]()]
        for key in seen:
            self._forget(key)
        if seen:
            self._look_after = _SHORTEST_LOOK
        return seen

    def wait(self, timeout: float | None) -> None:
        """Wait at most `timeout` seconds (None: without an end) for something to happen.

        It returns when a watched process has ended, when a descriptor of `add_fd` is readable, or
        after `wake`; and now and then for no reason.
        """
        if len(self._fds) == len(self._has_ended):
            self._select(timeout)
            return
        deadline = None if timeout is None else self._clock() + timeout
        while not any(has_ended() for has_ended in list(self._has_ended.values())):
            pause = self._look_after
            if deadline is not None:
                pause = min(pause, deadline - self._clock())
                if pause <= 0:
                    return
            self._look_after = min(self._look_after * 2, _LONGEST_LOOK)
            has_events, _ = self._select(pause)
            if has_events:
                return

    def wake(self) -> None:
        """Let the `wait` in progress, or the next one, return at once; nothing after `close`."""
        with self._wake_lock:
            if not self._is_closed:
                with contextlib.suppress(BlockingIOError):  # full, so it wakes in any case
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
        """Whether anything is ready, and the keys of the processes that are."""
        try:
            events = self._selector.select(waitable(timeout))
        except (OSError, ValueError):
            if self._is_closed:  # by another thread
                return True, []
            raise
        if any(entry.fd == self._wake_r for entry, _ in events):
            with contextlib.suppress(BlockingIOError):  # empty again, as it should be
                while os.read(self._wake_r, 4096):
                    pass
        return bool(events), [entry.data for entry, _ in events if entry.data is not None]

    def _forget(self, key: int) -> None:
        del self._has_ended[key]
        fd = self._fds.pop(key, None)
        if fd is None:
            return
        # A forked child may hold a copy, and closing alone does not take that out of an epoll.
        self._selector.unregister(fd)
        if fd in self._pidfds:
            self._pidfds.remove(fd)
            os.close(fd)
