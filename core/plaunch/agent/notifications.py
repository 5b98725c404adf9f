"""What others are notified of in the life of an agent, one small type each.

An agent is given one callable, `Notify`, and calls it with these; it does not know who listens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch.agent.values import Value
from plaunch.agent.worker import GroupInfo, RunResult, WorkerExit, WorkerInfo, WorkerState

if TYPE_CHECKING:
    from plaunch.process.failures.failure import ProcessFailure
    from plaunch.process.stopping.signals import SignalAction
    from plaunch.process.stopping.stop_sequence import StopStep
    from plaunch.rendezvous.api import MembershipChange


@dataclass(eq=False, repr=False)
class BeforeRendezvous(Value):
    """The agent is about to join a round."""

    group: GroupInfo


@dataclass(eq=False, repr=False)
class AfterRendezvous(Value):
    """A round is complete; ranks are known and workers are about to start.

    `duration` is how long the node waited for it, in seconds; `reason` is why there is another
    round, and empty for the first one.
    """

    group: GroupInfo
    duration: float = 0.0
    reason: str = ""


@dataclass(eq=False, repr=False)
class RendezvousFailed(Value):
    """A round was not completed, or this node has no part in it.

    `duration` is how long the node waited for it, in seconds.
    """

    group: GroupInfo
    duration: float
    reason: str


@dataclass(eq=False, repr=False)
class BeforeWorkers(Value):
    """The workers are about to be started."""

    group: GroupInfo


@dataclass(eq=False, repr=False)
class WorkersStarted(Value):
    """All workers of this agent have been started; their pids are known."""

    group: GroupInfo


@dataclass(eq=False, repr=False)
class WorkerEnded(Value):
    """One worker was seen to end, `at` seconds since the epoch; told at once.

    `WorkerExited` follows when the agent has looked after it, which may be a stop of all others
    later, and then knows what the worker last wrote.
    """

    group: GroupInfo
    exit: WorkerExit
    at: float


@dataclass(eq=False, repr=False)
class WorkerExited(Value):
    """One worker has ended, by itself or because the agent stopped it."""

    group: GroupInfo
    exit: WorkerExit


@dataclass(eq=False, repr=False)
class WorkersFailed(Value):
    """Workers have failed by themselves, by global rank; `first` is whose failure began it all.

    At the end of a job that all nodes know of, these are the failures of all of them; a launcher
    that failed has a negative rank.
    """

    group: GroupInfo
    failures: Mapping[int, ProcessFailure]
    first: int


@dataclass(eq=False, repr=False)
class MembershipChanged(Value):
    """The rendezvous told of a change among the nodes."""

    group: GroupInfo
    change: MembershipChange


@dataclass(eq=False, repr=False)
class SignalReceived(Value):
    """The launcher has received a signal; `action` is what follows.

    `node` has received it instead, and asked this one to pass it on.
    """

    group: GroupInfo
    signum: int
    action: SignalAction
    node: str = ""


@dataclass(eq=False, repr=False)
class Stopping(Value):
    """The stop ladder has taken a step."""

    group: GroupInfo
    step: StopStep


@dataclass(eq=False, repr=False)
class StateChanged(Value):
    """The worker group went from one state to another."""

    group: GroupInfo
    old: WorkerState
    new: WorkerState


@dataclass(eq=False, repr=False)
class AgentFinished(Value):
    """The agent is done; nothing follows.

    `result` is None when no result exists: a signal ended the job, or an error of plaunch's own.
    `outcome` and `reason` say how it ended, in a word of `plaunch.agent.states.Outcome` and in a
    few of ours; they are empty if the agent was torn out of its work.
    """

    group: GroupInfo
    result: RunResult | None
    outcome: str = ""
    reason: str = ""


Notification = (
    BeforeRendezvous
    | AfterRendezvous
    | RendezvousFailed
    | BeforeWorkers
    | WorkersStarted
    | WorkerEnded
    | WorkerExited
    | WorkersFailed
    | MembershipChanged
    | SignalReceived
    | Stopping
    | StateChanged
    | AgentFinished
)
Notify = Callable[[Notification], None]
WorkerEnv = Callable[[WorkerInfo, Mapping[str, str]], Mapping[str, str]]
