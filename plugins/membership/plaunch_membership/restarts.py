"""Restart decisions: calls the job's restart policy and stores what it decides.

There is one record for each round that follows a failure, written before the state that starts the
round. If a leader dies in between, its decision has no effect, and the next leader overwrites the
record.
"""

from __future__ import annotations

import math
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch.durations import bounded
from plaunch.errors import ExitCode
from plaunch.restarts import (
    MAX_DECISIONS,
    Cause,
    Decided,
    Decision,
    DecisionHistory,
    Failure,
    RestartAction,
    failure_of,
)

from plaunch_membership.failures import FailureSummary, merge
from plaunch_membership.operations import MultiGet, MultiSet, Routine, Set
from plaunch_membership.process_failures import failure_of_node, from_job_failures
from plaunch_membership.records import MAX_EXCLUDED, MAX_NAME, MAX_REASON, RecordError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from plaunch_membership.membership import Membership
    from plaunch_membership.records import StoreRecord
    from plaunch_membership.state import JobState

_BATCH = 128  # records read in one operation
_EXIT_CODES = range(-64, 256)
_KILLED = 128 + signal.SIGKILL


@dataclass(frozen=True)
class FailureContext:
    """What the leader knows about the job at the time of a failure.

    Args:
        started: seconds since the round was formed.
        hosts: the hosts of its nodes, and of waiting nodes; without those that are gone.
    """

    started: float
    hosts: Sequence[str]

    def missing_nodes(self, min_nodes: int, excluded: Collection[str]) -> int:
        """How many nodes are missing for another round."""
        return max(min_nodes - sum(host not in excluded for host in self.hosts), 0)


class RestartDecisions:
    """Decides about restarts for one incarnation of the job, while this node leads.

    Args:
        membership: the leader's membership.
        max_history: the number of failures that the policy receives; a new leader reads the records
            of as many rounds.
    """

    def __init__(self, membership: Membership, max_history: int = MAX_DECISIONS) -> None:
        self._membership = membership
        self._keys = membership.keys
        self._max_history = max_history
        self._memory = membership.memory
        self._history = DecisionHistory(self._memory.health_decisions, max_decisions=max_history)
        self._known = 0  # the last round whose record has been read or written

    def decide(
        self,
        state: JobState,
        summary: FailureSummary,
        now: FailureContext,
        cause: Cause | None = None,
    ) -> Routine[Decision | None]:
        """Decide after a failure; None leaves the decision to `--max-restarts`.

        Args:
            state: the state of the job.
            summary: the failures of all nodes.
            now: what else the leader knows.
            cause: the kind of failure; by default a worker's.
        """
        policy = self._membership.identity.job.restart_policy
        failures, first = from_job_failures(summary.failures, {})
        if policy is None or first is None:
            return None
        yield from self._read(state.round)
        min_nodes = self._membership.identity.min_nodes
        failure = failure_of(
            failures,
            first,
            started=bounded(now.started),
            attempt=state.attempt,
            cause=cause,
            missing_nodes=(
                now.missing_nodes(min_nodes, state.excluded) if cause is Cause.NODE else 0
            ),
        )
        decision: Decision | None = policy.decide(failure, self._history.latest())
        if decision is not None and decision.is_restart:
            left = [host for host in now.hosts if host not in state.excluded]
            decision = decision.among(left)
            decided = Decided(failure, decision)
            if cause is Cause.HEALTH:  # the round continues; the state has the host
                self._history.append(decided)
                self._memory.health_decisions.append(decided)
            else:
                yield from self._write(state.round + 1, decided)
        return decision

    def decide_lost(
        self, state: JobState, host: str, text: str, others: FailureSummary, now: FailureContext
    ) -> Routine[tuple[FailureSummary, Decision | None]]:
        """Decide after the loss of a node; also return all failures, which are its consequences.

        `text` says which node was lost, and why.
        """
        # The loss comes first, although its consequences were detected earlier.
        began = min((failure.began for failure in others.failures), default=math.inf)
        # The code of its workers, which have ended with it.
        summary = merge([self._failure_of(host, text, _KILLED, began), others])
        return summary, (yield from self.decide(state, summary, now, Cause.NODE))

    def decide_unhealthy(
        self, state: JobState, host: str, now: FailureContext
    ) -> Routine[tuple[FailureSummary, Decision | None]]:
        """Decide after a node has excluded itself."""
        summary = self._failure_of(host, state.excluded[host], ExitCode.NODE_EXCLUDED)
        return summary, (yield from self.decide(state, summary, now, Cause.HEALTH))

    def _failure_of(
        self, host: str, text: str, code: int, latest: float = math.inf
    ) -> FailureSummary:
        now = min(self._membership.wall_clock(), latest)
        return FailureSummary((failure_of_node(host, text, code, now),))

    def unreviewed(self, state: JobState) -> Routine[list[str]]:
        """Return the excluded hosts that the policy has not been called for."""
        if not state.excluded:
            return []
        yield from self._read(state.round)
        history = self._history.latest()
        known = {host for decided in history for host in decided.decision.without}
        known |= {d.failure.host for d in history if d.failure.cause is Cause.HEALTH}
        return [host for host in state.excluded if host not in known]

    def _read(self, last: int) -> Routine[None]:
        """Read the decisions up to this round."""
        begin = max(self._known, last - self._max_history) + 1
        for low in range(begin, last + 1, _BATCH):
            rounds = range(low, min(low + _BATCH, last + 1))
            keys = [self._keys.restart(number) for number in rounds]
            values = yield MultiGet(keys)
            for number, key, value in zip(rounds, keys, values, strict=True):
                if value is None:
                    continue  # the round did not follow a failure, or the store lost the record
                try:
                    decided = _from_record(self._membership.codec.decode(key, value))
                except RecordError as error:
                    self._membership.rejections.note("a restart decision", error)
                else:
                    self._history.append(decided)
                    self._remember(number, decided)
        self._known = max(self._known, last)

    def _write(self, round_: int, decided: Decided) -> Routine[None]:
        key = self._keys.restart(round_)
        yield Set(key, self._membership.codec.encode(key, _to_record(decided)))
        self._history.append(decided)
        self._remember(round_, decided)
        self._known = round_

    def _remember(self, round_: int, decided: Decided) -> None:
        """Remember a decision, and as many before it as the policy receives."""
        decisions = self._memory.decisions
        decisions[round_] = decided.without_workers()
        if len(decisions) > self._max_history:
            del decisions[min(decisions)]

    def read(self, state: JobState) -> Routine[None]:
        """Read the decisions of earlier leaders, so that this node can bring them back."""
        if self._membership.identity.job.restart_policy is not None:
            yield from self._read(state.round)


def restore_decisions(membership: Membership) -> Routine[None]:
    """Write the restart decisions that this node knows to a store that has lost them."""
    keys, codec = membership.keys, membership.codec
    records = {
        (key := keys.restart(round_)): codec.encode(key, _to_record(decided))
        for round_, decided in membership.memory.decisions.items()
    }
    if records:
        yield MultiSet(records)


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


def _from_record(record: StoreRecord) -> Decided:
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
