"""The merged output of all nodes, and the status line below it."""

from __future__ import annotations

import contextlib
import os
import re
import select
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch.process import PROMPT_HOLD, PROMPT_HOLD_IN_LOG
from plaunch.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

STDOUT, STDERR = 1, 2
_MAX_QUEUED = 1 << 20  # bytes that wait for a slow reader, before agents are no longer read
_SLICE = 64 << 10  # bytes of one write
_SLOW_SLICE = 4 << 10  # bytes of one write after a slow one, so that progress is seen
_SLOW_WRITE = 0.05  # seconds
_ERASE = b"\r\x1b[K"
_MAX_REPEATED = 64 << 10  # bytes of a line without an end that are kept to repeat it
_STATUS_INTERVAL = 0.5  # seconds between two changes of the status line


class MergedOutput:
    """Writes lines of all nodes on a thread, so that a slow reader does not hold up signals.

    Its descriptor is readable when `is_full` may have become false, and when all is written after
    `request_end`. All methods are called on one thread.

    Args:
        format: formats a message of plaunch's own; see `plaunch.cli.STDERR`.
        has_status: whether a status line is shown at the end of stderr.
        is_json: whether messages of plaunch are lines of JSON, which have no prefix.
        stdout: the descriptor of this command's standard output; descriptor 1 may be a copy of
            stderr, so that it has no other text.
        clock: a monotonic clock, in seconds.

    Attributes:
        progressed_at: when a reader has last taken something, on the clock.
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
        self._unwritten = b""  # of what the thread is writing
        self._files: dict[int, str] = {}
        self._lost: dict[str, OutputLoss] = {}  # by the reason
        self.progressed_at = clock()
        self._room, self._notify_room = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._is_finished = False
        self._status = b""
        self._is_shown = False  # the status line
        self._shown_at = -_STATUS_INTERVAL
        self._partial: dict[int, str] = {}  # by descriptor: the node of an unfinished line
        self._begun: dict[tuple[int, str], bytes] = {}  # by descriptor and node: unfinished lines
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

    def write(self, fd: int, node: str, text: bytes) -> None:
        """Write lines of a node; the name precedes each, unless it is empty.

        A line without an end is repeated once it goes on, if others have written meanwhile.

        Args:
            fd: `STDOUT` or `STDERR`.
            node: the name of the node.
            text: lines with their newlines; if the last one has none, the next call continues it.
        """
        if not text:
            return
        begin = b""
        unfinished = self._partial.pop(fd, None)
        begun = self._begun.pop((fd, node), b"")
        whole = begun + text
        if unfinished == node:
            begin, line, text = text.partition(b"\n")
            begin += line
        else:
            begin, text = b"" if unfinished is None else b"\n", whole
        last = whole[whole.rfind(b"\n") + 1 :]
        if last:
            self._partial[fd] = node
            self._begun[fd, node] = last if len(last) <= _MAX_REPEATED else b""
        if node and text:
            text = self._name_lines(fd, f"[{node}] ".encode(), text)
        self._put(fd, begin + text)

    def _name_lines(self, fd: int, prefix: bytes, text: bytes) -> bytes:
        """Return lines with a prefix."""
        if fd == STDERR and self._is_json:
            lines = re.findall(rb"[^\n]*\n|[^\n]+", text)
            return b"".join(line if line.startswith(b"{") else prefix + line for line in lines)
        return prefix + text[:-1].replace(b"\n", b"\n" + prefix) + text[-1:]

    def hold(self, is_error: bool) -> float:
        """Return how long to wait for the end of a line before it is written, in seconds."""
        return (
            PROMPT_HOLD
            if self._is_terminal(STDERR if is_error else self._stdout)
            else PROMPT_HOLD_IN_LOG
        )

    @staticmethod
    def _is_terminal(fd: int) -> bool:
        with contextlib.suppress(OSError):
            return os.isatty(fd)
        return False

    def say(self, text: str, level: str = "INFO") -> None:
        """Write a message of plaunch's own to stderr, on a line of its own."""
        line = self._format(text, level).encode(errors="backslashreplace") + b"\n"
        # With a status line, both streams are probably on one terminal.
        ended = [fd for fd in self._partial if fd == STDERR or self._has_status]
        for fd in ended:
            del self._partial[fd]
        self._put(STDERR, (b"\n" if ended else b"") + line)

    def name_file(self, fd: int, path: str) -> None:
        """Name a descriptor for `write_file`."""
        self._files[fd] = path

    def write_file(self, fd: int, data: bytes) -> None:
        """Write to a file, of which nothing is shown."""
        self._queue_up(fd, data)

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

    def request_end(self) -> None:
        """Erase the status line, and let the thread end when all is written."""
        self._status = b""
        self._put(STDERR, b"")
        with self._changed:
            self._is_finished = True
            self._changed.notify_all()

    def is_written(self) -> bool:
        """Whether all is written, after `request_end`."""
        return not self._thread.is_alive()

    def losses(self) -> list[OutputLoss]:
        """Return what was not written, by its cause; what still waits is among it."""
        with self._changed:
            rest = self._unwritten + b"".join(data for _, data in self._queue)
        found = [*self._lost.values()]
        if rest:
            found.append(OutputLoss("its reader has not taken it", len(rest), rest.count(b"\n")))
        return found

    def _put(self, fd: int, data: bytes) -> None:
        if self._is_shown:
            # Everything is on one terminal: what is written replaces the status line.
            self._queue_up(STDERR, _ERASE)
        self._queue_up(fd, data)
        self._is_shown = bool(self._status) and not self._partial  # it would replace such a line
        if self._is_shown:
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
                    break
                fd, data = self._queue.popleft()
                parts, length = [data], len(data)
                while self._queue and self._queue[0][0] == fd and length < _SLICE:
                    parts.append(self._queue.popleft()[1])
                    length += len(parts[-1])
                self._unwritten = b"".join(parts)
            try:
                self._write(self._stdout if fd == STDOUT else fd)
            except BrokenPipeError:  # the reader has enough
                pass
            except OSError as error:
                place = f"{self._files[fd]}: " if fd in self._files else ""
                self._note_loss(f"{place}{error.strerror or error}")
            with self._changed:
                self._unwritten = b""
                was_full = self._queued > _MAX_QUEUED
                self._queued -= length
                has_room = was_full and self._queued <= _MAX_QUEUED
            if has_room:
                os.write(self._notify_room, b"\0")
        os.write(self._notify_room, b"\0")

    def _write(self, fd: int) -> None:
        size = _SLICE
        while self._unwritten:
            began = self._clock()
            try:
                written = os.write(fd, self._unwritten[:size])
            except BlockingIOError:  # a process that shares the descriptor made it non-blocking
                poller = select.poll()
                poller.register(fd, select.POLLOUT)
                poller.poll()
                continue
            self._unwritten = self._unwritten[written:]
            self.progressed_at = self._clock()
            size = _SLOW_SLICE if self.progressed_at - began > _SLOW_WRITE else _SLICE

    def _note_loss(self, cause: str) -> None:
        known = self._lost.get(cause, OutputLoss(cause, 0, 0))
        self._lost[cause] = OutputLoss(
            cause,
            known.size + len(self._unwritten),
            known.lines + self._unwritten.count(b"\n"),
        )


@dataclass(frozen=True)
class OutputLoss:
    """Output of the nodes that was not written.

    Args:
        cause: why, in a few words.
        size: bytes.
        lines: complete lines among them.
    """

    cause: str
    size: int
    lines: int

    def __str__(self) -> str:
        return f"{self.size} bytes, {self.lines} lines: {self.cause}"


def format_elapsed(seconds: float) -> str:
    """Return minutes and seconds for a status line, as in `1:05`."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"
