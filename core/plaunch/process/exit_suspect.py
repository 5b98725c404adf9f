"""Decides whether a worker that has written about an exception, and runs, has ended with it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from plaunch.process.components import ExitPlace
from plaunch.process.exit_evidence import REPORT_AFTER, SETTLED

if TYPE_CHECKING:
    from plaunch.process.exit_evidence import WrittenException

_FIRST_PAUSE = 2.0  # seconds between two looks at a worker of which too little is known; doubled
_LONGEST_PAUSE = 60.0
_HOLD_PAUSE = 5.0  # seconds between two looks at one that is held


@dataclass
class ExitSuspect:
    """A worker that may have raised an exception, and has not exited.

    While it is held, by a debugger for example, its time stands still.

    Args:
        written: what it has written.
        since: when, on the monotonic clock, and later by the time in which it was held.
        next_look: when to look at it again, on the monotonic clock.
        timeout: seconds from the exception until it counts as failed; None if it never does.
    """

    written: WrittenException
    since: float
    next_look: float
    timeout: float | None = None
    pause: float = _FIRST_PAUSE
    has_raised: bool | None = None  # None: it is not known yet
    is_settled: bool = False  # no further look is needed
    is_announced: bool = False
    place: ExitPlace = field(default_factory=ExitPlace)
    activity: bytes = b""
    is_stuck: bool = False  # its main thread has not run between two looks
    hold: str = ""
    _held_at: float = 0.0  # until when the time in which it was held is in `since`

    def age(self, now: float) -> float:
        """Return the seconds since the exception, without those in which it was held."""
        return (self._held_at if self.hold else now) - self.since

    def due_failure(self) -> float:
        """Return when it counts as failed, on the monotonic clock; infinite if it does not."""
        if self.timeout is None or self.hold or not self.has_raised:
            return math.inf
        return self.since + self.timeout

    def note_hold(self, hold: str, now: float, began: float | None = None) -> None:
        """Record what holds it.

        Args:
            hold: in words, such as `suspended`; empty if nothing does.
            now: on the monotonic clock.
            began: when the hold began, if that is known.
        """
        if self.hold:
            self.since += now - self._held_at
            self._held_at = now
        elif hold:
            self._held_at = now if began is None else min(max(began, self.since), now)
            self.activity, self.is_stuck = b"", False
        self.hold = hold

    def judge(self, place: ExitPlace, activity: bytes, now: float) -> bool:
        """Decide whether an exception has ended its program, and when to look again.

        Args:
            place: where it is.
            activity: changes when its main thread runs; empty if unknown.
            now: on the monotonic clock.

        Returns:
            Whether it is to be announced: it has raised the exception, or may have.
        """
        self.place = place
        self.is_stuck = bool(activity) and activity == self.activity and not self.hold
        self.activity = b"" if self.hold else activity
        is_late = self.age(now) >= REPORT_AFTER and not self.hold
        self.has_raised = has_raised(place, is_report=self.written.is_report)
        if self.has_raised is False and self.written.is_report:
            # It may be in a `finally` behind the function that wrote the error file.
            self.has_raised = True if is_late and self.is_stuck else None
        if self.has_raised:
            is_new = is_late and not self.is_announced
            self.is_announced |= is_late
            self._plan_next_look(now)
            return is_new
        self.next_look = now + self.pause
        self.pause = min(2 * self.pause, _LONGEST_PAUSE)
        if self.has_raised is False:
            self.is_settled = True  # the program has caught the exception
            return False
        if now < self.since + REPORT_AFTER < self.next_look:
            self.next_look = self.since + REPORT_AFTER
        if is_late and not self.written.is_report and (self.is_stuck or not activity):
            self.is_settled = self.is_announced = True
            return True
        return False

    def _plan_next_look(self, now: float) -> None:
        """Look again to announce it, and for debuggers until it counts as failed."""
        if self.hold:
            self.next_look = now + _HOLD_PAUSE
            return
        looks = [] if self.is_announced else [self.since + REPORT_AFTER]
        if self.timeout is not None and now < self.since + self.timeout - SETTLED:
            looks.append(min(now + self.pause, self.since + self.timeout - SETTLED))
            self.pause = min(2 * self.pause, _LONGEST_PAUSE)
        self.is_settled = not looks
        self.next_look = min(looks, default=math.inf)


def has_raised(place: ExitPlace, *, is_report: bool) -> bool | None:
    """Whether a worker that wrote about an exception has ended with it; None if unknown.

    Args:
        place: where it is.
        is_report: whether the exception is in its error file, and not only on its stderr.
    """
    if place.is_exiting is False:
        return False
    # A program may have caught what is on its stderr long before it ended.
    return True if is_report else place.has_raised
