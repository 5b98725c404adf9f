"""What follows failures: the job's restart policy, and the records of what it has decided.

There is one record for each round that follows a failure. It is written before the state that
begins the round: a leader that dies in between has decided nothing, and the next one writes the
record anew.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from plaunch.durations import bounded
from plaunch.restarts import (
    Cause,
    Decided,
    Decision,
    Failure,
    RestartAction,
    failure_of,
)

from plaunch_membership.bounds import MAX_EXCLUDED, MAX_NAME
from plaunch_membership.operations import MultiGet, Routine, Set
from plaunch_membership.process_failures import from_job_failures
from plaunch_membership.records import MAX_REASON, RecordError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plaunch_membership.failures import FailureSummary
    from plaunch_membership.membership import Membership
    from plaunch_membership.records import Record
    from plaunch_membership.state import JobState

_AT_ONCE = 128  # records that are read in one operation
_MOST_KNOWN = 1000  # rounds of which a new leader reads the records
_EXIT_CODES = range(-64, 256)


class Restarts:
    """Decides for one incarnation of the job, while this node leads."""

    def __init__(self, ours: Membership) -> None:
        self._ours = ours
        self._keys = ours.keys
        self._history: list[Decided] = []
        self._known = 0  # the last round whose record has been read or written

    def decide(
        self, settling: JobState, summary: FailureSummary, started: float, hosts: Sequence[str]
    ) -> Routine[Decision | None]:
        """What follows a failure; None leaves that to the budget.

        Args:
            settling: the state of the job.
            summary: the failures of all nodes.
            started: seconds since the round has formed.
            hosts: those of its nodes.
        """
        policy = self._ours.identity.job.restart_policy
        failures, first = from_job_failures(summary.failures, {})
        if policy is None or first is None:
            return None
        yield from self._read(settling.round)
        failure = failure_of(failures, first, started=started, attempt=settling.attempt)
        decision: Decision | None = policy.decide(failure, tuple(self._history))
        if decision is not None and decision.is_restart:
            left = [host for host in hosts if host not in settling.excluded]
            decision = decision.among(left)
            yield from self._write(settling.round + 1, Decided(failure, decision))
        return decision

    def _read(self, last: int) -> Routine[None]:
        """Know what was decided up to this round."""
        begin = max(self._known, last - _MOST_KNOWN) + 1
        for low in range(begin, last + 1, _AT_ONCE):
            rounds = range(low, min(low + _AT_ONCE, last + 1))
            keys = [self._keys.restart(number) for number in rounds]
            values = yield MultiGet(keys)
            for key, value in zip(keys, values, strict=True):
                if value is None:
                    continue  # a round for another reason, or the store has lost it
                try:
                    self._history.append(_from_record(self._ours.codec.decode(key, value)))
                except RecordError as error:
                    self._ours.doubts.note("what followed a failure", error)
        self._known = max(self._known, last)

    def _write(self, round_: int, decided: Decided) -> Routine[None]:
        key = self._keys.restart(round_)
        yield Set(key, self._ours.codec.encode(key, _to_record(decided)))
        self._history.append(decided)
        self._known = round_


def _to_record(decided: Decided) -> dict[str, object]:
    failure, decision = decided.failure, decided.decision
    return {
        "cause": failure.cause.value,
        "rank": failure.rank,
        "host": failure.host,
        "exit_code": failure.exitcode,
        "exception": failure.exception[:MAX_NAME],
        "message": failure.message[:MAX_REASON],
        "place": failure.place[:MAX_NAME],
        "started": bounded(failure.started),
        "time": failure.time,
        "attempt": failure.attempt,
        "reason": decision.reason[:MAX_REASON],
        "delay": bounded(decision.delay),
        "costs": decision.costs,
        "without": [host[:MAX_NAME] for host in decision.without][:MAX_EXCLUDED],
    }


def _from_record(record: Record) -> Decided:
    cause = record.text("cause", max_len=MAX_NAME)
    if cause not in {known.value for known in Cause}:
        record.refuse(f"unknown cause {cause!r}")
    failure = Failure(
        cause=Cause(cause),
        rank=record.integer("rank"),
        host=record.text("host", max_len=MAX_NAME),
        exitcode=record.integer("exit_code", low=_EXIT_CODES[0], high=_EXIT_CODES[-1]),
        exception=record.text("exception"),
        message=record.text("message"),
        place=record.text("place"),
        started=max(bounded(record.number("started")), 0.0),
        time=record.date("time"),
        attempt=record.integer("attempt", low=0),
    )
    delay = bounded(record.number("delay"))
    decision = Decision(
        RestartAction.RESTART,
        reason=record.text("reason"),
        delay=0.0 if math.isnan(delay) else max(delay, 0.0),
        without=tuple(record.texts("without"))[:MAX_EXCLUDED],
        costs=record.flag("costs"),
    )
    return Decided(failure, decision)
