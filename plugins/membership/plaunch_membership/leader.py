"""The leader's work in addition to that of a member: it completes rounds, and settles failures.

Only the leader looks at all nodes, once for each round. Whatever it decides becomes true with the
next state of the job, which only one writer can write; if it dies before that, it has decided
nothing, and the next leader starts again.
"""

from __future__ import annotations

import logging
import math
from functools import partial
from typing import TYPE_CHECKING

from plaunch.errors import RendezvousStateError
from plaunch.rendezvous import world_ranks

from plaunch_membership import early_ends, transitions
from plaunch_membership.bounds import MAX_NAME
from plaunch_membership.failures import NO_FAILURES, FailureSummary, merge
from plaunch_membership.gathering import Gathering, time_left
from plaunch_membership.keys import NODES_OF_A_PART
from plaunch_membership.operations import MultiSet, Routine, Set, Sleep
from plaunch_membership.placement import place, with_claims
from plaunch_membership.records import RecordError
from plaunch_membership.restarts import Circumstances, Restarts
from plaunch_membership.spares import Spares
from plaunch_membership.state import JobPhase, JobState, World, describe_departure
from plaunch_membership.tidying import Tidying

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from plaunch_membership.membership import Membership
    from plaunch_membership.node import Member, NodeRecord
    from plaunch_membership.placement import Refusal

_log = logging.getLogger("plaunch")

_LOST_LOOK = 0.5  # seconds between two looks at who is lost, while failures are settled
_REPORTS_AT_ONCE = 8  # that are read in one operation; each has up to 700 kB


class Leader:
    """The third routine of the node that leads."""

    def __init__(self, ours: Membership) -> None:
        self._ours = ours
        self._incarnation, self._peers = ours.job.incarnation, ours.peers
        self._members: dict[str, Member] = {}
        self._members_of: World | None = None
        self._spares = Spares(ours)
        self._tidying = Tidying(ours)
        self._restarts = Restarts(ours)
        self._formed_at = -math.inf  # when this leader has formed the round that runs

    def lead(self) -> Routine[None]:
        """Lead for as long as this node is the leader.

        Raises:
            RendezvousStateError: the store holds something else.
        """
        while (state := self._leading()) is not None:
            yield from self._know_members(state)
            if state.world is not None and self._knows_nobody():
                if len(self._missing(self._members)) == len(self._members):
                    yield from self._replace()
                else:
                    yield Sleep(self._ours.timing.keep_alive_interval)
            elif state.phase is JobPhase.FORMING:
                yield from self._gather(state)
            elif state.phase is JobPhase.SETTLING:
                yield from self._settle(state)
            else:
                yield from self._guard(state)

    def _leading(self, since: JobState | None = None) -> JobState | None:
        """The present state, if this node leads, and is still busy with what `since` began."""
        ours, state = self._ours, self._ours.state
        if (
            state is None
            or ours.job.incarnation != self._incarnation
            or state.leader != ours.me
            or state.has_ended
            or ours.part.leaving
        ):
            return None
        if since is not None and (state.phase, state.round, state.term) != (
            since.phase,
            since.round,
            since.term,
        ):
            return None
        return state

    def _change(self, make: Callable[[JobState], JobState | None]) -> Routine[JobState | None]:
        """Bring about the next state of the incarnation that this routine is for."""
        return (yield from self._ours.change(make, self._incarnation))

    def _know_members(self, state: JobState) -> Routine[None]:
        if self._members_of != state.world:
            self._members = yield from self._ours.members(state)
            self._members_of = state.world
            self._peers.watched = frozenset(self._members)
            self._spares.begin(state.next_round)

    def _missing(self, nodes: Collection[str]) -> dict[str, tuple[str, str]]:
        """Those of `nodes` that are not there any more: left or lost, and why."""
        gone, lost = self._peers.gone, self._peers.lost
        return {node: ("lost", lost[node]) for node in nodes if node in lost} | {
            node: ("left", gone[node]) for node in nodes if node in gone
        }

    # --- a job that nobody knows any more ---------------------------------------------------------

    def _knows_nobody(self) -> bool:
        """Whether this node came later, and has seen nobody alive of those who were there before.

        It decides nothing until it knows whether there is anybody left: a job that everybody has
        left is not continued, with all its ranks and attempts, by strangers.
        """
        ours = self._ours
        return (
            bool(self._members)
            and ours.me not in self._members
            and not any(node in self._peers.moving for node in self._members)
        )

    def _replace(self) -> Routine[None]:
        ours = self._ours
        reason = (
            f"the {len(self._members)} nodes that knew it are gone: "
            f"{', '.join(sorted({member.host for member in self._members.values()})[:8])}"
        )
        yield from self._change(lambda state: transitions.replace_job(state, reason, by=ours.me))
        yield Sleep(ours.timing.keep_alive_interval)

    # --- forming ----------------------------------------------------------------------------------

    def _gather(self, forming: JobState) -> Routine[None]:
        """Wait until the round is complete, and write it down."""
        ours, identity, timing = self._ours, self._ours.identity, self._ours.timing
        log = ours.log_reader(ours.keys.joined(forming.round))
        found: dict[int, NodeRecord] = {}
        since: float | None = None
        begins = ours.clock() + forming.pause
        while self._leading(forming) is not None:
            yield from self._ask_about_excluded()
            fresh = yield from log.read()
            if log.is_forgotten:
                with ours.lock:
                    if self._leading(forming) is not None:
                        ours.lose_job("the store has lost the list of nodes")
                yield Sleep(timing.keep_alive_interval)
                return
            for ticket, key, value in fresh:
                node = ours.read_node(ticket, key, value)
                if node is not None:
                    found[ticket] = node
            nodes = {node.node: node for _, node in sorted(found.items())}
            if fresh:
                self._peers.watched |= set(nodes)
            excluded = () if ours.state is None else ours.state.excluded
            out = {*self._missing({*nodes, *self._members})}
            out |= {name for name, node in nodes.items() if node.host in excluded}
            out |= {name for name, node in self._members.items() if node.host in excluded}
            present = {name: node for name, node in nodes.items() if name not in out}
            survivors = self._members.keys() - out
            awaited = [self._members[name].stop_timeout for name in survivors - set(present)]
            now = ours.clock()
            if len(present) < identity.min_nodes:
                since = None
            elif since is None:
                since = now
            left = time_left(
                Gathering(
                    len(present), len(awaited), max(awaited, default=0.0), bool(survivors), since
                ),
                min_nodes=identity.min_nodes,
                max_nodes=identity.max_nodes,
                last_call=timing.last_call_timeout,
                now=now,
            )
            if left is not None:
                left = max(left, begins - now)
            if left == 0.0:
                ranks = {name: rank for rank, name in enumerate(self._members)}
                claims = with_claims(list(present.values()), ranks if forming.world else None)
                placement = place(claims, identity.max_nodes)
                for refusal in placement.refused:
                    del found[refusal.node.ticket]
                    yield from self._refuse(refusal)
                if len(placement.members) >= identity.min_nodes:
                    yield from self._form(forming, placement.members, log.count)
                    return
                continue
            patience = timing.keep_alive_interval if left is None else left
            yield from log.wait(min(patience, timing.keep_alive_interval))

    def _form(self, forming: JobState, members: Sequence[NodeRecord], count: int) -> Routine[None]:
        """Write down a round: one slot for each ticket, the world, and then the state."""
        ours = self._ours
        keys, round_, term = ours.keys, forming.round, forming.term
        slots: dict[int, Mapping[str, object]] = {
            ticket: {"rank": -1} for ticket in range(1, count + 1)
        }
        ranks = world_ranks((node.role, node.local_world_size) for node in members)
        for rank, (node, world_rank) in enumerate(zip(members, ranks, strict=True)):
            slots[node.ticket] = {
                "rank": rank,
                "first": world_rank.first_global,
                "size": world_rank.world_size,
                "role_first": world_rank.first_role,
                "role_size": world_rank.role_world_size,
            }
        described = [
            {"node": node.node, "host": node.host, "stop_timeout": node.stop_timeout}
            for node in members
        ]
        for part, begin in enumerate(range(0, len(members), NODES_OF_A_PART)):
            key = keys.world(round_, term, part)
            nodes = described[begin : begin + NODES_OF_A_PART]
            yield Set(key, ours.codec.encode(key, {"nodes": nodes}))
        yield MultiSet(
            {
                (key := keys.slot(round_, term, ticket)): ours.codec.encode(key, slot)
                for ticket, slot in slots.items()
            }
        )
        world = World(round_, term, len(members), count, members[0].address, members[0].port)
        formed = yield from self._change(lambda state: transitions.form(state, world, by=ours.me))
        if formed is not None:
            self._formed_at = ours.clock()
            _log.info(
                "round %d of job %r: %s",
                round_,
                ours.identity.run_id,
                ", ".join(f"{rank}: {node.host}" for rank, node in enumerate(members[:16]))
                + (f" and {len(members) - 16} more" if len(members) > 16 else ""),
            )
        yield from self._await_state(forming)

    def _refuse(self, refusal: Refusal[NodeRecord]) -> Routine[None]:
        """Tell a node that it cannot take part."""
        ours = self._ours
        _log.warning("%s", refusal.reason)
        node, reason = refusal.node.node, refusal.reason
        yield from self._change(lambda state: transitions.refuse(state, node, reason, by=ours.me))

    def _await_state(self, before: JobState) -> Routine[None]:
        """Let the watcher see the state that was just written, or that somebody else was faster."""
        while self._leading(before) is not None:
            yield Sleep(self._ours.timing.keep_alive_interval)

    # --- settling ---------------------------------------------------------------------------------

    def _settle(self, settling: JobState) -> Routine[None]:
        """Hear from every member who failed on it; then decide what follows."""
        ours = self._ours
        log = ours.log_reader(ours.keys.settled(settling.round))
        summary, said, unread, is_final = NO_FAILURES, set[str](), 0, False
        ended: dict[str, dict[int, float]] = {}
        while self._leading(settling) is not None:
            for _, key, value in (yield from log.read(_REPORTS_AT_ONCE)):
                try:
                    record = ours.codec.decode(key, value)
                    node = record.text("node", max_len=MAX_NAME)
                    is_final = record.flag("is_final") or is_final
                    if node not in said:
                        summary = merge([summary, FailureSummary.from_record(record)])
                        ended[node] = early_ends.from_record(record)
                except RecordError as error:
                    ours.doubts.note("a report of failures", error)
                    unread += 1
                else:
                    said.add(node)
            missing = self._missing(self._members)
            silent = sum(node not in said and node not in missing for node in self._members)
            # Whoever has said something that cannot be read will not say it again.
            if silent <= unread:
                summary = early_ends.with_early_ends(summary, self._members, ended)
                yield from self._decide(settling, summary, missing, is_final=is_final)
                return
            # The heartbeats of a lost node are looked at meanwhile, which may be rare.
            yield from log.wait(min(ours.timing.keep_alive_interval, _LOST_LOOK))

    def _decide(
        self,
        settling: JobState,
        summary: FailureSummary,
        missing: Mapping[str, tuple[str, str]],
        *,
        is_final: bool,
    ) -> Routine[None]:
        ours = self._ours
        if missing and not is_final:
            # Workers fail when their peers vanish; that is no fault of theirs.
            yield from self._lose(settling, missing, summary)
        else:
            decision = None
            if not is_final:
                now = yield from self._now()
                decision = yield from self._restarts.decide(settling, summary, now)
            yield from self._change(
                lambda state: transitions.settle_failed(
                    state,
                    summary,
                    max_restarts=ours.identity.job.max_restarts,
                    by=ours.me,
                    is_final=is_final,
                    now=ours.wall_clock(),
                    decision=decision,
                )
            )
            yield from self._await_state(settling)

    def _lose(
        self,
        before: JobState,
        missing: Mapping[str, tuple[str, str]],
        summary: FailureSummary = NO_FAILURES,
    ) -> Routine[None]:
        """Go on without a member that has left or was lost, unless the restart policy ends the job.

        It is not asked about nodes that leave.
        """
        ours = self._ours
        index, node = next(one for one in enumerate(self._members) if one[1] in missing)
        kind, reason = missing[node]
        decision = None
        if kind == "lost":
            now = yield from self._now()
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
                by=ours.me,
                from_round=before.round,
                index=index,
                summary=summary,
                now=ours.wall_clock(),
                decision=decision,
            )
        )
        yield from self._await_state(before)

    def _ask_about_excluded(self) -> Routine[None]:
        """Let the restart policy know which nodes have gone because they are not healthy."""
        ours = self._ours
        state = ours.state
        if state is None:
            return
        for host in (yield from self._restarts.unheard(state)):
            now = yield from self._now()
            summary, decision = yield from self._restarts.decide_unhealthy(state, host, now)
            if decision is not None and not decision.is_restart:
                give_up = partial(transitions.give_up, summary=summary, decision=decision)
                yield from self._change(partial(give_up, by=ours.me, now=ours.wall_clock()))

    def _now(self) -> Routine[Circumstances]:
        yield from self._spares.look()
        hosts = {node: member.host for node, member in self._members.items()} | self._spares.hosts
        gone = self._missing(hosts)
        return Circumstances(
            self._ours.clock() - self._formed_at,
            tuple(host for node, host in hosts.items() if node not in gone),
        )

    # --- running ----------------------------------------------------------------------------------

    def _guard(self, running: JobState) -> Routine[None]:
        """End the round when a member is gone; find the verdict if nobody else does."""
        ours = self._ours
        missing = self._missing(self._members)
        done: set[str] = set()
        try:
            done = yield from ours.done_nodes(running.round)
        except RendezvousStateError as error:
            # Whoever is lost must be noticed all the same; the next round has its own counter.
            ours.doubts.note("who is done", error)
        if self._members and done >= set(self._members):
            yield from ours.find_success(running.round, self._incarnation)
        needed = {node: missing[node] for node in missing.keys() - done}
        if needed:
            yield from self._lose(running, needed)
            return
        yield from self._spares.look()
        yield from self._tidying.tidy(running)
        yield Sleep(ours.timing.keep_alive_interval)
