"""The state of a job, as its nodes agree on it, and all the ways in which it changes.

Each state has a version and is written once; whoever writes version n+1 has seen version n. So all
nodes go through the same states in the same order, and no two of them can disagree about what
happened. A function here takes a state and returns its successor, or None if what was wanted is
not the case any more, because somebody else was faster.
"""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from plaunch.errors import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousGracefulExitError,
)
from plaunch.rendezvous.failures import Told, cut
from plaunch.rendezvous.job import Verdict
from plaunch.rendezvous.records import MAX_NAME, MAX_REASON
from plaunch.rendezvous.roll import MAX_TICKETS

if TYPE_CHECKING:
    from plaunch.rendezvous.records import Record

_MAX_WORD = 40  # characters of a kind or an outcome
_MAX_WRITER = MAX_NAME + 40  # a node, and the number of what it has written


class Phase(enum.Enum):
    """What the job is busy with."""

    FORMING = "forming"  # nodes arrive, or come back; `round` is the one to be formed
    RUNNING = "running"
    SETTLING = "settling"  # workers failed; it is to be found out who else's, and what follows
    OVER = "over"  # there is a verdict
    REPLACED = "replaced"  # everybody who knew this job is gone; it begins anew elsewhere


@dataclass(frozen=True)
class Event:
    """What led to a state.

    Args:
        kind: one word of `KINDS`.
        node: the node that it is about.
        reason: why, in words.
        by: who wrote it; no two writers write the same, not even those of one node.
        signum: the signal of a notice.
    """

    kind: str
    node: str = ""
    reason: str = ""
    by: str = ""
    signum: int = 0


KINDS = frozenset(
    {
        "created",
        "led",  # another node leads from now on
        "arrived",
        "left",
        "lost",
        "failed",
        "requested",  # a node asks for another round
        "refused",
        "restarted",
        "recalled",  # a node knows of more attempts, from before the store lost the job
        "formed",
        "notice",
        "ended",
        "replaced",
    }
)


@dataclass(frozen=True)
class World:
    """The last round that was formed.

    Args:
        round: its number.
        term: the leader's term in which it was formed; with the round, the name of its records.
        nodes: how many nodes are in it.
        roll: how many tickets of the round were looked at; a later one is not in it.
        master_addr: where the workers' store is.
        master_port: its port.
    """

    round: int
    term: int
    nodes: int
    roll: int
    master_addr: str
    master_port: int


@dataclass(frozen=True)
class State:
    """One state of a job.

    Args:
        version: its number.
        phase: what the job is busy with.
        round: the round that is being formed, or the one that was formed last.
        attempt: how many restarts were used.
        leader: the node that forms rounds and watches the others; empty if somebody must take over.
        term: how many leaders there were before.
        event: what led to this state.
        world: the last round that was formed, if there was one.
        reason: why there is another round, in one sentence.
        verdict: how the job ended.
    """

    version: int
    phase: Phase
    round: int
    attempt: int
    leader: str
    term: int
    event: Event
    world: World | None = None
    reason: str = ""
    verdict: Verdict | None = None

    @property
    def next_round(self) -> int:
        """The round that a node joins which wants to take part."""
        return self.round if self.phase is Phase.FORMING else self.round + 1

    def to_record(self) -> dict[str, object]:
        """The fields of the record that holds it."""
        record: dict[str, object] = {
            "version": self.version,
            "phase": self.phase.value,
            "round": self.round,
            "attempt": self.attempt,
            "leader": self.leader,
            "term": self.term,
            "event": {
                "kind": self.event.kind,
                "node": self.event.node,
                "reason": self.event.reason,
                "by": self.event.by,
                "signum": self.event.signum,
            },
            "reason": self.reason,
        }
        if self.world is not None:
            record["world"] = {
                "round": self.world.round,
                "term": self.world.term,
                "nodes": self.world.nodes,
                "roll": self.world.roll,
                "master": self.world.master_addr,
                "port": self.world.master_port,
            }
        if self.verdict is not None:
            record["verdict"] = {
                "outcome": self.verdict.outcome,
                "node": self.verdict.node,
                "reason": self.verdict.reason,
                "time": self.verdict.time,
                **Told(self.verdict.failures, self.verdict.others).to_record(),
            }
        return record

    @classmethod
    def from_record(cls, record: Record, version: int) -> State:
        """Read the state of a version, which its key names.

        Raises:
            RecordError: it is none, or another one, copied from elsewhere.
        """
        if record.integer("version") != version:
            record.refuse("it is the state of another version; somebody has copied it here")
        event = record.record("event")
        phase = record.text("phase", max_len=_MAX_WORD)
        if phase not in _PHASES:
            record.refuse(f"there is no phase {phase!r}")
        world = verdict = None
        if "world" in record:
            found = record.record("world")
            world = World(
                round=found.integer("round", low=0),
                term=found.integer("term", low=0),
                nodes=found.integer("nodes", low=1, high=MAX_TICKETS),
                roll=found.integer("roll", low=1, high=MAX_TICKETS),
                master_addr=found.text("master", max_len=MAX_NAME),
                master_port=found.integer("port", low=0, high=65535),
            )
        if "verdict" in record:
            found = record.record("verdict")
            told = Told.from_record(found)
            verdict = Verdict(
                outcome=found.text("outcome", max_len=_MAX_WORD),
                node=found.text("node", max_len=MAX_NAME),
                reason=found.text("reason", max_len=MAX_REASON),
                time=found.date("time"),
                failures=told.failures,
                others=told.groups,
            )
        return cls(
            version=version,
            phase=Phase(phase),
            round=record.integer("round", low=0),
            attempt=record.integer("attempt", low=0),
            leader=record.text("leader", max_len=MAX_NAME),
            term=record.integer("term", low=0),
            event=Event(
                kind=event.text("kind", max_len=_MAX_WORD),
                node=event.text("node", max_len=MAX_NAME),
                reason=event.text("reason", max_len=MAX_REASON),
                by=event.text("by", max_len=_MAX_WRITER),
                signum=event.integer("signum", low=0),
            ),
            world=world,
            reason=record.text("reason", max_len=MAX_REASON),
            verdict=verdict,
        )


_PHASES = frozenset(phase.value for phase in Phase)


# --- changes --------------------------------------------------------------------------------------


def first_state(node: str, attempt: int = 0) -> State:
    """The state of a job that this node begins."""
    return State(0, Phase.FORMING, 0, attempt, node, 0, Event("created", node=node, by=node))


def lead(state: State, node: str, gone: str, reason: str) -> State | None:
    """Take over from the leader `gone`, for `reason`; None if another one leads already."""
    if state.leader != gone or state.phase in (Phase.OVER, Phase.REPLACED):
        return None
    event = Event("led", node=gone, reason=reason, by=node)
    return _follow(state, event, leader=node, term=state.term + 1)


def call(
    state: State, kind: str, node: str, reason: str, *, by: str, from_round: int
) -> State | None:
    """End round `from_round`: a node has arrived, has left, was lost, or asks for another one."""
    if state.phase is not Phase.RUNNING or state.round != from_round:
        return None
    return _follow(
        state,
        Event(kind, node=node, reason=reason, by=by),
        phase=Phase.FORMING,
        round=state.round + 1,
        leader="" if state.leader == node and kind in ("left", "lost") else state.leader,
        reason=describe_departure(kind, node, reason),
    )


def leave(state: State, node: str, reason: str, *, is_member: bool) -> State | None:
    """Go on purpose; a round that this node is a member of is over."""
    if state.phase in (Phase.OVER, Phase.REPLACED):
        return None
    if is_member and state.phase is Phase.RUNNING:
        return call(state, "left", node, reason, by=node, from_round=state.round)
    leader = "" if state.leader == node else state.leader
    return _follow(state, Event("left", node=node, reason=reason, by=node), leader=leader)


def fail(state: State, node: str, reason: str, *, from_round: int) -> State | None:
    """Tell that workers of `from_round` have failed on this node."""
    if state.phase is not Phase.RUNNING or state.round != from_round:
        return None
    return _follow(state, Event("failed", node=node, reason=reason, by=node), phase=Phase.SETTLING)


def settle_lost(state: State, kind: str, node: str, reason: str, *, by: str) -> State | None:
    """After failures: they come from a node that was lost or left, which costs no restart."""
    if state.phase is not Phase.SETTLING:
        return None
    return _follow(
        state,
        Event(kind, node=node, reason=reason, by=by),
        phase=Phase.FORMING,
        round=state.round + 1,
        reason=describe_departure(kind, node, reason),
    )


def settle_failed(
    state: State, told: Told, *, max_restarts: int, by: str, is_final: bool, now: float
) -> State | None:
    """After failures: another attempt if there is one left, else the end."""
    if state.phase is not Phase.SETTLING:
        return None
    what = told.failures[0].summary if told.failures else state.event.reason
    if is_final or state.attempt >= max_restarts:
        verdict = Verdict(
            "failed", host_of(state.event.node), what, now, told.failures, told.groups
        )
        return end(state, verdict, by=by)
    reason = f"{what}; restart {state.attempt + 1} of {max_restarts}"
    return _follow(
        state,
        Event("restarted", node=state.event.node, reason=reason, by=by),
        phase=Phase.FORMING,
        round=state.round + 1,
        attempt=state.attempt + 1,
        reason=reason,
    )


def form(state: State, world: World, *, by: str) -> State | None:
    """Complete the round; only for the leader that has gathered it."""
    if (
        state.phase is not Phase.FORMING
        or state.leader != by
        or (state.round, state.term) != (world.round, world.term)
    ):
        return None
    return _follow(state, Event("formed", node=by, by=by), phase=Phase.RUNNING, world=world)


def refuse(state: State, node: str, reason: str, *, by: str) -> State | None:
    """Tell a node that it cannot take part; only for the leader that forms a round."""
    if state.phase is not Phase.FORMING or state.leader != by:
        return None
    return _follow(state, Event("refused", node=node, reason=reason, by=by))


def recall(state: State, attempt: int, *, by: str) -> State | None:
    """Count as many attempts as a node knows of that was in the job before its store lost it."""
    if state.phase in (Phase.OVER, Phase.REPLACED) or state.attempt >= attempt:
        return None
    reason = f"attempt {attempt} was reached before the store lost the job"
    return _follow(state, Event("recalled", node=by, reason=reason, by=by), attempt=attempt)


def notify(state: State, node: str, signum: int) -> State | None:
    """Pass a signal on to all nodes; None where there are no workers to get it."""
    if state.phase is not Phase.RUNNING:
        return None
    return _follow(state, Event("notice", node=node, by=node, signum=signum))


def end(state: State, verdict: Verdict, *, by: str) -> State | None:
    """Find the verdict; None if there is one, which stands."""
    if state.phase in (Phase.OVER, Phase.REPLACED):
        return None
    verdict = replace(verdict, reason=cut(verdict.reason, MAX_REASON))
    event = Event("ended", node=verdict.node, reason=verdict.reason, by=by)
    return _follow(state, event, phase=Phase.OVER, verdict=verdict)


def replace_job(state: State, reason: str, *, by: str) -> State | None:
    """Let the job begin anew; only for the leader."""
    if state.leader != by or state.phase in (Phase.OVER, Phase.REPLACED):
        return None
    event = Event("replaced", node=by, reason=reason, by=by)
    return _follow(state, event, phase=Phase.REPLACED)


def in_brief(state: State) -> State:
    """The same without what only a report needs, for when the whole cannot be written."""
    if state.verdict is None:
        return state
    return replace(state, verdict=replace(state.verdict, failures=(), others=()))


def _follow(state: State, event: Event, **changes: object) -> State:
    event = replace(event, reason=cut(event.reason, MAX_REASON))
    new = replace(state, version=state.version + 1, event=event, **changes)  # type: ignore[arg-type]
    return replace(new, reason=cut(new.reason, MAX_REASON))


# --- words ----------------------------------------------------------------------------------------


def host_of(node: str) -> str:
    """The host in a node's name, for messages."""
    return node.partition("~")[0]


def describe_departure(kind: str, node: str, reason: str) -> str:
    """Why a round ended with an arrival, a departure or a request of a node, in one sentence."""
    words = {
        "arrived": "arrived",
        "left": "left",
        "lost": "was lost",
        "requested": "asks for a restart",
    }
    return f"node {host_of(node)} {words[kind]}{': ' if reason else ''}{reason}"


def describe_verdict(verdict: Verdict) -> str:
    """How a job ended: what, when, where, and why."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(verdict.time))
    what = "was closed" if verdict.outcome == "closed" else verdict.outcome
    return f"it {what} at {when}, says {verdict.node}: {verdict.reason}"


def verdict_error(run_id: str, verdict: Verdict) -> RendezvousError:
    """What a node is told that waits for a round when the job ends."""
    text = f"job {run_id!r} is over: {describe_verdict(verdict)}"
    if verdict.outcome == "succeeded":
        return RendezvousGracefulExitError(text)
    return RendezvousClosedError(text)
