"""The merged output of all nodes, and the status line below it."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from plaunch.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

STDOUT, STDERR = 1, 2
_MAX_QUEUED = 1 << 20  # bytes that wait for a slow reader, before agents are no longer read
_ERASE = b"\r\x1b[K"
_STATUS_INTERVAL = 0.5  # seconds between two changes of the status line


class MergedOutput:
    """Writes lines of all nodes on a thread, so that a slow reader does not hold up signals.

    Its descriptor is readable when `is_full` may have become false.

    Args:
        format: formats a message of plaunch's own; see `plaunch.cli.STDERR`.
        has_status: whether a status line is shown at the end of stderr.
        is_json: whether messages of plaunch are lines of JSON, which have no prefix.
        stdout: the descriptor of this command's standard output; descriptor 1 may be a copy of
            stderr, so that it has no other text.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        format: Callable[[str, str], str],
        *,
        has_status: bool = False,
        is_json: bool = False,
        stdout: int = STDOUT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._format = format
        self._has_status = has_status
        self._is_json = is_json
        self._stdout = stdout
        self._clock = clock
        self._changed = threading.Condition()
        self._queue: deque[tuple[int, bytes]] = deque()
        self._queued = 0
        self._room, self._notify_room = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._is_finished = False
        self._status = b""
        self._shown_at = -_STATUS_INTERVAL
        self._partial: dict[int, str] = {}  # by descriptor: the node of an unfinished line
        self._thread = threading.Thread(target=self._run, name="plaunch-output", daemon=True)
        start_thread(self._thread, blocks_signals=True)

    def fileno(self) -> int:
        """The descriptor to wait for."""
        return self._room

    def is_full(self) -> bool:
        """Whether so much is queued that agents should not be read for now."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._room, 4096)
        return self._queued > _MAX_QUEUED

    def write(self, fd: int, node: str, line: bytes) -> None:
        """Write a line of a node; the name precedes it, unless it is empty.

        Args:
            fd: `STDOUT` or `STDERR`.
            node: the name of the node.
            line: the line with its newline; without one, the next call continues it.
        """
        is_message = fd == STDERR and self._is_json and line.startswith(b"{")
        prefix = f"[{node}] ".encode() if node and not is_message else b""
        unfinished = self._partial.pop(fd, None)
        if unfinished is not None:
            prefix = b"" if unfinished == node else b"\n" + prefix
        if not line.endswith(b"\n"):
            self._partial[fd] = node
        self._put(fd, prefix + line)

    def say(self, text: str, level: str = "INFO") -> None:
        """Write a message of plaunch's own to stderr."""
        self._put(STDERR, self._format(text, level).encode(errors="backslashreplace") + b"\n")

    def show(self, status: str) -> None:
        """Show a status line, if there is one on this terminal; not more often than needed."""
        if not self._has_status or self._clock() - self._shown_at < _STATUS_INTERVAL:
            return
        self._shown_at = self._clock()
        with contextlib.suppress(OSError):
            width = os.get_terminal_size(STDERR).columns
            status = status[: max(width - 1, 1)]
        self._status = status.encode(errors="replace")
        self._put(STDERR, b"")

    def finish(self, seconds: float) -> bool:
        """Erase the status line, and let the thread end when all is written.

        Returns:
            Whether that took at most `seconds`.
        """
        self._status = b""
        self._put(STDERR, b"")
        with self._changed:
            self._is_finished = True
            self._changed.notify_all()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _put(self, fd: int, data: bytes) -> None:
        if self._has_status:
            # Everything is on one terminal: what is written replaces the status line.
            self._queue_up(STDERR, _ERASE)
        self._queue_up(fd, data)
        if self._status:
            self._queue_up(STDERR, self._status)

    def _queue_up(self, fd: int, data: bytes) -> None:
        if not data:
            return
        with self._changed:
            self._queue.append((fd, data))
            self._queued += len(data)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_finished)
                if not self._queue:
                    return
                fd, data = self._queue.popleft()
                while self._queue and self._queue[0][0] == fd and len(data) < 65536:
                    data += self._queue.popleft()[1]
            with contextlib.suppress(OSError):  # the reader is gone
                _write(self._stdout if fd == STDOUT else fd, data)
            with self._changed:
                was_full = self._queued > _MAX_QUEUED
                self._queued -= len(data)
                has_room = was_full and self._queued <= _MAX_QUEUED
                self._changed.notify_all()
            if has_room:
                os.write(self._notify_room, b"\0")


def format_elapsed(seconds: float) -> str:
    """Return minutes and seconds for a status line, as in `1:05`."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"


def _write(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:  # a process that shares the descriptor made it non-blocking
            poller = select.poll()
            poller.register(fd, select.POLLOUT)
            poller.poll()
