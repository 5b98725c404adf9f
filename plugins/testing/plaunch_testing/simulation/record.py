"""What a run was, what was injected, and what each node said and ended with.

The simulator fills such a record, and so do tests with real agents. The checks read nothing else.
All times are seconds on one clock that no fault changes, unless a field says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from plaunch_testing.simulation.script import CHARGED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plaunch_testing.simulation.script import FaultKind

__all__ = [
    "CLOCK_TOLERANCE",
    "AgentRecord",
    "FaultRecord",
    "FirstFailure",
    "InjectedCause",
    "NodeEvent",
    "OutputRecord",
    "RoundRecord",
    "RunRecord",
    "StartedWorker",
    "VerdictRecord",
]

_REPORTING = 2.0  # seconds within which nodes report their failures
# Seconds by which clocks may differ, as docs/membership.md says, and some for reports on the way.
CLOCK_TOLERANCE = 5.0 + 1.0


@dataclass(frozen=True, eq=False)
class FaultRecord:
    """A fault that was injected.

    Args:
        kind: what has happened.
        host: the name of the host that it has hit; empty if none.
        at: when.
        lasts: seconds until it was over, where it ends.
        had_effect: whether there was something that it could hit.
        value: an exit code or a signal, by kind.
    """

    kind: FaultKind
    host: str
    at: float
    lasts: float = 0.0
    had_effect: bool = True
    value: int = 0

    @property
    def may_charge(self) -> bool:
        """Whether a restart may be counted for it."""
        return self.had_effect and self.kind in CHARGED


@dataclass(frozen=True)
class InjectedCause:
    """Something that can end the attempt of a round by itself, or the consequence of that.

    Args:
        at: when.
        timestamp: the same on the wall clock of its host, which the nodes compare.
        host: where it has happened.
        rank: of the worker.
        exitcode: of the worker.
        is_certain: whether its node must report it: its workers were not being stopped.
    """

    at: float
    timestamp: float
    host: str
    rank: int | None
    exitcode: int
    is_certain: bool

    def is_before(self, other: InjectedCause, precision: float = 0.0) -> bool:
        """Whether it came first, whatever the clocks of the hosts show.

        If the clocks differ by more than the tolerance, the order is as exact as the times at which
        the nodes report.

        Args:
            other: another one.
            precision: seconds by which the times of both may be wrong.
        """
        gap = other.at - self.at
        skew = abs((other.timestamp - other.at) - (self.timestamp - self.at))
        if skew < CLOCK_TOLERANCE - _REPORTING:
            return gap > precision and self.timestamp < other.timestamp
        return gap > (_REPORTING if skew > CLOCK_TOLERANCE + _REPORTING else CLOCK_TOLERANCE)

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host} with {self.exitcode} at {self.at:.3f} s"


class StartedWorker(NamedTuple):
    """A worker that has started in a round.

    Args:
        rank: its global rank.
        local_rank: its local rank.
        world_size: the number of ranks, as it knows it.
        master: the address and the port of the workers' store, as it knows them.
        node: the name of its node.
        host: where it runs.
        at: when.
    """

    rank: int
    local_rank: int
    world_size: int
    master: str
    node: str
    host: str
    at: float


@dataclass(frozen=True, eq=False)
class RoundRecord:
    """The workers of one round on all nodes, as they really were.

    Args:
        incarnation: of the job in the store.
        number: of the round.
        attempt: as the workers know it.
        starts: the workers, in order.
        ends: when the workers of a node were gone, by its name; missing if they are not.
        completed_at: when all ranks had started.
        finished_at: when the work of all ranks was done.
        has_succeeded: whether all workers of all nodes have.
        causes: what can have ended it.
        consequences: failures of peers of a lost rank.
    """

    incarnation: str
    number: int
    attempt: int
    starts: Sequence[StartedWorker]
    ends: Mapping[str, float]
    completed_at: float | None = None
    finished_at: float | None = None
    has_succeeded: bool = False
    causes: Sequence[InjectedCause] = ()
    consequences: Sequence[InjectedCause] = ()

    @property
    def began(self) -> float:
        """When the first worker has started."""
        return self.starts[0].at

    def __str__(self) -> str:
        return f"round {self.number} (attempt {self.attempt}) of job {self.incarnation[:4]}"


class NodeEvent(NamedTuple):
    """What an agent has told its listeners.

    Args:
        name: of the notification's class.
        incarnation: of the job in the store.
        round: that the agent was in.
        attempt: of that round.
        at: when.
        told: what it says beyond that, if it is checked; empty if it says nothing.
        lost: the host that was lost, if one was.
        world: the nodes and the address of rank 0, for a round that is complete.
    """

    name: str
    incarnation: str
    round: int
    attempt: int
    at: float
    told: str = ""
    lost: str = ""
    world: str = ""


class FirstFailure(NamedTuple):
    """The first failure of a job, as a verdict has it.

    Args:
        rank: the global rank; negative for a launcher.
        exitcode: negative for a signal.
        began: when, on the wall clock that the nodes compare.
        is_consequence: whether it may be the consequence of another one.
    """

    rank: int
    exitcode: int
    began: float
    is_consequence: bool


class VerdictRecord(NamedTuple):
    """How a job has ended, as a node knows it.

    Args:
        outcome: a value of `plaunch.rendezvous.JobOutcome`.
        reason: what happened.
        no_restart: why there was no restart.
        node: the node that found it.
        first_key: under which the verdict has the first failure, if there is one.
        first: that failure.
    """

    outcome: str
    reason: str
    no_restart: str
    node: str
    first_key: int | None = None
    first: FirstFailure | None = None

    def __str__(self) -> str:
        code = None if self.first is None else self.first.exitcode
        return (
            f"{self.outcome} ({self.reason}; {self.no_restart}) of {self.node}, first "
            f"{self.first_key} with {code}"
        )


@dataclass(eq=False)
class AgentRecord:
    """One agent, from its start to its end.

    Args:
        name: unique in the run.
        host: where it ran.
        started_at: when.
        joined_at: when it began to join its first round; None if that is not known.
        ended_at: when it has ended, or was killed; None if it runs.
        exit_code: if it has ended by itself.
        error: what has ended it, for findings.
        has_failed: whether it reports a failure of workers, of any node.
        is_success_sure: whether all of its workers have succeeded.
        outcome: a value of `plaunch.agent.states.Outcome`; empty if unknown.
        verdict: how the job has ended, if it knows.
        incarnation: of the job that it knew last; None if it knew none.
        last_round: that it knew last.
        events: its notifications, in order.
        leftovers: what was left when it had ended, in a few words each.
        runs_workers: whether workers were left running.
        is_asked_to_end: whether its end was requested.
        has_waited_for_others: whether it has succeeded, and the wait for other nodes has timed out.
        ends_by_itself: whether it was told to stop or to leave, and the others were not.
    """

    name: str
    host: str
    started_at: float
    ended_at: float | None = None
    exit_code: int | None = None
    error: str = ""
    has_failed: bool = False
    is_success_sure: bool = False
    outcome: str = ""
    verdict: VerdictRecord | None = None
    incarnation: str | None = None
    last_round: int = -1
    events: Sequence[NodeEvent] = ()
    leftovers: Sequence[str] = ()
    runs_workers: bool = False
    is_asked_to_end: bool = False
    has_waited_for_others: bool = False
    ends_by_itself: bool = False
    joined_at: float | None = None

    def was_alive(self, at: float) -> bool:
        """Whether it had started at this time, and had not ended."""
        return self.started_at <= at and (self.ended_at is None or at < self.ended_at)


class OutputRecord(NamedTuple):
    """The lines of one worker or node.

    Args:
        name: of the worker or node.
        wrote: the number of lines that it has written.
        shown: the number of lines that have arrived.
        may_be_cut: whether a fault has hit what carried them.
        problem: a line that is wrong, or in the wrong order; empty if there is none.
    """

    name: str
    wrote: int
    shown: int
    may_be_cut: bool = False
    problem: str = ""


@dataclass(eq=False)
class RunRecord:
    """One run.

    Args:
        min_nodes: of a round.
        max_nodes: of a round.
        workers: per node.
        budget: the number of restarts.
        latency: mean seconds of a message.
        faults: what was injected, in order.
        rounds: in which workers have started, in order.
        nodes: all agents, in order of their start.
        errors: unexpected exceptions.
        unfinished: what has not ended in time; empty if the run is over.
        hangs: when hangs were reported because peers wait for a lost rank.
        keys: that are left in the store.
        leftovers: processes and files that are left, beside those of `AgentRecord`.
        outputs: lines that workers have written, and what has arrived of them.
        is_loss_shown: whether a message says that output is missing; None if nothing could say it.
        precision: seconds by which the times of faults may be wrong.
    """

    min_nodes: int
    max_nodes: int
    workers: int
    budget: int
    latency: float = 0.0
    faults: Sequence[FaultRecord] = ()
    rounds: Sequence[RoundRecord] = ()
    nodes: Sequence[AgentRecord] = ()
    errors: Sequence[str] = ()
    unfinished: Sequence[str] = ()
    hangs: Sequence[float] = ()
    keys: Sequence[str] = ()
    leftovers: Sequence[str] = ()
    outputs: Sequence[OutputRecord] = ()
    is_loss_shown: bool | None = None
    precision: float = 0.0

    def had_fault(self, *kinds: FaultKind) -> bool:
        """Whether a fault of one of these kinds has had an effect."""
        return any(one.had_effect and one.kind in kinds for one in self.faults)

    def with_effect(self, *kinds: FaultKind) -> list[FaultRecord]:
        """Return the faults of these kinds that have had an effect."""
        return [one for one in self.faults if one.had_effect and one.kind in kinds]
