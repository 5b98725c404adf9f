"""What the agent's decisions are made of: phases, outcomes, events, actions, and the state."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from plaunch.agent.worker import WorkerState
from plaunch.values import Value, plain_dataclass

if TYPE_CHECKING:
    import signal

    from plaunch.restarts import Decision


class Phase(enum.Enum):
    """What the agent is busy with."""

    IDLE = "idle"
    PAUSING = "pausing"  # after a failure, the next round is not to begin yet
    CHECKING = "checking"  # whether this node is healthy, before it joins
    JOINING = "joining"  # waiting for a round to form
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"  # the stop sequence is at work; `State.then` says what follows
    CLEARING = "clearing"  # own workers have succeeded; what they left behind is being ended
    WAITING = "waiting"  # own workers have succeeded, other nodes' are still at work
    DONE = "done"


class Outcome(enum.Enum):
    """How the agent ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"  # workers failed and no restart is left
    SIGNALLED = "signalled"  # a stop signal ended the job
    CLOSED = "closed"  # another node closed the rendezvous
    LEFT = "left"  # this node was not needed
    ERROR = "error"  # the rendezvous failed, or workers could not be started or stopped


class Again(enum.Enum):
    """Why the agent joins another round after a stop."""

    RESTART = "restart"
    MEMBERSHIP = "membership"
    DECISION = "decision"  # workers failed; whether there is another round, the job says
    REQUEST = "request"  # somebody has asked for it; no restart of the budget is used


class RequestKind(enum.Enum):
    """What may be asked of an agent from outside."""

    STOP = "stop"  # the job ends, on all nodes where the rendezvous knows them
    RESTART = "restart"  # all workers of the job are stopped, and start again in another round
    LEAVE = "leave"  # this node goes, and the job goes on without it


@plain_dataclass
class State(Value):
    """All that the agent's decisions depend on."""

    max_restarts: int
    phase: Phase = Phase.IDLE
    workers: WorkerState = WorkerState.INIT
    attempt: int = 0
    round: int = -1
    is_job_wide: bool = False  # the job counts attempts, not this agent
    has_succeeded: bool = False  # own workers have, in the round formed last
    is_restart: bool = False  # the round follows a failure
    then: Again | Outcome | None = None  # after STOPPING: another round, or the end
    pause: float = 0.0  # seconds before that round
    is_free: bool = False  # whether that round uses up no restart
    has_checks: bool = False  # whether there are health checks of this node
    is_suspect: bool = False  # whether they come before that round although no worker failed
    asked_by: signal.Signals | None = None  # the first signal that asked for a stop
    asked_at: float = 0.0  # when, in seconds that never go back
    request: Requested | None = None  # that the agent is busy with, or that ends the run

    @property
    def is_asked_to_end(self) -> bool:
        """Whether a signal or a request has asked for the end of the run."""
        request = self.request
        is_end = request is not None and request.kind is not RequestKind.RESTART
        return is_end or self.asked_by is not None

    @property
    def stop_cause(self) -> str:
        """Why the workers are stopped: `failure`, `membership`, `request` or `end`."""
        if self.is_asked_to_end or self.then is Again.REQUEST:
            return "request"
        if self.then in (Again.RESTART, Again.DECISION, Outcome.FAILED):
            return "failure"
        return "membership" if self.then is Again.MEMBERSHIP else "end"

    @property
    def restarts_left(self) -> int:
        """How many more failures are followed by a restart."""
        return self.max_restarts - self.attempt


# --- events ---------------------------------------------------------------------------------------


class Event(Value):
    """Something that the table decides upon."""


class Begin(Event):
    """The agent was asked to run."""


@plain_dataclass
class RoundFormed(Event):
    """The rendezvous is complete and ranks are assigned.

    `attempt` and `round` are the job's, if it counts them.
    """

    attempt: int | None = None
    round: int | None = None

    def counted(self, state: State) -> tuple[int, int]:
        """The attempt and the number of the round, for an agent that was in `state`."""
        return (
            state.attempt if self.attempt is None else self.attempt,
            state.round + 1 if self.round is None else self.round,
        )


@plain_dataclass
class RoundFailed(Event):
    """The rendezvous did not complete; `graceful` if this node is simply not needed."""

    graceful: bool = False


class StartSucceeded(Event):
    """Every worker has a process."""


class StartFailed(Event):
    """A worker could not be started."""


class AgentFailed(Event):
    """Something went wrong in the agent itself."""


@plain_dataclass
class WorkFailed(Event):
    """At least one worker failed by itself; `is_final` if no restart can help.

    `decision` is what a restart policy makes of it; None leaves it to the budget.
    """

    is_final: bool = False
    decision: Decision | None = None


class WorkSucceeded(Event):
    """All workers ended with success."""


@plain_dataclass
class NodesChanged(Event):
    """A node arrived or left; or was lost, if `is_loss`."""

    is_loss: bool = False


class PeersFailed(Event):
    """Workers of another node failed."""


class PeersUnreachable(Event):
    """Nothing was heard of the other nodes for too long."""


class RendezvousClosed(Event):
    """Another node closed the rendezvous."""


@plain_dataclass
class JobEnded(Event):
    """The job is over for all nodes: SUCCEEDED, FAILED or CLOSED."""

    outcome: Outcome


@plain_dataclass
class StopRequested(Event):
    """A stop signal was received, `at` seconds on a clock that never goes back."""

    signum: signal.Signals
    at: float = 0.0


@plain_dataclass
class Requested(Event):
    """A request from outside.

    Args:
        kind: what is requested.
        reason: why.
        who: who requests it, in a few words; empty if `reason` says it.
        node: the node that received the request; empty for this one.
    """

    kind: RequestKind
    reason: str
    who: str
    node: str = ""

    @property
    def origin(self) -> str:
        """Who requests it and why, as the other nodes receive it."""
        return f"{self.who}: {self.reason}" if self.who else self.reason


class StopSucceeded(Event):
    """The stop sequence is through: no worker is left, nor what it has started."""


class PauseEnded(Event):
    """The next round may begin."""


class NodeHealthy(Event):
    """No health check keeps this node from the next round."""


class NodeUnhealthy(Event):
    """A health check has failed."""


class StopFailed(Event):
    """The stop sequence is through and a worker is still there."""


class PeersFinished(Event):
    """All other nodes have finished, or the time to wait for them is over."""


# --- actions --------------------------------------------------------------------------------------


class Action(Value):
    """Something that follows, and that the loop carries out."""


@plain_dataclass
class Pause(Action):
    """Wait for so many seconds; their end is an event."""

    seconds: float


class CheckHealth(Action):
    """Ask the health checks of this node; their answer is an event."""


class Join(Action):
    """Take part in the next round."""


class StartWorkers(Action):
    """Start the workers of the round that has formed."""


class StopWorkers(Action):
    """Begin the stop sequence, with `Loop.soft_signal`; its end is an event."""


class ClearUp(Action):
    """Begin to end what workers that have succeeded left behind; its end is an event."""


class Escalate(Action):
    """Skip the grace of the stop that is in progress."""


@plain_dataclass
class TellFailure(Action):
    """Tell the job what failed on this node, in a moment; at once if restarting cannot help.

    That is what `is_final` says.
    """

    is_final: bool = False


class WaitForPeers(Action):
    """Give the other nodes time to finish."""


@plain_dataclass
class Report(Action):
    """Say what happened and what follows; also to the other nodes, if they should know.

    `reason` is why a restart policy has decided so.
    """

    then: Again | Outcome
    reason: str = ""


@plain_dataclass
class Finish(Action):
    """End the run."""

    outcome: Outcome
