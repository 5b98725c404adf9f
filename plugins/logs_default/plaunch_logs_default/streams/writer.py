"""What may take long to accept output: a thread of its own writes it, and nothing else waits."""

from __future__ import annotations

import abc
import errno
import os
import threading
import time
from typing import TYPE_CHECKING

from plaunch.threads import start_thread

from plaunch_logs_default.streams.backlog import Backlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch_logs_default.streams.notices import Notices

SLICE = 64 << 10  # bytes of one write
SLOW_SLICE = 4 << 10  # bytes of one write to what makes us wait
SLOW_WRITE = 0.05  # seconds
_WAIT_TURN = 0.1  # seconds between two calls of `is_over`: an escalation does not wake the waiter

_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Writer(abc.ABC):
    """Where output goes at its own pace.

    What it cannot take yet waits in a `Backlog`. What the backlog cannot hold is dropped, oldest
    first, and a line in its place says how many lines it was. A writer that fails is reported
    once, and gets nothing from then on; only a full disk is tried again.

    Args:
        label: what messages call it.
        notices: where trouble is reported.
        backlog: where what is not written yet waits.
        clock: monotonic seconds.
    """

    kind: str  # in the name of its thread
    too_slow: str  # why lines are missing, in a line of the output
    no_room: str  # the same in a warning
    full: str  # what it is when the disk is full
    runs_plugin = False  # whether the code of a plugin writes, which may start processes

    def __init__(
        self,
        label: str,
        notices: Notices,
        *,
        backlog: Backlog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.label = label
        self._notices = notices
        self._clock = clock
        # When it took something last, or was first given it, on the clock; 0 before.
        self.last_progress = 0.0
        self._thread: threading.Thread | None = None
        # All below is guarded by this condition, which also wakes the thread.
        self._changed = threading.Condition()
        self._backlog = backlog or Backlog()
        self._in_hand = b""  # the oldest part, which the thread writes
        self._taken = 0  # bytes of it that the writer has taken
        self._said_lines = 0  # of those the backlog has dropped, with a line in their place
        self._has_warned = False  # that the backlog drops lines
        self._lost_lines = 0  # refused
        self._at_line_start = True  # of what was written, not of what waits
        self._is_broken = False
        self._asked: float | None = None  # when it was to end, on the clock

    @abc.abstractmethod
    def _write(self, data: bytes) -> int:
        """Write some of `data`; how many bytes, 0 if it is to be tried again.

        Raises:
            OSError: it cannot be written.
        """

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are not written yet; any thread may look, and sees that of a moment ago."""
        return len(self._in_hand) - self._taken + self._backlog.size

    @property
    def missing_lines(self) -> int:
        """Lines that will not be written: neither it nor the disk could take them."""
        return self._backlog.dropped_lines + self._lost_lines

    def _append(self, data: bytes) -> None:
        """Let `data` be written; with the lock."""
        self._backlog.append(data)
        self._warn_of_drops()
        self._changed.notify_all()

    def _warn_of_drops(self) -> None:
        if self._backlog.dropped_lines and not self._has_warned:
            self._has_warned = True
            self._warn(
                f"does not accept the workers' output fast enough, and {self.no_room}: the oldest "
                "lines are dropped"
            )

    def start(self) -> None:
        """Start the thread; what came before is written now.

        Raises:
            ThreadStartError: the system gives no more threads.
        """
        name = f"plaunch-{self.kind}-{self.label}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        start_thread(thread, blocks_signals=not self.runs_plugin)
        self._thread = thread

    def _run(self) -> None:
        size = SLICE
        while data := self._next(size):
            started = self._clock()
            try:
                written = self._write(data)
            except OSError as error:
                self._handle_error(error)
                continue
            with self._changed:
                self._taken += written
                if written:
                    self._at_line_start = data[written - 1 : written] == b"\n"
                    self.last_progress = self._clock()
            # Small writes to what is slow, so that `close` can tell slow from stuck.
            is_slow = not written or self._clock() - started > SLOW_WRITE
            size = SLOW_SLICE if is_slow else SLICE

    def _next(self, size: int) -> bytes:
        """Wait for what is to be written next, `size` bytes at most; empty when all is over."""
        with self._changed:
            while self._taken >= len(self._in_hand):
                unsaid = self._backlog.dropped_lines - self._said_lines
                if unsaid and not self._is_broken:
                    self._said_lines += unsaid
                    self._in_hand = (b"" if self._at_line_start else b"\n") + (
                        b"plaunch: lines missing here: %d (%s)\n" % (unsaid, self.too_slow.encode())
                    )
                elif self._backlog.size:
                    self._in_hand = self._backlog.take(SLICE)
                    self._warn_of_drops()
                elif self._asked is not None:
                    return b""
                else:
                    self._changed.wait()
                    continue
                self._taken = 0
                self.last_progress = self._clock()
            # Others may write to the same (the launcher's log, inherited streams): what they say in
            # between must not land inside a line.
            end = self._taken + size
            if end < len(self._in_hand):
                end = self._in_hand.rfind(b"\n", self._taken, end) + 1 or end
            return self._in_hand[self._taken : end]

    def _handle_error(self, error: OSError) -> None:
        with self._changed:
            lines = self._in_hand.count(b"\n", self._taken) or 1
            self._taken = len(self._in_hand)
            if error.errno in _DISK_FULL:
                if not self._lost_lines:
                    self._warn(
                        f"{self.full} ({os.strerror(error.errno)}): the workers' output is missing "
                        "there until it can"
                    )
                self._lost_lines += lines
                return
            self._give_up(lines)
            self._warn(
                f"cannot be written to any more ({error.strerror or error}): the workers' output "
                "for it is discarded from now on; the job goes on"
            )

    def _give_up(self, lines: int) -> None:
        """Let it get nothing more, `lines` of what it was given have not arrived; with the lock."""
        del lines
        self._is_broken = True
        self._backlog.clear()
        self._said_lines = self._backlog.dropped_lines

    def ask_to_end(self) -> None:
        """Let the thread end when all is written; `close` waits from now on."""
        with self._changed:
            if self._asked is None:
                self._asked = self._clock()
            self._changed.notify_all()

    def close(self, timeout: float, is_escalated: Callable[[], bool] = lambda: False) -> None:
        """Wait until everything is written, and end the thread.

        Waits as long as something is taken at least every `timeout` seconds, unless `is_escalated`
        becomes true. What is left then is reported.
        """
        self.ask_to_end()
        asked = self._asked or 0.0

        def is_over() -> bool:
            stalled = self._clock() - max(asked, self.last_progress)
            return stalled >= timeout or is_escalated()

        if self.wait(is_over):
            self.report_missing()
        else:
            self.report_rest()

    def wait(self, is_over: Callable[[], bool]) -> bool:
        """Wait, after `ask_to_end`, until everything is written.

        Returns:
            False if `is_over`, which is called again and again, returned true before that.
        """
        while self.is_writing():
            if is_over():
                return False
            assert self._thread is not None  # noqa: S101 - it writes
            self._thread.join(_WAIT_TURN)
        return True

    def is_writing(self) -> bool:
        """Whether its thread runs: something is left, or may still come."""
        return self._thread is not None and self._thread.is_alive()

    @abc.abstractmethod
    def report_rest(self) -> None:
        """Report what it has not taken."""

    @abc.abstractmethod
    def report_missing(self) -> None:
        """Report at the end what is missing in it, if anything is."""

    def _warn(self, what: str) -> None:
        self._notices.warn("%s %s", self.label, what)
