"""The leader's tasks beside those of a member: completing rounds and handling failures.

Only the leader reads the records of all nodes, once per round. Its decisions take effect with the
next state of the job, which only one node can write. If the leader dies before that, its decision
is lost, and the next leader starts again.
"""

from __future__ import annotations

import logging
import math
from functools import partial
from typing import TYPE_CHECKING

from plaunch_membership import transitions
from plaunch_membership.arrival_summary import ArrivalReporter
from plaunch_membership.collected_reports import CollectedReports
from plaunch_membership.failures import NO_FAILURES, FailureSummary
from plaunch_membership.joined_nodes import JoinedNodes
from plaunch_membership.operations import Routine, Sleep
from plaunch_membership.placement import place, with_claims
from plaunch_membership.restarts import FailureContext, RestartDecisions
from plaunch_membership.returned import ReturnedNodes
from plaunch_membership.round_cleanup import RoundCleanup
from plaunch_membership.round_records import write_round
from plaunch_membership.state import JobEventKind, JobPhase, JobState, World, describe_departure
from plaunch_membership.stopping import StoppingNodes
from plaunch_membership.success_reports import SuccessReports

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from plaunch_membership.membership import Membership
    from plaunch_membership.node import Member, NodeRecord
    from plaunch_membership.placement import Refusal

_log = logging.getLogger("plaunch")

_LOST_CHECK_INTERVAL = 0.5  # seconds between two checks for lost nodes while reports are collected


class LeaderRoutine:
    """The routine of the leader: forms rounds, detects lost members, decides after failures."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._me = membership.me
        self._incarnation, self._peers = membership.job.incarnation, membership.peers
        self._members: dict[str, Member] = {}
        self._members_of: World | None = None
        self._spares: dict[str, str] = {}  # hosts of the nodes that wait for a place, by node
        self._waiting = membership.log_reader(membership.keys.joined(0))
        self._cleanup = RoundCleanup(membership)
        self._successes = SuccessReports(membership)
        self._restarts = RestartDecisions(membership)
        self._stopping = StoppingNodes(membership)
        self._returned = ReturnedNodes(membership)
        self._formed_at = -math.inf  # when this leader formed the current round
        self._inherited: int | None = None  # the round that another leader has begun to form

    def lead(self) -> Routine[None]:
        """Lead while this node is the leader.

        Raises:
            RendezvousStateError: the store holds an invalid record.
        """
        state = self._leading()
        if state is not None and state.term and state.phase is JobPhase.FORMING:
            self._inherited = state.round
        while (state := self._leading()) is not None:
            yield from self._update_members(state)
            if not state.former_nodes:
                yield from self._restarts.read(state)
            if state.world is not None and self._has_no_survivor():
                if len(self._peers.missing(self._members)) == len(self._members):
                    yield from self._replace(state)
                else:
                    yield from self._membership.find_alive(self._members)
                    if self._has_no_survivor():
                        yield Sleep(self._membership.timing.keep_alive_interval)
            elif state.phase is JobPhase.FORMING:
                yield from self._gather(state)
            elif state.phase is JobPhase.SETTLING:
                yield from self._settle(state)
            else:
                yield from self._watch(state)

    def _leading(self, since: JobState | None = None) -> JobState | None:
        """Return the state if this node leads; with `since`, only while its stage is the same."""
        membership, state = self._membership, self._membership.state
        if (
            state is None
            or membership.job.incarnation != self._incarnation
            or state.leader != self._me
            or state.has_ended
            or membership.part.leaving
        ):
            return None
        if since is not None and state.stage != since.stage:
            return None
        return state

    def _change(self, make: Callable[[JobState], JobState | None]) -> Routine[JobState | None]:
        """Write the next state of this routine's incarnation."""
        return (yield from self._membership.change(make, self._incarnation))

    def _update_members(self, state: JobState) -> Routine[None]:
        if self._members_of != state.world:
            self._members = yield from self._membership.members(state)
            self._members_of = state.world
            self._peers.watch(self._members)
            self._spares = {}
            self._waiting = self._membership.log_reader(
                self._membership.keys.joined(state.next_round)
            )

    def _watch_spares(self) -> Routine[None]:
        """Watch the nodes that wait for a place, so that none is given to a dead one."""
        found = self._membership.read_nodes((yield from self._waiting.read()))
        self._spares |= {name: node.host for name, node in found.items()}
        self._peers.watch_also(found)  # once: it copies all nodes

    # --- a job without its members ----------------------------------------------------------------

    def _has_no_survivor(self) -> bool:
        """Whether this node joined later and has not seen any member of the last round alive.

        It then waits until it knows whether any member is left. A job that all members have left is
        not continued by other nodes with its ranks and attempts.
        """
        return bool(self._members) and {self._me, *self._peers.moving}.isdisjoint(self._members)

    def _replace(self, state: JobState) -> Routine[None]:
        """Let the job start again, once the workers of its last round have ended."""
        joined = yield from self._membership.joined_nodes(state.next_round)
        if self._stopping.time_left(self._members, joined) <= 0:
            reason = (
                f"the {len(self._members)} nodes that knew it are gone: "
                f"{', '.join(sorted({member.host for member in self._members.values()})[:8])}"
            )
            yield from self._change(partial(transitions.replace_job, reason=reason, by=self._me))
        yield Sleep(self._membership.timing.keep_alive_interval)

    # --- forming ----------------------------------------------------------------------------------

    def _gather(self, forming: JobState) -> Routine[None]:
        """Wait until the round is complete, and write it."""
        membership = self._membership
        identity, timing = membership.identity, membership.timing
        joined = JoinedNodes(membership, forming.round)
        members = dict(self._members)  # of the last round, also of one that the store has lost
        unknown: frozenset[str] | None = None  # nodes that joined while another one led
        since: float | None = None
        begins = membership.clock() + forming.pause
        report = ArrivalReporter(membership, forming.round)
        while self._leading(forming) is not None:
            yield from joined.read()
            if joined.has_shrunk:
                with membership.lock:
                    if self._leading(forming) is not None:
                        membership.lose_job("the store has lost the list of nodes")
                yield Sleep(timing.keep_alive_interval)
                return
            nodes = joined.nodes
            # Behind the nodes that have joined: each of them has returned before.
            members |= yield from self._returned.read(forming)
            away = self._returned.time_left(forming, len(members))
            if not away:  # the others may know decisions of the restart policy
                yield from self._review_excluded()
            if unknown is None:
                unknown = frozenset(nodes if forming.round == self._inherited else ())
                yield from membership.find_alive(unknown)
            out = self._find_out(nodes, members)
            unseen = unknown - self._peers.moving - out - {self._me}
            present = {name: node for name, node in nodes.items() if name not in out | unseen}
            survivors = members.keys() - out
            awaited = [members[name].stop_timeout for name in survivors - set(present)]
            now = membership.clock()
            needed = max(identity.min_nodes - len(present), len(awaited))
            if len(present) < identity.min_nodes:
                since, left = None, timing.keep_alive_interval
            else:
                since = now if since is None else since
                # Forming it without survivors that may still be stopping their workers would cause
                # another round at once.
                is_full = len(present) >= identity.max_nodes
                away = 0.0 if is_full and not self._returned.are_needed(forming) else away
                is_joined = is_full or (bool(survivors) and not unseen)
                is_complete = is_joined and not (away or awaited)
                wait = 0.0 if is_complete else max([timing.last_call_timeout, *awaited])
                to_stop = self._stopping.time_left(self._members, nodes)
                left = max(max(since + wait, begins) - now, to_stop, away)
                needed = needed if to_stop <= 0 else 1
            if left <= 0:
                if (yield from self._try_to_form(forming, list(present.values()), joined)):
                    return
                continue
            stopping = self._stopping.find(self._members, nodes)
            yield from report.write(forming, present, self._members, stopping)
            pause = min(left, timing.keep_alive_interval, report.pause)
            yield from joined.wait(pause, needed)

    def _find_out(self, nodes: Mapping[str, NodeRecord], members: Mapping[str, Member]) -> set[str]:
        """Return those that have left or were lost, or whose hosts are excluded."""
        state = self._membership.state
        excluded = () if state is None else state.excluded
        out = {*self._peers.missing({*nodes, *members})}
        out |= {name for name, node in nodes.items() if node.host in excluded}
        return out | {name for name, member in members.items() if member.host in excluded}

    def _try_to_form(
        self,
        forming: JobState,
        nodes: Sequence[NodeRecord],
        joined: JoinedNodes,
    ) -> Routine[bool]:
        """Write the round, unless too few are left without the refused nodes."""
        identity = self._membership.identity
        ranks = {name: rank for rank, name in enumerate(self._members)}
        claims = with_claims(nodes, ranks if forming.world else None)
        placement = place(claims, identity.max_nodes)
        for refusal in placement.refused:
            del joined.nodes[refusal.node.node]
            yield from self._refuse(refusal)
        if len(placement.members) < identity.min_nodes:
            return False
        self._stopping.give_up(self._members, forming.round)
        yield from self._form(forming, placement.members)
        return True

    def _form(self, forming: JobState, members: Sequence[NodeRecord]) -> Routine[None]:
        """Write a round: the world, a slot for each of its nodes, and then the state."""
        membership = self._membership
        world = yield from write_round(membership, forming, members)
        formed = yield from self._change(lambda state: transitions.form(state, world, by=self._me))
        if formed is not None:
            self._formed_at = membership.clock()
            _log.info(
                "round %d of job %r: %s",
                world.round,
                membership.identity.run_id,
                ", ".join(f"{rank}: {node.host}" for rank, node in enumerate(members[:16]))
                + (f" and {len(members) - 16} more" if len(members) > 16 else ""),
            )
        yield from self._await_state(forming)

    def _refuse(self, refusal: Refusal[NodeRecord]) -> Routine[None]:
        """Write that a node is refused."""
        _log.warning("%s", refusal.reason)
        node, reason = refusal.node.node, refusal.reason
        yield from self._change(lambda state: transitions.refuse(state, node, reason, by=self._me))

    def _await_state(self, before: JobState) -> Routine[None]:
        """Wait until the watcher has read the new state, which another node may have written."""
        while self._leading(before) is not None:
            yield Sleep(self._membership.timing.keep_alive_interval)

    # --- settling ---------------------------------------------------------------------------------

    def _settle(self, settling: JobState) -> Routine[None]:
        """Collect the failures of every member, then decide."""
        reports = CollectedReports(self._membership, settling.round)
        # To look at all nodes after each report would take the square of their number.
        needed, look_at = 0, -math.inf
        while self._leading(settling) is not None:
            yield from reports.read()
            now = self._membership.clock()
            if reports.count >= needed or now >= look_at:
                missing = self._peers.missing(self._members)
                awaited = reports.count_awaited(self._members.keys() - missing.keys())
                if not awaited:
                    summary = reports.summary(self._members)
                    yield from self._decide(settling, summary, missing, is_final=reports.is_final)
                    return
                needed, look_at = reports.count + awaited, now + _LOST_CHECK_INTERVAL
            # Lost nodes are detected meanwhile, at an interval that may be long.
            interval = self._membership.timing.keep_alive_interval
            yield from reports.wait(min(interval, _LOST_CHECK_INTERVAL))

    def _decide(
        self,
        settling: JobState,
        summary: FailureSummary,
        missing: Mapping[str, tuple[JobEventKind, str]],
        *,
        is_final: bool,
    ) -> Routine[None]:
        membership = self._membership
        if missing and not is_final:
            # Workers fail when their peers disappear; such failures are not charged to them.
            yield from self._lose(settling, missing, summary)
        else:
            decision = None
            if not is_final:
                now = yield from self._context()
                decision = yield from self._restarts.decide(settling, summary, now)
            yield from self._change(
                lambda state: transitions.settle_failed(
                    state,
                    summary,
                    max_restarts=membership.identity.settings.max_restarts,
                    by=self._me,
                    is_final=is_final,
                    now=membership.wall_clock(),
                    decision=decision,
                )
            )
            yield from self._await_state(settling)

    def _lose(
        self,
        before: JobState,
        missing: Mapping[str, tuple[JobEventKind, str]],
        summary: FailureSummary = NO_FAILURES,
    ) -> Routine[None]:
        """Continue without a member that has left or was lost, unless the policy ends the job.

        The restart policy is not called for nodes that leave.
        """
        membership = self._membership
        index, node = next(one for one in enumerate(self._members) if one[1] in missing)
        kind, reason = missing[node]
        decision = None
        if kind is JobEventKind.LOST:
            now = yield from self._context()
            summary, decision = yield from self._restarts.decide_lost(
                before,
                self._members[node].host,
                describe_departure(kind, node, reason, index),
                summary,
                now,
            )
        yield from self._change(
            lambda state: transitions.lose(
                state,
                kind,
                node,
                reason,
                by=self._me,
                from_round=before.round,
                index=index,
                summary=summary,
                now=membership.wall_clock(),
                decision=decision,
            )
        )
        yield from self._await_state(before)

    def _review_excluded(self) -> Routine[None]:
        """Call the restart policy for nodes that have excluded themselves as unhealthy."""
        membership = self._membership
        state = membership.state
        if state is None:
            return
        for host in (yield from self._restarts.unreviewed(state)):
            now = yield from self._context()
            summary, decision = yield from self._restarts.decide_unhealthy(state, host, now)
            if decision is not None and not decision.is_restart:
                give_up = partial(transitions.give_up, summary=summary, decision=decision)
                yield from self._change(partial(give_up, by=self._me, now=membership.wall_clock()))

    def _context(self) -> Routine[FailureContext]:
        yield from self._watch_spares()
        hosts = {node: member.host for node, member in self._members.items()} | self._spares
        gone = self._peers.missing(hosts)
        return FailureContext(
            self._membership.clock() - self._formed_at,
            tuple(host for node, host in hosts.items() if node not in gone),
        )

    # --- running ----------------------------------------------------------------------------------

    def _watch(self, running: JobState) -> Routine[None]:
        """End the round when a member is gone; end the job when all have succeeded."""
        membership = self._membership
        missing = self._peers.missing(self._members)
        done = yield from self._successes.read(running, self._members)
        needed = {node: missing[node] for node in missing.keys() - done}
        if needed:
            yield from self._lose(running, needed)
            return
        yield from self._watch_spares()
        yield from self._cleanup.run(running)
        yield Sleep(membership.timing.keep_alive_interval)
