"""Locks, conditions, events and threads of the hub, with the interfaces of `threading`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from plaunch_testing.simulation.hub import Hub, SimulatedTask

__all__ = ["Primitives"]


class Primitives:
    """Makes what stands for the names of `threading` in one hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def names(self) -> dict[str, object]:
        """Return what replaces names of `threading`."""
        hub = self._hub

        class Thread(_Thread):
            _hub = hub

        return {
            "Lock": lambda: _Lock(hub, is_recursive=False),
            "RLock": lambda: _Lock(hub, is_recursive=True),
            "Condition": lambda lock=None: _Condition(hub, lock or _Lock(hub, is_recursive=True)),
            "Event": lambda: _Event(hub),
            "Thread": Thread,
            "current_thread": self.current_thread,
            "main_thread": self.main_thread,
            "get_ident": lambda: id(hub.current),
            "get_native_id": lambda: id(hub.current),
        }

    def current_thread(self) -> object:
        """The thread that the task is known as; one that was not started by code is made up."""
        task = self._hub.current
        if task is None:
            return threading.current_thread()
        if task.thread is None:
            task.thread = _ForeignThread(task)
        return task.thread

    def main_thread(self) -> object:
        """The thread on which the process began."""
        task = self._hub.current
        if task is None or task.process is None:
            return threading.main_thread()
        main = task.process.main
        if main.thread is None:
            main.thread = _ForeignThread(main)
        return main.thread


class _Lock:
    __slots__ = ("_depth", "_hub", "_is_recursive", "_owner", "_waiters")

    def __init__(self, hub: Hub, *, is_recursive: bool) -> None:
        self._hub = hub
        self._is_recursive = is_recursive
        self._owner: SimulatedTask | None = None
        self._depth = 0
        self._waiters: dict[SimulatedTask, None] = {}

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        hub = self._hub
        me = hub.current
        if self._depth:
            if self._is_recursive and self._owner is me:
                self._depth += 1
                return True
            if not blocking:
                return False
            if not self._wait(None if timeout < 0 else timeout):
                return False
        elif hub.preemption and hub.random.random() < hub.preemption and blocking:
            hub.let_others_run()
            if self._depth and not self._wait(None if timeout < 0 else timeout):
                return False
        self._owner = me
        self._depth = 1
        return True

    def _wait(self, timeout: float | None) -> bool:
        hub = self._hub
        until = None if timeout is None else hub.now + timeout
        while self._depth:
            left = None if until is None else until - hub.now
            if not hub.wait(self._waiters, left) and timeout is not None:
                return not self._depth
        return True

    def release(self) -> None:
        if not self._depth:
            if self._hub.is_over:
                return
            raise RuntimeError("release unlocked lock")
        self._depth -= 1
        if not self._depth:
            self._owner = None
            if self._waiters:
                self._hub.wake(next(iter(self._waiters)))

    def locked(self) -> bool:
        return self._depth > 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def release_all(self) -> int:
        """Release every level, as a condition does before it waits; return their number."""
        depth, self._depth = self._depth, 1
        self.release()
        return depth

    def restore(self, depth: int) -> None:
        """Take the lock again, at this level."""
        self.acquire()
        self._depth = depth


class _Condition:
    def __init__(self, hub: Hub, lock: _Lock) -> None:
        self._hub = hub
        self._lock = lock
        self._waiters: dict[SimulatedTask, None] = {}
        self.acquire = lock.acquire
        self.release = lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        depth = self._lock.release_all()
        try:
            return self._hub.wait(self._waiters, timeout)
        finally:
            if not self._hub.is_over:
                self._lock.restore(depth)

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        until = None if timeout is None else self._hub.now + timeout
        while not (result := predicate()):
            left = None if until is None else until - self._hub.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        for task in list(self._waiters)[:n]:
            self._hub.wake(task)

    def notify_all(self) -> None:
        self._hub.wake_all(self._waiters)


class _Event:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._is_set = False
        self._waiters: dict[SimulatedTask, None] = {}

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._hub.wake_all(self._waiters)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            self._hub.wait(self._waiters, timeout)
        return self._is_set


class _Thread:
    _hub: Hub

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self.name = name or "Thread"
        self.daemon = bool(daemon)
        self._call = (target, tuple(args), dict(kwargs or {}))
        self._task: SimulatedTask | None = None

    @property
    def ident(self) -> int | None:
        return None if self._task is None else id(self._task)

    native_id = ident

    def run(self) -> None:
        target, args, kwargs = self._call
        if target is not None:
            target(*args, **kwargs)

    def start(self) -> None:
        parent = self._hub.current
        process = None if parent is None else parent.process
        self._task = self._hub.spawn(self.run, self.name, process)
        self._task.thread = self

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.is_done

    def join(self, timeout: float | None = None) -> None:
        if self._task is not None:
            self._hub.joins(self._task, timeout)


class _ForeignThread:
    """A thread that the code under test has not started: the first one of a process."""

    daemon = False

    def __init__(self, task: SimulatedTask) -> None:
        self.name = task.name
        self.ident = self.native_id = id(task)
        self._task = task

    def is_alive(self) -> bool:
        return not self._task.is_done
