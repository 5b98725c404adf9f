"""Pipes of simulated processes, and `poll` over them."""

from __future__ import annotations

import errno
import os
import select
from typing import TYPE_CHECKING

from plaunch_testing.simulation.hub import SimulationError

if TYPE_CHECKING:
    from plaunch_testing.simulation.hub import Hub, SimulatedProcess, SimulatedTask

__all__ = ["DescriptorTable"]

_FIRST = 1 << 20  # above all real descriptors
_CAPACITY = 65536  # bytes


class _Pipe:
    __slots__ = ("data", "has_ended", "pollers")

    def __init__(self) -> None:
        self.data = bytearray()
        self.pollers: dict[SimulatedTask, None] = {}
        self.has_ended = False  # no end for writing is open


class DescriptorTable:
    """The descriptors of all simulated processes. Others are passed on to the system.

    Args:
        hub: wakes tasks that poll.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._next = _FIRST
        self._readers: dict[int, _Pipe] = {}
        self._writers: dict[int, _Pipe] = {}
        self._owners: dict[int, SimulatedProcess | None] = {}

    def clear(self) -> None:
        """Close all descriptors."""
        self._readers.clear()
        self._writers.clear()
        self._owners.clear()

    def open_in(self, process: SimulatedProcess) -> list[int]:
        """Return the descriptors that a process has open."""
        return [fd for fd, owner in self._owners.items() if owner is process]

    def pipe(self) -> tuple[int, int]:
        """Create a pipe that does not block; return its ends for reading and for writing."""
        pipe = _Pipe()
        reader, writer = self._next, self._next + 1
        self._next += 2
        self._readers[reader] = self._writers[writer] = pipe
        task = self._hub.current
        self._owners[reader] = self._owners[writer] = None if task is None else task.process
        return reader, writer

    def write(self, fd: int, data: bytes) -> int:
        """Write to a pipe, and wake those that poll it."""
        pipe = self._writers.get(fd)
        if pipe is None:
            return os.write(self._real(fd), data)
        if len(pipe.data) >= _CAPACITY:
            raise BlockingIOError(errno.EAGAIN, "the pipe is full")
        pipe.data += data
        if pipe.pollers:
            self._hub.wake_all(pipe.pollers)
        return len(data)

    def read(self, fd: int, count: int) -> bytes:
        """Read from a pipe."""
        pipe = self._readers.get(fd)
        if pipe is None:
            return os.read(self._real(fd), count)
        if not pipe.data and pipe.has_ended:
            return b""
        if not pipe.data:
            raise BlockingIOError(errno.EAGAIN, "the pipe is empty")
        data = bytes(pipe.data[:count])
        del pipe.data[:count]
        return data

    def close(self, fd: int) -> None:
        """Close one end of a pipe."""
        if fd not in self._owners:
            os.close(self._real(fd))
            return
        del self._owners[fd]
        self._readers.pop(fd, None)
        pipe = self._writers.pop(fd, None)
        if pipe is not None:
            pipe.has_ended = True
            self._hub.wake_all(pipe.pollers)

    def poll(self) -> _Poll:
        """Create an object like `select.poll()`."""
        return _Poll(self._hub, self._readers)

    def _real(self, fd: int) -> int:
        if fd >= _FIRST:
            if self._hub.is_over:
                raise BlockingIOError(errno.EAGAIN, "the run is over")
            raise OSError(errno.EBADF, "Bad file descriptor")
        return fd


class _Poll:
    def __init__(self, hub: Hub, readers: dict[int, _Pipe]) -> None:
        self._hub = hub
        self._readers = readers
        self._fds: dict[int, None] = {}

    def register(self, fd: int, mask: int = select.POLLIN) -> None:
        if fd not in self._readers:
            raise SimulationError(f"descriptor {fd} is not a pipe of the simulator")
        self._fds[fd] = None

    def unregister(self, fd: int) -> None:
        del self._fds[fd]

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        """Wait until a pipe is readable, at most `timeout` milliseconds."""
        events = self._events()
        if events or timeout == 0:
            return events
        hub = self._hub
        task = hub.current
        assert task is not None
        pipes = [self._readers[fd] for fd in self._fds]
        for pipe in pipes:
            pipe.pollers[task] = None
        try:
            hub.wait(None, None if timeout is None or timeout < 0 else timeout / 1000)
        finally:
            for pipe in pipes:
                pipe.pollers.pop(task, None)
        return self._events()

    def _events(self) -> list[tuple[int, int]]:
        readers = self._readers
        found = []
        for fd in self._fds:
            pipe = readers.get(fd)
            if pipe is not None and (pipe.data or pipe.has_ended):
                found.append((fd, select.POLLIN if pipe.data else select.POLLHUP))
        return found
