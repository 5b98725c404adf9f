"""The console, written by a thread of its own, so that nobody else ever waits for it."""

from __future__ import annotations

import errno
import os
import select
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from plaunch.process.streams.overflow import Overflow
from plaunch.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.process.streams.notices import Notices

MEMORY_LIMIT = 4 << 20  # bytes that wait in memory; more go to the overflow
SLICE = 64 << 10  # bytes of one write
SLOW_SLICE = 4 << 10  # bytes of one write to a console that makes us wait
SLOW_WRITE = 0.05  # seconds

_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Console:
    """One of the launcher's own output streams, shown to a user who may be slow.

    `put` never blocks on the console. What the console cannot take waits in memory, then in an
    `Overflow`; when even the disk is full the oldest part is dropped, and a line in its place says
    how many lines it was. A console that cannot be written to at all (its reader is gone) is
    reported once, and everything for it is discarded from then on.

    Args:
        fd: the descriptor; it stays open and its flags stay as they are, since others share it.
        label: what messages call it, as in "stdout".
        notices: where trouble is reported.
        memory_limit: bytes that may wait in memory.
        overflow: where the rest waits.
        write: writes to the descriptor, as `os.write` does.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        fd: int,
        label: str,
        notices: Notices,
        *,
        memory_limit: int = MEMORY_LIMIT,
        overflow: Overflow | None = None,
        write: Callable[[int, bytes], int] = os.write,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fd = fd
        self._label = label
        self._notices = notices
        self._memory_limit = memory_limit
        self._overflow = overflow or Overflow()
        self._write = write
        self._clock = clock
        self.is_terminal = os.isatty(fd)
        self._thread: threading.Thread | None = None
        # All below is guarded by this condition, which also wakes the thread and `close`.
        self._changed = threading.Condition()
        self._blocks: deque[bytes] = deque()
        self._size = 0  # bytes in `_blocks`
        self._in_hand = b""  # what the thread is writing
        self._taken = 0  # bytes of `_in_hand` that the console has taken
        self._last_progress = 0.0
        self._dropped_lines = 0
        self._untold_lines = 0  # the part of `_dropped_lines` without a line in its place yet
        self._lost_lines = 0  # refused by a console that is a file on a full disk
        self._owner: object = None  # whose line is unfinished on the console
        self._owner_is_raw = False
        self._at_line_start = True  # of what was written, unlike `_owner`, which is about the queue
        self._is_broken = False
        self._is_closing = False
        self._is_over = False

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are not shown yet; any thread may look, and sees that of a moment ago."""
        return len(self._in_hand) - self._taken + self._size + self._overflow.unread

    @property
    def missing_lines(self) -> int:
        """Lines that will not be shown: neither the console nor the disk could take them."""
        return self._dropped_lines + self._lost_lines

    @property
    def last_progress(self) -> float:
        """When the console took something last, on the clock; 0 if it never has."""
        return self._last_progress

    def put(self, data: bytes, owner: object, *, is_raw: bool = False, shown: int = 0) -> None:
        r"""Add `data` of `owner` to what is shown; never blocks.

        Lines of different owners do not mix: where another owner's line is unfinished (a progress
        bar, say), `data` starts on a new line, except that raw data follows raw data as it comes.

        Args:
            data: bytes to show as they are.
            owner: who writes; compared by identity.
            is_raw: the data is passed on unchanged rather than line by line.
            shown: the first `shown` bytes of `data` are on the console already, unless another
                owner has written since.
        """
        with self._changed:
            if self._is_broken or not data:
                return
            if self._owner is owner:
                data = data[shown:]
            elif self._owner is not None and not (is_raw and self._owner_is_raw):
                data = b"\n" + data
            if not data:
                return
            self._owner = None if data.endswith(b"\n") else owner
            self._owner_is_raw = is_raw
            self._blocks.append(data)
            self._size += len(data)
            if self._size > self._memory_limit:
                self._make_room()
            self._changed.notify_all()

    def _make_room(self) -> None:
        dropped = self._overflow.dropped_lines
        if self._overflow.append(b"".join(self._blocks)):
            self._blocks.clear()
            self._size = 0
        else:
            while self._size > self._memory_limit // 2:
                block = self._blocks.popleft()
                self._size -= len(block)
                self._count_dropped(block.count(b"\n"))
        self._count_dropped(self._overflow.dropped_lines - dropped)

    def _count_dropped(self, lines: int) -> None:
        if lines and not self._dropped_lines:
            self._warn(
                "does not take the workers' output as fast as it comes, and there is no disk space "
                "left to keep it: the oldest lines are dropped"
            )
        self._dropped_lines += lines
        self._untold_lines += lines

    def start(self) -> None:
        """Start the thread; what was put before is shown now."""
        thread = threading.Thread(
            target=self._run, name=f"plaunch-console-{self._label}", daemon=True
        )
        start_thread(thread)
        self._thread = thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._blocks or self._overflow.unread):
                    if self._is_closing:
                        self._overflow.close()
                        self._is_over = True
                        self._changed.notify_all()
                        return
                    self._changed.wait()
                self._in_hand = self._take()
                self._taken = 0
                self._last_progress = self._clock()
            self._show(self._in_hand)

    def _take(self) -> bytes:
        if self._untold_lines:
            notice = (
                b"plaunch: lines missing here: %d (the console was too slow, the disk is full)\n"
            )
            data = notice % self._untold_lines
            self._untold_lines = 0
            return data if self._at_line_start else b"\n" + data
        if self._overflow.unread:
            before = self._overflow.dropped_lines
            try:
                return self._overflow.read(SLICE)
            except OSError:
                self._count_dropped(self._overflow.dropped_lines - before)
                return b""
        blocks = [self._blocks.popleft()]
        size = len(blocks[0])
        while self._blocks and size + len(self._blocks[0]) <= SLICE:
            blocks.append(self._blocks.popleft())
            size += len(blocks[-1])
        self._size -= size
        return b"".join(blocks)

    def _show(self, data: bytes) -> None:
        position = 0
        slice_size = SLICE
        while position < len(data):
            # Others write to this console too (the launcher's log, inherited streams): what they
            # say in between must not land inside a line.
            end = position + slice_size
            if end < len(data):
                end = data.rfind(b"\n", position, end) + 1 or end
            started = self._clock()
            try:
                position += self._write(self._fd, data[position:end])
            except BlockingIOError:  # someone who shares the console made it non-blocking
                poll = select.poll()
                poll.register(self._fd, select.POLLOUT)
                poll.poll()
                slice_size = SLOW_SLICE
                continue
            except OSError as error:
                self._handle_error(error, data, position)
                return
            with self._changed:
                self._taken = position
                self._last_progress = self._clock()
                self._at_line_start = data[position - 1 : position] == b"\n"
            # Small writes to a slow console, so that `close` can tell slow from stuck.
            slice_size = SLOW_SLICE if self._clock() - started > SLOW_WRITE else SLICE

    def _handle_error(self, error: OSError, data: bytes, position: int) -> None:
        with self._changed:
            self._taken = len(data)
            if error.errno in _DISK_FULL:
                if not self._lost_lines:
                    self._warn(
                        f"is a file that cannot grow ({os.strerror(error.errno)}): the workers' "
                        "output is missing there until it can"
                    )
                self._lost_lines += data.count(b"\n", position) or 1
                return
            self._is_broken = True
            self._blocks.clear()
            self._size = 0
            self._overflow.close()
            self._warn(
                f"cannot be written to any more ({error.strerror or error}): the workers' output "
                "for it is discarded from now on; the job goes on"
            )

    def close(self, timeout: float, is_hurried: Callable[[], bool] = lambda: False) -> None:
        """Wait until everything is shown, and end the thread.

        Waits as long as the console takes something at least every `timeout` seconds, unless
        `is_hurried` becomes true. What is left then is reported; the thread keeps it and goes on
        trying for as long as this process lives.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            asked = self._clock()
            while self._thread is not None and not self._is_over:
                waited = self._clock() - max(asked, self._last_progress)
                if waited >= timeout or is_hurried():
                    self._report_rest()
                    return
                # Short turns: a signal handler can set the hurry, but not notify.
                self._changed.wait(min(timeout - waited, 0.1))
        if self._thread is not None:
            self._thread.join(timeout)
        if self._dropped_lines:
            self._warn(
                "was too slow and the disk was full; lines of the workers' output dropped in all: "
                f"{self._dropped_lines}"
            )
        if self._lost_lines:
            self._warn(
                f"could not grow; lines of the workers' output missing there: {self._lost_lines}"
            )

    def _report_rest(self) -> None:
        in_hand = self._in_hand[self._taken :]
        size = len(in_hand) + self._size + self._overflow.unread
        lines = in_hand.count(b"\n") + self._overflow.unread_lines
        lines += sum(block.count(b"\n") for block in self._blocks)
        if size:  # else all was shown, and the thread has not said so yet
            self._warn(
                "takes no more output; not shown of what the workers wrote: "
                f"{size} bytes, {lines} lines"
            )

    def _warn(self, what: str) -> None:
        self._notices.warn("%s %s", self._label, what)
