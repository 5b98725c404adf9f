"""Finds workers that end but do not exit: after an exception, or long after the others.

An interpreter that ends waits for its threads, and calls the functions of `atexit` and destructors.
If one of them blocks, the worker has failed, or is done, and the job waits for it.
"""

from __future__ import annotations

import logging
import math
import time
from functools import partial
from typing import TYPE_CHECKING

from plaunch.durations import format_duration
from plaunch.process.components import ExitPlace
from plaunch.process.exit_evidence import REPORT_AFTER, SETTLED, ExitEvidence
from plaunch.process.watches import HeldProcesses
from plaunch.threads import BoundedCall

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from plaunch.process.components import ExitRules
    from plaunch.process.exit_evidence import ExitSigns, WrittenException
    from plaunch.process.exit_suspect import ExitSuspect
    from plaunch.process.outcomes import WorkerOutcomes
    from plaunch.process.quiet_worker import QuietWorker
    from plaunch.process.streams import Streams

_log = logging.getLogger("plaunch")

_PERIOD = 5.0  # seconds between two looks for exceptions
_MOST_AT_ONCE = 8  # quiet workers of which one look reads the stack: 20 ms of CPU time each
_CLOSE_WAIT = 1.0  # seconds for a look to end, before this process may fork


class LateExits:
    """Watches the workers of one context while they run and none has failed.

    The exception is one that ended the program if the main thread has left it, or has stuck after
    it wrote an error file. A traceback that the program has caught and printed, or that another
    process or thread has printed, is ignored. While a worker is held, its time stands still.

    `update` neither blocks nor reads files: the looks run on a thread, one after the other.

    Args:
        outcomes: which workers run, how the others ended, and what becomes of the exceptions.
        streams: have the output of the workers.
        rules: what to do.
        wake: called on another thread when `update` has something to do.
        holds: knows what has suspended workers, and since when.
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
        holds: HeldProcesses | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        run: Callable[[str, Callable[[], object]], BoundedCall] = BoundedCall,
    ) -> None:
        self._outcomes = outcomes
        self._rules = rules
        self._holds = HeldProcesses() if holds is None else holds
        self._evidence = ExitEvidence(outcomes, streams, rules.find_places, self._holds, wall_clock)
        self._wake = wake
        self._clock = clock
        self._wall_clock = wall_clock
        self._run = run
        timeout = rules.exception_timeout
        self._period = _PERIOD if timeout is None else min(max(timeout / 2, SETTLED), _PERIOD)
        self._next_look = clock() + self._period
        self._looked_at = clock()  # when the last look began
        self._seen_before = self._looked_at  # when the one before began
        self._hold_check_at = -math.inf
        self._suspects: dict[int, ExitSuspect] = {}
        self._quiet: dict[int, QuietWorker] = {}
        self._peers_ended_at = -math.inf  # in seconds since the epoch
        self._said: set[int] = set()  # ranks that were reported as later than the others
        self._said_unknown: set[int] = set()  # ranks of which too little is known
        self._not_before = 0.0  # no look before this time, on the monotonic clock
        self._call: BoundedCall | None = None
        self._found: ExitSigns | None = None  # what the call has found, once it has

    def update(self) -> bool:
        """Look at the workers if it is time, and report those that are late.

        Called while workers run and none has failed; returns whether one counts as failed now.
        """
        live = self._outcomes.live()
        self._suspects = {rank: self._suspects[rank] for rank in live if rank in self._suspects}
        self._quiet = {rank: self._quiet[rank] for rank in live if rank in self._quiet}
        if self._call is not None and self._found is not None:
            found, self._found, self._call = self._found, None, None
            self._take(found)
        if self._call is None and self._clock() >= self._due_look():
            self._begin_look()
        self._check_holds()
        return self._fail_late()

    def due(self) -> float | None:
        """Seconds until `update` has something to do; None also once it is not called any more."""
        if not (self._outcomes.live() and self._outcomes.are_undisturbed()):
            return None
        if self._call is not None and self._found is None:  # its end wakes
            left = self._due_check() - self._clock()
            return None if math.isinf(left) else max(left, 0.0)
        if self._call is not None:
            return 0.0
        return max(min(self._due_look(), self._due_check()) - self._clock(), 0.0)

    def note_peers_ended(self, ago: float) -> None:
        """Record that most other contexts of the job ended with success `ago` seconds before."""
        if math.isinf(self._peers_ended_at):
            self._peers_ended_at = self._wall_clock() - ago

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
        ended_at = self._ended_at()
        if math.isinf(ended_at) or not self._late():
            return None
        return self._clock() + ended_at + REPORT_AFTER - self._wall_clock()

    def _ended_at(self) -> float:
        """When most of the others had ended, in seconds since the epoch; -inf if they have not."""
        ends = [each.timestamp for each in self._outcomes.exits.values() if each.succeeded]
        # Of a few that end early, most are not late: uneven data, or programs that differ by rank.
        if len(ends) < len(self._outcomes.live()):
            ends = []
        return max([*ends, self._peers_ended_at])

    def _late(self) -> list[int]:
        raised = {rank for rank, one in self._suspects.items() if one.has_raised}
        return [rank for rank in self._outcomes.live() if rank not in self._said | raised]

    def _begin_look(self) -> None:
        now, live = self._clock(), self._outcomes.live()
        self._next_look = now + self._period
        self._seen_before, self._looked_at = self._looked_at, now
        pids = {rank: self._outcomes.workers[rank].pid for rank in live}
        known = {rank: one.written.at for rank, one in self._suspects.items()}
        wanted = {rank for rank, one in self._suspects.items() if self._is_due(one, now)}
        late_at = self._late_at()
        if late_at is not None and late_at <= now:
            wanted |= {*self._late()}
        wanted |= {*self._find_quiet(now)}
        # A program that has caught one exception is likely to catch more.
        spared = {
            rank for rank, one in self._suspects.items() if one.next_look > now or one.has_raised
        }
        try:
            read = partial(self._evidence.read, pids, known, wanted, spared)
            self._call = self._run("exits", lambda: self._look(read))
        except Exception as error:  # noqa: BLE001 - no more threads, or the interpreter is ending
            _log.debug("workers that do not exit cannot be found: %s", error)
            self._not_before = now + self._period

    def _find_quiet(self, now: float) -> list[int]:
        """Find workers whose main thread has not run for long: they may have ended."""
        late = [rank for rank in self._late() if rank in self._quiet]
        return [rank for rank in late if self._quiet[rank].is_due(now)][:_MOST_AT_ONCE]

    @staticmethod
    def _is_due(one: ExitSuspect, now: float) -> bool:
        return not one.is_settled and one.next_look <= now

    def _look(self, read: Callable[[], ExitSigns]) -> None:
        """Runs on a thread."""
        self._found = read()
        self._wake()

    def _take(self, signs: ExitSigns) -> None:
        now, live = self._clock(), self._outcomes.live()
        if signs.has_failed:
            self._not_before = now + self._period  # it would fail again
            return
        for rank, written in signs.written.items():
            if rank in live:  # else it has ended meanwhile
                self._suspect(rank, written, now)
        for rank in signs.holds:  # all whose places were read
            if rank in live and rank in self._suspects and not self._suspects[rank].is_settled:
                self._judge(rank, signs)
        late_at = self._late_at()
        if late_at is not None and late_at <= now:
            late = [rank for rank in self._late() if rank in signs.holds]
            ago = self._wall_clock() - self._ended_at()
            self._report_late(late, f"{_format(ago)} after the others", signs)
        self._take_quiet(signs, now)

    def _take_quiet(self, signs: ExitSigns, now: float) -> None:
        """Report workers that have ended their program, and have not run since."""
        from plaunch.process.quiet_worker import QuietWorker  # not in the first seconds

        ended = []
        for rank in self._late():
            if rank not in signs.activity:
                continue  # its exit of an earlier round
            quiet = self._quiet.setdefault(rank, QuietWorker())
            quiet.note(signs.activity[rank], self._looked_at)
            if rank in signs.holds and quiet.is_due(self._looked_at):
                quiet.note_look(now)
                place = signs.places.get(rank, ExitPlace())
                if place.is_exiting and rank not in self._said_unknown:
                    ended.append(rank)
        if ended:
            ago = now - min(self._quiet[rank].since for rank in ended)
            whose = "its program" if len(ended) == 1 else "their programs"
            self._report_late(ended, f"{_format(ago)} after the end of {whose}", signs)

    def _suspect(self, rank: int, written: WrittenException, now: float) -> None:
        from plaunch.process.exit_suspect import ExitSuspect  # after an exception only

        before = self._suspects.get(rank)
        if before is not None and before.has_raised:
            return  # what threads and destructors write now is not the cause
        # The clock of the wall may have been set, but the look before has not seen it.
        since = now - min(written.age, max(now - self._seen_before, 0.0))
        one = self._suspects[rank] = ExitSuspect(
            written, since, max(since + SETTLED, now), self._rules.exception_timeout
        )
        if before is not None:
            one.next_look, one.pause = max(one.next_look, before.next_look), before.pause

    def _judge(self, rank: int, signs: ExitSigns) -> None:
        """Decide whether an exception has ended the program of a worker."""
        one, now = self._suspects[rank], self._clock()
        one.note_hold(signs.holds.get(rank, ""), now)
        is_news = one.judge(signs.places.get(rank, ExitPlace()), signs.activity[rank], now)
        if one.has_raised:
            self._outcomes.note_raised(rank, one.written.at, one.written.lines)
            if not one.is_announced:
                self._next_look = max(self._next_look, one.next_look)  # one look for both
        elif is_news:
            is_news = rank not in self._said_unknown
            self._said_unknown.add(rank)
        if is_news:
            self._report_raised(rank, one)

    # --- reports ----------------------------------------------------------------------------------

    def _report_raised(self, rank: int, one: ExitSuspect) -> None:
        name, what = self._outcomes.name([rank]), one.written.what
        ago = _format(one.age(self._clock()))
        where = _describe_place(one.place)
        if one.has_raised:
            text = f"{name} raised {what or 'an exception'} {ago} ago and has not exited"
            parts_of_text = [text, where, self._describe_consequence()]
        else:
            idle = ", and its main thread has not run since" if one.is_stuck else ""
            text = f"{name} wrote the traceback of {what or 'an exception'} {ago} ago{idle}"
            ends = "it ends because of that" if one.place.is_exiting else "it ends"
            parts_of_text = [text, f"whether {ends} is not known", where]
        _log.warning("%s", "; ".join(filter(None, parts_of_text)))

    def _describe_consequence(self) -> str:
        timeout = self._rules.exception_timeout
        if timeout is None:
            return self._rules.advice
        return f"it counts as failed {_format(timeout)} after the exception (--exception-timeout)"

    def _report_late(self, late: Collection[int], when: str, signs: ExitSigns) -> None:
        """Report workers that have not exited at a time when they should have, by their places."""
        by_place: dict[ExitPlace, list[int]] = {}
        for rank in late:
            self._said.add(rank)
            place = signs.places.get(rank, ExitPlace())
            place = place._replace(hold=signs.holds.get(rank, ""))
            by_place.setdefault(place, []).append(rank)
        for place, ranks in by_place.items():
            word = "has" if len(ranks) == 1 else "have"
            where = _describe_place(place, len(ranks))
            text = f"{self._outcomes.name(ranks)} {word} not exited, {when}"
            _log.warning("%s", "; ".join(filter(None, [text, where])))

    # --- failures ---------------------------------------------------------------------------------

    def _due_failure(self) -> float:
        return min((one.due_failure() for one in self._suspects.values()), default=math.inf)

    def _due_check(self) -> float:
        """When a worker may count as failed, or may not be held any more."""
        is_held = any(one.hold and one.has_raised for one in self._suspects.values())
        return min(self._due_failure(), self._hold_check_at + _PERIOD if is_held else math.inf)

    def _check_holds(self) -> None:
        """Find out which workers are suspended, before one of them counts as failed."""
        now = self._clock()
        if now < self._due_check():
            return
        self._hold_check_at = now
        pids = {
            rank: self._outcomes.workers[rank].pid
            for rank, one in self._suspects.items()
            if one.has_raised
        }
        held = self._holds.sample(pids.values())
        for rank, pid in pids.items():
            one = self._suspects[rank]
            if pid in held:
                began = now - max(self._wall_clock() - held[pid].since, 0.0)
                one.note_hold(held[pid].how, now, began)
            else:
                one.note_hold(one.place.hold, now)

    def _fail_late(self) -> bool:
        """Count workers as failed whose time after the exception is over."""
        now = self._clock()
        if now < self._due_failure():
            return False
        for rank, one in self._suspects.items():
            if one.has_raised:
                _log.warning(
                    "%s has not exited %s after its exception, and counts as failed "
                    "(--exception-timeout)",
                    self._outcomes.name([rank]),
                    _format(one.age(now)),
                )
        return self.fail_raised()


def _describe_place(place: ExitPlace, count: int = 1) -> str:
    who, whose = ("it is", "its stack") if count == 1 else ("they are", "their stacks")
    if place.hold:
        return f"{who} {place.hold}"
    if place.place:
        return f"{who} in {place.place}"
    return f"{whose} cannot be read: {place.reason}" if place.reason else ""


def _format(seconds: float) -> str:
    return format_duration(round(seconds), " ")
