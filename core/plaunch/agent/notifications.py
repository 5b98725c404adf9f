"""The notifications of a launch: one small type for each thing that happens.

The agent calls one callable, `Notify`, with them; it does not know the listeners. The page "Events"
has a table of them, with the hook and the events of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.values import Value, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from plaunch.agent.states import Requested
    from plaunch.agent.worker import GroupInfo, RunResult, WorkerState
    from plaunch.process.components import WorkerExit
    from plaunch.process.failure import ProcessFailure
    from plaunch.process.signals import SignalAction
    from plaunch.process.stopping.stop_sequence import StopStep
    from plaunch.rendezvous.api import MembershipChange

    Notify = Callable[["Notification"], None]


@plain_dataclass
class Notification(Value):
    """Something has happened; `group` is the worker group at that time."""

    group: GroupInfo


@plain_dataclass
class LaunchStarted(Notification):
    """A launch has begun; the first notification of a log. Agents do not send it.

    Args:
        entry_point: what is run, as users call it.
        backend: the name of the rendezvous backend.
        endpoint: its address.
        min_nodes: the smallest number of nodes of a world.
        max_nodes: the largest number of nodes of a world.
        local_world_size: the number of workers on this node.
        forks: whether workers are forked from this process.
    """

    entry_point: str
    backend: str = ""
    endpoint: str = ""
    min_nodes: int = 1
    max_nodes: int = 1
    local_world_size: int = 1
    forks: bool = False


@plain_dataclass
class LaunchFinished(Notification):
    """A launch is over; the last notification of a log. Agents do not send it.

    `error` is the exception that ended the launch, if any.
    """

    error: BaseException | None = None


@plain_dataclass
class RestartDelayed(Notification):
    """A restart policy has delayed the next round, which begins in so many `seconds`."""

    seconds: float


class BeforeRendezvous(Notification):
    """The agent is about to join a round."""


@plain_dataclass
class AfterRendezvous(Notification):
    """A round is complete; ranks are known and workers are about to start.

    `duration` is how long the node waited for it, in seconds; `reason` is what has led to it, and
    `decision` what the job decided about that; both are empty for the first round.
    """

    duration: float = 0.0
    reason: str = ""
    decision: str = ""


@plain_dataclass
class RendezvousFailed(Notification):
    """A round was not completed, or this node has no part in it.

    `duration` is how long the node waited for it, in seconds.
    """

    duration: float
    reason: str


@plain_dataclass
class Preloaded(Notification):
    """The starter of the workers is ready; it took `seconds`, by name.

    `waited` of them were after the round had formed. Sent only if there was something to do.
    """

    seconds: Mapping[str, float]
    waited: float


class BeforeWorkers(Notification):
    """The workers are about to be started."""


@plain_dataclass
class WorkersStarted(Notification):
    """All workers of this agent have been started; their pids are known.

    `forked` are the local ranks that were not executed afresh (see `plaunch.process.Starter`).
    """

    forked: Collection[int] = ()


@plain_dataclass
class WorkerExitSeen(Notification):
    """A worker has just ended; the agent has not reacted to it yet.

    `WorkerExited` follows with the same exit, after the stop of the other workers if there is one.
    """

    exit: WorkerExit


@plain_dataclass
class WorkerExited(Notification):
    """A worker has ended, by itself or because the agent stopped it; its failure is complete."""

    exit: WorkerExit


@plain_dataclass
class WorkersFailed(Notification):
    """Workers have failed by themselves, by global rank; `first` is the rank that failed first.

    At the end of a job, these are the failures of all nodes; a launcher that failed has a negative
    rank.
    """

    failures: Mapping[int, ProcessFailure]
    first: int


@plain_dataclass
class MembershipChanged(Notification):
    """The rendezvous has reported a change among the nodes."""

    change: MembershipChange


@plain_dataclass
class SignalReceived(Notification):
    """The launcher has received a signal; `action` is what follows.

    If `node` is not empty, that node has received it and forwarded it to this one.
    """

    signum: int
    action: SignalAction
    node: str = ""


@plain_dataclass
class RequestReceived(Notification):
    """A stop, a restart, or that this node leaves was requested."""

    request: Requested


@plain_dataclass
class BeforeStop(Notification):
    """The workers are about to be stopped; `cause` is why (see `State.stop_cause`)."""

    cause: str


@plain_dataclass
class Stopping(Notification):
    """The stop sequence has taken a step."""

    step: StopStep


@plain_dataclass
class StateChanged(Notification):
    """The state of the worker group has changed."""

    old: WorkerState
    new: WorkerState


@plain_dataclass
class ConsoleAwaited(Notification):
    """The workers are gone, and the agent waits for a slow console before it ends.

    `waiting_bytes` of their output are not shown yet.
    """

    waiting_bytes: int


@plain_dataclass
class AgentFinished(Notification):
    """The agent is done; nothing follows.

    `result` is None if there is none: a signal ended the job, or the launcher failed. `outcome` is
    a value of `plaunch.agent.states.Outcome`, empty if an exception ended the loop. `reason` is why
    this node was not needed, if it was not.
    """

    result: RunResult | None
    outcome: str = ""
    reason: str = ""
