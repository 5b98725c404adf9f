"""Finds workers that end but do not exit: after an exception, or long after all others.

An interpreter that ends waits for its threads, and calls the functions of `atexit` and destructors.
If one of them blocks, the worker has failed, or is done, and the job waits for it.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from plaunch.durations import format_duration
from plaunch.process.components import ExitPlace
from plaunch.process.proc import read_proc
from plaunch.process.streams import last_lines, traceback_time
from plaunch.threads import BoundedCall

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from plaunch.process.components import ExitRules
    from plaunch.process.outcomes import WorkerOutcomes
    from plaunch.process.streams import Streams

_log = logging.getLogger("plaunch")

REPORT_AFTER = 10.0  # seconds after which a worker that has not exited is reported
_PERIOD = 5.0  # seconds between two looks for exceptions
_SETTLED = 1.0  # seconds within which most interpreters exit after an exception
_FIRST_PAUSE = 2.0  # seconds between two looks at a worker of which too little is known; doubled
_LONGEST_PAUSE = 60.0
_CLOSE_WAIT = 1.0  # seconds for a look to end, before this process may fork


class _Evidence(NamedTuple):
    """What a worker that has not exited has written about an exception.

    Args:
        at: when, in seconds since the epoch.
        is_report: whether it is in the error file, and not only on stderr.
        lines: the last lines of its stderr.
        what: the exception with the user's line; empty if it cannot be parsed.
    """

    at: float
    is_report: bool
    lines: list[str]
    what: str


class _Look(NamedTuple):
    """What one look has found, by local rank; nothing if it `has_failed`."""

    evidence: Mapping[int, _Evidence]
    places: Mapping[int, ExitPlace]
    activity: Mapping[int, bytes]
    has_failed: bool = False


@dataclass
class _Suspect:
    """A worker that may have raised an exception, and has not exited.

    Args:
        evidence: what it has written.
        since: when, on the monotonic clock.
        next_look: when to look at it again, on the monotonic clock.
    """

    evidence: _Evidence
    since: float
    next_look: float
    pause: float = _FIRST_PAUSE
    has_raised: bool | None = None  # None: it is not known yet
    is_settled: bool = False  # no further look is needed
    place: ExitPlace = field(default_factory=ExitPlace)
    activity: bytes = b""
    is_stuck: bool = False  # its main thread has not run between two looks


class LateExits:
    """Watches the workers of one context while they run and none has failed.

    The exception is one that ended the program if the main thread has left it, or has stuck after
    it wrote an error file. A traceback that the program has caught and printed, or that another
    process or thread has printed, is ignored.

    `update` neither blocks nor reads files: the looks run on a thread, one after the other.

    Args:
        outcomes: which workers run, how the others ended, and what becomes of the exceptions.
        streams: have the output of the workers.
        rules: what to do.
        wake: called on another thread when `update` has something to do.
        clock: monotonic seconds.
        wall_clock: seconds since the epoch.
        run: starts a call on a thread.
    """

    def __init__(
        self,
        outcomes: WorkerOutcomes,
        streams: Streams,
        rules: ExitRules,
        wake: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        run: Callable[[str, Callable[[], object]], BoundedCall] = BoundedCall,
    ) -> None:
        self._outcomes = outcomes
        self._streams = streams
        self._rules = rules
        self._wake = wake
        self._clock = clock
        self._wall_clock = wall_clock
        self._run = run
        timeout = rules.exception_timeout
        self._period = _PERIOD if timeout is None else min(max(timeout / 2, _SETTLED), _PERIOD)
        self._next_look = clock() + self._period
        self._suspects: dict[int, _Suspect] = {}
        self._said: set[int] = set()  # ranks that were reported as later than the others
        self._said_unknown: set[int] = set()  # ranks of which too little is known
        self._not_before = 0.0  # no look before this time, on the monotonic clock
        self._call: BoundedCall | None = None
        self._found: _Look | None = None  # what the call has found, once it has

    def update(self) -> bool:
        """Look at the workers if it is time, and report those that are late.

        Called while workers run and none has failed; returns whether one counts as failed now.
        """
        live = self._outcomes.live()
        self._suspects = {rank: self._suspects[rank] for rank in live if rank in self._suspects}
        if self._call is not None and self._found is not None:
            found, self._found, self._call = self._found, None, None
            self._take(found)
        if self._call is None and self._clock() >= self._due_look():
            self._begin_look()
        return self._fail_late()

    def due(self) -> float | None:
        """Seconds until `update` has something to do; None also once it is not called any more."""
        if not (self._outcomes.live() and self._outcomes.are_undisturbed()):
            return None
        if self._call is not None and self._found is None:  # its end wakes
            left = self._due_failure() - self._clock()
            return None if math.isinf(left) else max(left, 0.0)
        if self._call is not None:
            return 0.0
        return max(min(self._due_look(), self._due_failure()) - self._clock(), 0.0)

    def fail_raised(self) -> bool:
        """Count running workers that end with an exception as failed; whether there are any."""
        return self._outcomes.fail_raised()

    def close(self) -> None:
        """Wait a moment for a look that is in progress."""
        if self._call is not None:
            self._call.wait(_CLOSE_WAIT)

    # --- looks ------------------------------------------------------------------------------------

    def _due_look(self) -> float:
        dues = [one.next_look for one in self._suspects.values() if not one.is_settled]
        late_at = self._late_at()
        due = min([self._next_look, *dues, *([] if late_at is None else [late_at])])
        return max(due, self._not_before)

    def _late_at(self) -> float | None:
        """When workers count as later than the others, on the monotonic clock; None if never."""
        ends = [each.timestamp for each in self._outcomes.exits.values() if each.succeeded]
        # Of a few that end early, most are not late: uneven data, or programs that differ by rank.
        if len(ends) < max(len(self._outcomes.live()), 1) or not self._late():
            return None
        return self._clock() + max(ends) + REPORT_AFTER - self._wall_clock()

    def _late(self) -> list[int]:
        raised = {rank for rank, one in self._suspects.items() if one.has_raised}
        return [rank for rank in self._outcomes.live() if rank not in self._said | raised]

    def _begin_look(self) -> None:
        now, live = self._clock(), self._outcomes.live()
        self._next_look = now + self._period
        pids = {rank: self._outcomes.workers[rank].pid for rank in live}
        known = {rank: one.evidence.at for rank, one in self._suspects.items()}
        wanted = {rank for rank, one in self._suspects.items() if self._is_due(one, now)}
        late_at = self._late_at()
        if late_at is not None and late_at <= now:
            wanted |= {*self._late()}
        # A program that has caught one exception is likely to catch more.
        spared = {
            rank for rank, one in self._suspects.items() if one.next_look > now or one.has_raised
        }
        try:
            self._call = self._run("exits", lambda: self._look(pids, known, wanted, spared))
        except Exception as error:  # noqa: BLE001 - no more threads, or the interpreter is ending
            _log.debug("workers that do not exit cannot be found: %s", error)
            self._not_before = now + self._period

    @staticmethod
    def _is_due(one: _Suspect, now: float) -> bool:
        return not one.is_settled and one.next_look <= now

    def _look(
        self,
        pids: Mapping[int, int],
        known: Mapping[int, float],
        wanted: Collection[int],
        spared: Collection[int],
    ) -> None:
        """Read what workers have written, and where some of them are; runs on a thread.

        Args:
            pids: the process ids of the workers, by local rank.
            known: when they wrote what is known.
            wanted: whose places are read.
            spared: whose places are not read although they have written more.
        """
        found = _Look({}, {}, {}, has_failed=True)
        try:
            evidence = {}
            for rank in pids:
                one = self._find_evidence(rank, known.get(rank))
                if one is not None:
                    evidence[rank] = one
            now = self._wall_clock()
            fresh = {rank for rank, one in evidence.items() if now - one.at >= _SETTLED}
            chosen = {rank: pids[rank] for rank in sorted({*wanted, *(fresh - {*spared})})}
            find = self._rules.find_places
            places = find(chosen) if find is not None and chosen else {}
            activity = {rank: _read_activity(pid) for rank, pid in chosen.items()}
            found = _Look(evidence, places, activity)
        except Exception:  # noqa: BLE001 - a bug here must not cost the job
            _log.debug("workers that do not exit cannot be found", exc_info=True)
        finally:
            self._found = found
            self._wake()

    def _find_evidence(self, rank: int, known: float | None) -> _Evidence | None:
        """Return what a worker has written about an exception since the last look, if anything."""
        at = self._outcomes.reported_at(rank)
        is_report = at is not None
        if at is None:
            at = traceback_time(self._streams, rank)
        if at is None or at == known:
            return None
        lines = last_lines(self._streams, rank)
        what = self._outcomes.describe_exception(rank, lines)
        return None if what is None else _Evidence(at, is_report, lines, what)

    def _take(self, look: _Look) -> None:
        now, live = self._clock(), self._outcomes.live()
        if look.has_failed:
            self._not_before = now + self._period  # it would fail again
            return
        for rank, evidence in look.evidence.items():
            if rank not in live:
                continue  # it has ended meanwhile
            before = self._suspects.get(rank)
            if before is not None and before.has_raised:
                continue  # what threads and destructors write now is not the cause
            since = now - max(self._wall_clock() - evidence.at, 0.0)
            one = self._suspects[rank] = _Suspect(evidence, since, max(since + _SETTLED, now))
            if before is not None:
                one.next_look, one.pause = max(one.next_look, before.next_look), before.pause
        for rank in look.activity:
            if rank in live and rank in self._suspects and not self._suspects[rank].is_settled:
                self._judge(rank, look)
        late_at = self._late_at()
        if late_at is not None and late_at <= now:
            late = [rank for rank in self._late() if rank in look.activity]
            self._report_late({rank: look.places.get(rank, ExitPlace()) for rank in late})

    def _judge(self, rank: int, look: _Look) -> None:
        """Decide whether an exception has ended the program of a worker."""
        one, now = self._suspects[rank], self._clock()
        one.place = look.places.get(rank, ExitPlace())
        activity = look.activity[rank]
        one.is_stuck = bool(activity) and activity == one.activity
        one.activity = activity
        one.has_raised = has_raised(one.place, is_report=one.evidence.is_report)
        is_late = now - one.since >= REPORT_AFTER
        if one.has_raised is False and one.evidence.is_report:
            # It may be in a `finally` behind the function that wrote the error file.
            one.has_raised = True if is_late and one.is_stuck else None
        if one.has_raised:
            self._outcomes.note_raised(rank, one.evidence.at, one.evidence.lines)
            one.next_look = one.since + REPORT_AFTER
            self._next_look = max(self._next_look, one.next_look)  # one look for both
            if is_late:
                one.is_settled = True
                self._report_raised(rank, one)
            return
        one.next_look = now + one.pause
        one.pause = min(2 * one.pause, _LONGEST_PAUSE)
        if one.has_raised is False:
            one.is_settled = True  # the program has caught the exception
            return
        if now < one.since + REPORT_AFTER < one.next_look:
            one.next_look = one.since + REPORT_AFTER
        if is_late and not one.evidence.is_report and (one.is_stuck or not activity):
            one.is_settled = True
            if rank not in self._said_unknown:
                self._said_unknown.add(rank)
                self._report_raised(rank, one)

    # --- reports ----------------------------------------------------------------------------------

    def _report_raised(self, rank: int, one: _Suspect) -> None:
        name, what = self._outcomes.name([rank]), one.evidence.what
        ago = _format(self._clock() - one.since)
        where = _describe_place(one.place)
        if one.has_raised:
            text = f"{name} raised {what or 'an exception'} {ago} ago and has not exited"
            parts_of_text = [text, where, self._describe_consequence()]
        else:
            idle = ", and its main thread has not run since" if one.is_stuck else ""
            text = f"{name} wrote the traceback of {what or 'an exception'} {ago} ago{idle}"
            parts_of_text = [text, "whether it ends is not known", where]
        _log.warning("%s", "; ".join(filter(None, parts_of_text)))

    def _describe_consequence(self) -> str:
        timeout = self._rules.exception_timeout
        if timeout is None:
            return self._rules.advice
        return f"it counts as failed {_format(timeout)} after the exception (--exception-timeout)"

    def _report_late(self, places: Mapping[int, ExitPlace]) -> None:
        """Report workers that have not exited long after the others, grouped by their places."""
        ends = [each.timestamp for each in self._outcomes.exits.values() if each.succeeded]
        ago = _format(self._wall_clock() - max(ends))
        by_place: dict[ExitPlace, list[int]] = {}
        for rank, place in places.items():
            self._said.add(rank)
            by_place.setdefault(place, []).append(rank)
        for place, ranks in by_place.items():
            word = "has" if len(ranks) == 1 else "have"
            where = _describe_place(place, len(ranks))
            text = f"{self._outcomes.name(ranks)} {word} not exited, {ago} after the others"
            _log.warning("%s", "; ".join(filter(None, [text, where])))

    # --- failures ---------------------------------------------------------------------------------

    def _due_failure(self) -> float:
        timeout = self._rules.exception_timeout
        raised = [one.since for one in self._suspects.values() if one.has_raised]
        return float("inf") if timeout is None or not raised else min(raised) + timeout

    def _fail_late(self) -> bool:
        """Count workers as failed whose time after the exception is over."""
        if self._clock() < self._due_failure():
            return False
        for rank, one in self._suspects.items():
            if one.has_raised:
                _log.warning(
                    "%s has not exited %s after its exception, and counts as failed "
                    "(--exception-timeout)",
                    self._outcomes.name([rank]),
                    _format(self._clock() - one.since),
                )
        return self.fail_raised()


def has_raised(place: ExitPlace, *, is_report: bool) -> bool | None:
    """Whether a worker that wrote about an exception has ended with it; None if unknown.

    Args:
        place: where it is.
        is_report: whether the exception is in its error file, and not only on its stderr.
    """
    if place.is_exiting is False:
        return False
    if is_report:
        return True
    if place.has_raised is not None:
        return place.has_raised
    return place.is_exiting


def _read_activity(pid: int) -> bytes:
    """How often the main thread of a process has run; changes if it runs. Empty if unknown."""
    lines = read_proc(f"{pid}/status").splitlines()
    return b" ".join(line for line in lines if b"ctxt_switches" in line)


def _describe_place(place: ExitPlace, count: int = 1) -> str:
    who, whose = ("it is", "its stack") if count == 1 else ("they are", "their stacks")
    if place.place:
        return f"{who} in {place.place}"
    return f"{whose} cannot be read: {place.reason}" if place.reason else ""


def _format(seconds: float) -> str:
    return format_duration(round(seconds), " ")
