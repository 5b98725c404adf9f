"""What a node reports to all others: its failures, its success, its departure."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from plaunch_membership import transitions
from plaunch_membership.failures import cut, early_ends_to_records, summarize
from plaunch_membership.node import HAS_STOPPED
from plaunch_membership.operations import Append, Routine
from plaunch_membership.records import MAX_NAME, MAX_REASON, RecordError
from plaunch_membership.state import JobPhase, JobState, host_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from plaunch_membership.failures import JobFailure
    from plaunch_membership.heartbeat import HeartbeatMonitor
    from plaunch_membership.job_lookup import JobLookup
    from plaunch_membership.membership import Membership
    from plaunch_membership.shared import Request

_log = logging.getLogger("plaunch")

_REPORT_TIMEOUT = 0.3  # seconds in which an agent may report failures of its own
_LINGER_INTERVAL = 1.0  # seconds between two reads of the departures
_MAX_NAMED = 16  # nodes
_UNNAMED = "another node, "  # begins the name of a node that is not known any more
_WARN_AFTER = 2.0  # seconds of waiting before the warning


class NodeReports:
    """Routines for the writer's thread. Each report is written once.

    Args:
        membership: this node's membership.
        heartbeat: announces at once that the node leaves.
        lookup: brings back the verdict if the store has lost it.
    """

    def __init__(
        self, membership: Membership, heartbeat: HeartbeatMonitor, lookup: JobLookup
    ) -> None:
        self._membership = membership
        self._lookup = lookup
        self._heartbeat = heartbeat
        self._settled: int | None = None  # the last round whose failures it has reported
        self._settle_at: tuple[int, float] | None = None  # the deadline for the agent's own report
        self._has_departed = False

    def reset(self) -> None:
        """Forget all reports. Called when the node enters another job."""
        self._settled = self._settle_at = None
        self._has_departed = False

    @property
    def alarm(self) -> float | None:
        """When `due` returns a request at the latest, on the membership's clock; None: never."""
        return None if self._settle_at is None else self._settle_at[1]

    def are_expected(self, state: JobState) -> bool:
        """Whether the other nodes wait for a report of this node: its failures or its departure."""
        place = self._membership.part.place
        return (state.phase is JobPhase.OVER and not self._has_departed) or (
            state.phase is JobPhase.SETTLING
            and place is not None
            and place.round == state.round
            and self._settled != state.round
        )

    def due(self, state: JobState) -> Request | None:
        """Return the report that is due now; None while the agent may still make it."""
        if state.phase is JobPhase.OVER:
            return self._depart
        now = self._membership.clock()
        if self._settle_at is None or self._settle_at[0] != state.round:
            self._settle_at = (state.round, now + _REPORT_TIMEOUT)
        # An agent that has requested the next round reports nothing more about this one.
        if self._membership.part.is_active and now < self._settle_at[1]:
            return None
        return lambda: self._settle(state.round, (), is_final=False)

    def report(
        self, round_: int, failures: Sequence[JobFailure], *, is_final: bool
    ) -> Routine[None]:
        """Report the failures of this node's workers in a round."""
        yield from self._settle(round_, failures, is_final=is_final)
        what = failures[0].summary if failures else "workers failed"
        yield from self._membership.change(
            lambda state: transitions.fail(state, self._membership.me, what, from_round=round_)
        )

    def _settle(
        self, round_: int, failures: Iterable[JobFailure], *, is_final: bool
    ) -> Routine[None]:
        """Write the node's failures in a round, unless that was done."""
        if self._settled == round_:
            return
        self._settled = round_
        summary = summarize(failures).to_record()
        log = self._membership.keys.settled(round_)
        report = {
            "node": self._membership.me,
            "at": self._membership.wall_clock(),
            "is_final": is_final,
            "succeeded": early_ends_to_records(self._membership.part.succeeded),
        }
        try:
            value = self._membership.codec.encode(log, {**report, **summary})
        except RecordError as error:
            _log.warning(
                "the report of failures is too large; it is written without them: %s", error
            )
            value = self._membership.codec.encode(log, {**report, "failures": []})
        yield Append(log, value)

    def succeed(self, round_: int, nodes: int) -> Routine[None]:
        """Report that this node's workers have succeeded. The last node to do so ends the job."""
        ticket = yield from self._append(self._membership.keys.done(round_))
        if ticket < nodes:
            return
        if len((yield from self._membership.done_nodes(round_))) < nodes:
            return  # a repeated operation took a ticket twice; another node is still to report
        yield from self._membership.end_succeeded(round_)

    def leave(self, reason: str) -> Routine[None]:
        """Leave, as the workers of this node have ended."""
        state = self._membership.state
        if state is not None and not state.has_ended:
            yield from self.end_stop()
        yield from self.announce_leave(reason)

    def end_stop(self) -> Routine[None]:
        """Report that the workers of this node have ended, and that it does not rejoin; once.

        The next round waits for that. A node that was in no round had no workers, and one that has
        joined the next round has none.
        """
        membership, part = self._membership, self._membership.part
        place = part.place
        if place is None or (part.joined is not None and part.joined[0] > place.round):
            return
        log = membership.keys.joined(place.round + 1)
        with membership.lock:
            part.joined = (place.round + 1, 0)
        record = {"node": membership.me, HAS_STOPPED: True}
        yield Append(log, membership.codec.encode(log, record))

    def announce_leave(self, reason: str, *, is_excluded: bool = False) -> Routine[None]:
        """Announce that this node leaves; the second call does nothing.

        If it `is_excluded`, its host is excluded from the job, unless all nodes are on that host.
        """
        membership = self._membership
        with membership.lock:
            if membership.part.leaving:
                return
            membership.part.leaving = cut(reason, MAX_REASON) or "for no reason given"
            membership.part.wants_round = False
        yield from self._heartbeat.beat()
        excluded = ""
        if is_excluded and membership.state is not None:
            members = yield from membership.members(membership.state)
            if any(member.host != membership.identity.host for member in members.values()):
                excluded = membership.identity.host

        def make(state: JobState) -> JobState | None:
            # Evaluated for each state: meanwhile the others may have formed a round without this
            # node. A node whose workers have succeeded leaves without ending the round.
            is_member = membership.is_member(state) and not membership.part.has_succeeded
            return transitions.leave(
                state, membership.me, reason, is_member=is_member, excluded=excluded
            )

        yield from membership.change(make)

    def _depart(self) -> Routine[None]:
        """Record that this node knows the verdict and leaves."""
        self._has_departed = True
        yield from self._append(self._membership.keys.departures)

    def _append(self, log: str) -> Routine[int]:
        """Append this node's name to a log; returns the ticket."""
        value = self._membership.codec.encode(log, {"node": self._membership.me})
        ticket: int = yield Append(log, value)
        return ticket

    def linger(self, stays: Callable[[float, Collection[str]], bool]) -> Routine[None]:
        """Wait until all nodes of the last round, and all waiting nodes, have left.

        Args:
            stays: called with the seconds since the start and the nodes that are still expected;
                returns False to stop waiting. Some of these nodes may count as lost because they
                are suspended.
        """
        membership = self._membership
        began = membership.clock()
        has_warned = False
        state = membership.state
        verdict = membership.news.verdict
        if state is None or state.phase is not JobPhase.OVER or verdict is None:
            return
        if (yield from self._lookup.is_lost()):
            yield from self._lookup.restore(verdict)
            # Their names are lost, but not their number.
            expected = {f"{_UNNAMED}{number}" for number in range(1, membership.memory.nodes)}
        else:
            expected = set((yield from membership.members(state)))
            for round_ in {state.round, state.next_round}:
                expected.update((yield from membership.joined_nodes(round_)))
        departed: set[str] = set()
        waiting = expected - {membership.me} - set(membership.peers.gone)
        log = membership.log_reader(membership.keys.departures)
        # A request in the queue means that this node must leave at once.
        while waiting and stays(membership.clock() - began, waiting) and not membership.requests:
            if (yield from self._lookup.is_lost()):
                yield from self._lookup.restore(verdict)
                log = membership.log_reader(membership.keys.departures)
            for _, key, value in (yield from log.read()):
                try:
                    node = membership.codec.decode(key, value).text("node", max_len=MAX_NAME)
                except RecordError as error:
                    membership.rejections.note("a departure", error)
                    continue
                if node not in departed:  # else its record has two tickets
                    departed.add(node)
                    unnamed = (name for name in waiting if name.startswith(_UNNAMED))
                    waiting.discard(node if node in waiting else next(unnamed, ""))
            if waiting:
                if not has_warned and membership.clock() - began >= _WARN_AFTER:
                    has_warned = True
                    _log.warning(
                        "this node hosts the store of job %r and stays for up to %g s, until all "
                        "nodes know how the job ended: %s",
                        membership.identity.run_id,
                        membership.timing.close_timeout,
                        ", ".join(sorted(map(host_of, waiting))[:_MAX_NAMED]),
                    )
                yield from log.wait(min(_LINGER_INTERVAL, membership.timing.keep_alive_interval))
