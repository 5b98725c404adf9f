"""The notifications of a launch: one small type for each thing that happens.

The agent calls one callable, `Notify`, with them; it does not know the listeners. The page "Events"
has a table of them, with the hook and the events of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from plaunch.agent.worker import (
    GroupInfo,
    RunResult,
    WorkerExit,
    WorkerInfo,
    WorkerState,
    describe_worker,
)
from plaunch.process.failure import first_failure
from plaunch.process.signals import SignalAction
from plaunch.rendezvous.api import ChangeKind, MembershipChange
from plaunch.values import Value, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from plaunch.agent.states import Requested, RoundFormed, State
    from plaunch.agent.worker import WorkerGroup
    from plaunch.process.failure import ProcessFailure
    from plaunch.process.stopping.stop_sequence import StopStep


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

    `duration` is how long the node waited for it, in seconds; `reason` is why there is another
    round, and empty for the first one.
    """

    duration: float = 0.0
    reason: str = ""


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


WorkerEnded = WorkerExitSeen  # the old name, until the next version


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


Notify = Callable[[Notification], None]
WorkerEnv = Callable[[WorkerInfo, Mapping[str, str]], Mapping[str, str]]
Facts = ParamSpec("Facts")


class Notifier:
    """Creates notifications, and passes them to the listener.

    Args:
        group: the agent's workers, which change while it runs.
        state: returns the state of the agent.
        notify: is called with every notification; None if there is no listener.
    """

    def __init__(
        self, group: WorkerGroup, state: Callable[[], State], notify: Notify | None
    ) -> None:
        self._group = group
        self._state = state
        self._notify = notify

    @property
    def state(self) -> State:
        """The state of the agent."""
        return self._state()

    @property
    def run_id(self) -> str:
        """The id of the job."""
        return self._group.spec.rdzv_handler.get_run_id()

    def group_info(self, formed: RoundFormed | None = None) -> GroupInfo:
        """The group now, or in the round that has just `formed`."""
        group, state = self._group, self._state()
        attempt, number = state.attempt, state.round
        if formed is not None:
            attempt, number = formed.attempt, formed.number_after(state)
        return GroupInfo(
            run_id=self.run_id,
            role=group.spec.role,
            state=group.state,
            attempt=attempt,
            round=number,
            max_restarts=group.spec.max_restarts,
            group_rank=-1 if group.group_rank is None else group.group_rank,
            group_world_size=-1 if group.group_world_size is None else group.group_world_size,
            master_addr=group.master_addr or "",
            master_port=group.master_port or 0,
            workers=tuple(describe_worker(worker) for worker in group.workers),
        )

    def notify(
        self,
        notification: Callable[Concatenate[GroupInfo, Facts], Notification],
        *args: Facts.args,
        **kwargs: Facts.kwargs,
    ) -> None:
        """Create a `notification` from the group and the arguments, and pass it to the listener."""
        if self._notify is not None:
            self._notify(notification(self.group_info(), *args, **kwargs))

    def notify_round(self, formed: RoundFormed, waited: float, reason: str) -> None:
        """Notify that a round has formed, for which this node `waited` so many seconds."""
        if self._notify is not None:
            self._notify(AfterRendezvous(self.group_info(formed), waited, reason))

    def notify_state(self, new: WorkerState) -> None:
        """Set the state of the worker group; notify if it has changed."""
        old, self._group.state = self._group.state, new
        if old is not new:
            self.notify(StateChanged, old, new)

    def notify_changes(self, changes: Sequence[MembershipChange]) -> Sequence[MembershipChange]:
        """Notify of each of `changes`, and return them."""
        for change in changes:
            if change.kind is ChangeKind.NOTICE:
                self.notify(SignalReceived, change.signum, SignalAction.NOTIFY, change.node)
            else:
                self.notify(MembershipChanged, change)
        return changes

    def notify_failures(self, result: RunResult) -> None:
        """Notify which workers have failed, if any, and which of them first."""
        failures = result.failures
        if failures:
            first = result.first_failure
            first = first_failure(failures)[0] if first is None else first
            self.notify(WorkersFailed, failures, first)
