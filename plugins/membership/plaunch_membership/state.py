"""The state of a job, on which its nodes agree.

Each state has a version and is written once. The writer of version n+1 has read version n, so all
nodes see the same sequence of states and cannot disagree about what happened. `transitions.py` has
all state changes.
"""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from plaunch.durations import bounded
from plaunch.errors import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
)
from plaunch.rendezvous import JobOutcome
from plaunch.texts import join_facts

from plaunch_membership.failures import FailureGroup, FailureSummary, JobFailure
from plaunch_membership.records import MAX_EXCLUDED, MAX_NAME, MAX_REASON
from plaunch_membership.shared_log import MAX_TICKETS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch_membership.records import StoreRecord

_MAX_WRITER = MAX_NAME + 40  # a node's name and the number of the write


class JobPhase(enum.Enum):
    """The phase of the job."""

    FORMING = "forming"  # nodes join; `round` is the one to be formed
    RUNNING = "running"
    SETTLING = "settling"  # workers failed; the leader collects reports and decides
    OVER = "over"  # there is a verdict
    REPLACED = "replaced"  # all nodes that knew it are gone; a new incarnation starts


class JobEventKind(str, enum.Enum):
    """The kind of the event that led to a state."""

    CREATED = "created"
    LED = "led"  # another node has become the leader
    ARRIVED = "arrived"
    LEFT = "left"
    LOST = "lost"
    FAILED = "failed"
    REQUESTED = "requested"  # a node has requested another round
    REFUSED = "refused"
    RESTARTED = "restarted"
    RECALLED = "recalled"  # a node restored the attempt from before the store lost the job
    FORMED = "formed"
    NOTICE = "notice"
    BROADCAST = "broadcast"  # a text for the listeners on all nodes
    ENDING = "ending"  # the workers of at least half of the nodes have succeeded
    ENDED = "ended"
    REPLACED = "replaced"


@dataclass(frozen=True)
class JobEvent:
    """The event that led to a state.

    Args:
        kind: its kind.
        node: the node that it is about.
        reason: why, in words.
        by: the writer and the number of its write, unique in the job.
        signum: the signal of a notice.
        listener: the name of the listeners of a broadcast.
        index: the rank that a departed node had in the last round; else -1.
    """

    kind: JobEventKind
    node: str = ""
    reason: str = ""
    by: str = ""
    signum: int = 0
    index: int = -1
    listener: str = ""


@dataclass(frozen=True)
class RecordedVerdict:
    """A verdict as stored; `process_failures.to_verdict` converts it for the agent.

    Args:
        outcome: how the job ended.
        node: the node that wrote it; for a stopped job, the one that was asked to stop it.
        reason: what happened, in one sentence.
        time: when, in seconds since the epoch on that node's clock.
        failures: the failures of the last round, the first one first.
        others: failures beyond the limit, grouped and counted.
        no_restart: why the restart policy ended the job; empty if it did not.
        early_ends: the workers that had succeeded before, one line for each node.
    """

    outcome: JobOutcome
    node: str
    reason: str
    time: float
    failures: tuple[JobFailure, ...] = ()
    others: tuple[FailureGroup, ...] = ()
    no_restart: str = ""
    early_ends: tuple[str, ...] = ()


@dataclass(frozen=True)
class World:
    """The last round that was formed.

    Args:
        round: its number.
        term: the leader's term in which it was formed; its keys contain round and term.
        nodes: how many nodes are in it.
        master_addr: the host of the workers' store.
        master_port: its port.
    """

    round: int
    term: int
    nodes: int
    master_addr: str
    master_port: int


@dataclass(frozen=True)
class JobState:
    """One state of a job.

    Args:
        version: its number.
        phase: what the job is doing.
        round: the round that is being formed, or the one that was formed last.
        attempt: the number of restarts that were used.
        leader: the node that forms rounds and watches the others; empty if another must take over.
        term: the number of leaders before this one.
        event: the event that led to this state.
        world: the last round that was formed, if there was one.
        reason: what has led to another round, in one sentence.
        decision: what was decided about that; empty if there was nothing to decide.
        verdict: how the job ended.
        pause: the delay before the next round, in seconds.
        excluded: the excluded hosts, and why.
        former_nodes: while the first round after the loss of the store's data is formed, the number
            of nodes that the last one before had; else 0.
    """

    version: int
    phase: JobPhase
    round: int
    attempt: int
    leader: str
    term: int
    event: JobEvent
    world: World | None = None
    reason: str = ""
    decision: str = ""
    verdict: RecordedVerdict | None = None
    pause: float = 0.0
    excluded: Mapping[str, str] = field(default_factory=dict)
    former_nodes: int = 0

    @property
    def next_round(self) -> int:
        """The round that a node joins next."""
        return self.round if self.phase is JobPhase.FORMING else self.round + 1

    @property
    def why(self) -> str:
        """Why there is another round: what has led to it, and the decision; for messages."""
        return join_facts(self.reason, self.decision)

    @property
    def stage(self) -> tuple[JobPhase, int, int]:
        """The phase, round and term; a leader starts over when one of them changes."""
        return self.phase, self.round, self.term

    @property
    def has_ended(self) -> bool:
        """Whether this is the last state of its incarnation."""
        return self.phase in (JobPhase.OVER, JobPhase.REPLACED)

    def to_record(self) -> dict[str, object]:
        """Return the fields of its record."""
        event: dict[str, object] = {
            "kind": self.event.kind.value,
            "node": self.event.node,
            "reason": self.event.reason,
            "by": self.event.by,
            "signum": self.event.signum,
            "index": self.event.index,
        }
        if self.event.listener:
            event["listener"] = self.event.listener
        record: dict[str, object] = {
            "version": self.version,
            "phase": self.phase.value,
            "round": self.round,
            "attempt": self.attempt,
            "leader": self.leader,
            "term": self.term,
            "event": event,
            "reason": self.reason,
        }
        if self.decision:
            record["decision"] = self.decision
        if self.pause:
            record["pause"] = bounded(self.pause)
        if self.former_nodes:
            record["former_nodes"] = self.former_nodes
        if self.excluded:
            record["excluded"] = dict(self.excluded)
        if self.world is not None:
            record["world"] = {
                "round": self.world.round,
                "term": self.world.term,
                "nodes": self.world.nodes,
                "master": self.world.master_addr,
                "port": self.world.master_port,
            }
        if self.verdict is not None:
            record["verdict"] = {
                "outcome": self.verdict.outcome.value,
                "node": self.verdict.node,
                "reason": self.verdict.reason,
                "time": self.verdict.time,
                "no_restart": self.verdict.no_restart,
                **FailureSummary(
                    self.verdict.failures, self.verdict.others, self.verdict.early_ends
                ).to_record(),
            }
        return record

    @classmethod
    def from_record(cls, record: StoreRecord, version: int) -> JobState:
        """Read the state of a version.

        Raises:
            RecordError: the record is not a state, or is the state of another version.
        """
        if record.integer("version") != version:
            record.refuse("it is the state of another version, copied to this key")
        event = record.record("event")
        world = verdict = None
        if "world" in record:
            found = record.record("world")
            world = World(
                round=found.integer("round", low=0),
                term=found.integer("term", low=0),
                nodes=found.integer("nodes", low=1, high=MAX_TICKETS),
                master_addr=found.text("master", max_len=MAX_NAME),
                master_port=found.integer("port", low=0, high=65535),
            )
        if "verdict" in record:
            found = record.record("verdict")
            summary = FailureSummary.from_record(found)
            verdict = RecordedVerdict(
                outcome=found.choice("outcome", JobOutcome),
                node=found.text("node", max_len=MAX_NAME),
                reason=found.text("reason", max_len=MAX_REASON),
                time=found.date("time"),
                failures=summary.failures,
                others=summary.groups,
                no_restart=found.text("no_restart", max_len=MAX_REASON),
                early_ends=summary.early_ends,
            )
        return cls(
            version=version,
            phase=record.choice("phase", JobPhase),
            round=record.integer("round", low=0),
            attempt=record.integer("attempt", low=0),
            leader=record.text("leader", max_len=MAX_NAME),
            term=record.integer("term", low=0),
            event=JobEvent(
                kind=event.choice("kind", JobEventKind),
                node=event.text("node", max_len=MAX_NAME),
                reason=event.text("reason", max_len=MAX_REASON),
                by=event.text("by", max_len=_MAX_WRITER),
                signum=event.integer("signum", low=0),
                index=event.integer("index", low=-1, default=-1),
                listener=event.text("listener", max_len=MAX_REASON, default=""),
            ),
            world=world,
            reason=record.text("reason", max_len=MAX_REASON),
            decision=record.text("decision", max_len=MAX_REASON, default=""),
            verdict=verdict,
            pause=max(bounded(record.number("pause", default=0.0)), 0.0),
            excluded=_excluded_in(record),
            former_nodes=record.integer("former_nodes", low=0, high=MAX_TICKETS, default=0),
        )


def _excluded_in(record: StoreRecord) -> dict[str, str]:
    if "excluded" not in record:
        return {}
    found = record.record("excluded")
    return {host: found.text(host, max_len=MAX_NAME) for host in [*found][:MAX_EXCLUDED]}


def host_of(node: str) -> str:
    """Return the host in a node's name, for messages."""
    return node.partition("~")[0]


def describe_departure(kind: JobEventKind, node: str, reason: str, index: int = -1) -> str:
    """Describe in one sentence which node's arrival, departure or request ended a round.

    `index` is the node's rank in the last round, if known.
    """
    words = {
        JobEventKind.ARRIVED: "arrived",
        JobEventKind.LEFT: "left",
        JobEventKind.LOST: "was lost",
        JobEventKind.REQUESTED: "requests a restart",
    }
    who = f"{host_of(node)} (index {index})" if index >= 0 else host_of(node)
    return f"node {who} {words[kind]}{': ' if reason else ''}{reason}"


def describe_verdict(verdict: RecordedVerdict) -> str:
    """Describe how a job ended: what, when, where and why."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(verdict.time))
    why = join_facts(verdict.reason, verdict.no_restart)
    return f"it {describe_outcome(verdict)} at {when}, says {verdict.node}: {why}"


def describe_outcome(verdict: RecordedVerdict) -> str:
    """Describe the outcome as a predicate: `failed`, `was stopped`."""
    outcome = verdict.outcome
    is_passive = outcome in (JobOutcome.STOPPED, JobOutcome.CLOSED)
    return f"was {outcome.value}" if is_passive else outcome.value


def verdict_error(run_id: str, verdict: RecordedVerdict) -> RendezvousError:
    """Return the error for a node that waits for a round when the job ends."""
    if verdict.outcome is JobOutcome.TIMED_OUT:
        return RendezvousTimeoutError(verdict.reason)
    text = f"job {run_id!r} is over: {describe_verdict(verdict)}"
    if verdict.outcome is JobOutcome.SUCCEEDED:
        return RendezvousGracefulExitError(text)
    return RendezvousClosedError(text)
