"""What the agent's decisions are made of: phases, outcomes, events, actions, and the state."""

from __future__ import annotations

import enum
from dataclasses import replace
from typing import TYPE_CHECKING

from plaunch.agent.worker import WorkerState
from plaunch.process.signals import KEYS, is_same_request
from plaunch.values import Value, plain_dataclass

if TYPE_CHECKING:
    import signal

    from plaunch.rendezvous.job import JobOutcome


class Phase(enum.Enum):
    """What the agent is doing."""

    IDLE = "idle"
    CHECKING = "checking"  # whether this node is healthy, before it joins
    JOINING = "joining"  # waiting for a round to form
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"  # the stop sequence runs; `State.then` is what follows
    CLEARING = "clearing"  # own workers have succeeded; what they left behind is being ended
    WAITING = "waiting"  # own workers have succeeded, those of other nodes still run
    DONE = "done"


class Outcome(enum.Enum):
    """How the agent ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"  # workers failed and no restart is left
    SIGNALLED = "signalled"  # a stop signal ended the job
    CLOSED = "closed"  # another node closed the rendezvous
    LEFT = "not_needed"  # the job does not need this node
    ERROR = "error"  # the rendezvous failed, or workers could not be started or stopped


class RestartReason(enum.Enum):
    """Why the agent joins another round after a stop."""

    MEMBERSHIP = "membership"
    FAILURE = "failure"  # the job decides whether there is another round
    REQUEST = "request"  # not counted against --max-restarts


class RequestKind(enum.Enum):
    """What may be requested of an agent."""

    STOP = "stop"  # the job ends, on all nodes where the rendezvous knows them
    RESTART = "restart"  # all workers of the job are stopped, and start again in another round
    LEAVE = "leave"  # this node leaves, and the job continues without it


@plain_dataclass
class State(Value):
    """All that the agent's decisions depend on."""

    max_restarts: int = 0  # shown to users; the job decides about restarts
    phase: Phase = Phase.IDLE
    workers: WorkerState = WorkerState.INIT
    attempt: int = 0
    round: int = -1
    has_succeeded: bool = False  # own workers have, in the round formed last
    is_restart: bool = False  # the round follows a failure
    then: RestartReason | Outcome | None = None  # after STOPPING: another round, or the end
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
    def awaits_decision(self) -> bool:
        """Whether a stop waits for the job to decide about a failure, which stays the cause."""
        return self.is_asked_to_end and self.then is RestartReason.FAILURE

    def awaits_decision_despite(self, event: AgentEvent) -> bool:
        """Whether a further stop waits for that decision, too.

        A request of another node is the decision.
        """
        is_decision = isinstance(event, Requested) and bool(event.node)
        return self.awaits_decision and not is_decision

    def asked(self, event: AgentEvent) -> State:
        """This state after a request for the end; it has the first one, and when that came."""
        if isinstance(event, Requested):
            return self if self.is_asked_to_end else replace(self, request=event)
        if self.asked_by is not None or not isinstance(event, StopRequested):
            return self
        return replace(self, asked_by=event.signum, asked_at=event.at)

    def is_impatient(self, event: AgentEvent) -> bool:
        r"""Whether a signal that arrives during a stop skips the grace.

        A second Ctrl-C or Ctrl-\ does, and also the first one after a failure. Programs send
        SIGTERM, SIGHUP and the like more than once for one request. A signal that comes soon after
        the first one, whichever that was, belongs to the same request.
        """
        if not isinstance(event, StopRequested):
            return False
        if self.asked_by is None:
            return event.signum in KEYS
        return not is_same_request(event.signum, event.at - self.asked_at)

    @property
    def stop_cause(self) -> str:
        """Why the workers are stopped: `failure`, `membership`, `request` or `end`."""
        if self.is_asked_to_end or self.then is RestartReason.REQUEST:
            return "request"
        if self.then in (RestartReason.FAILURE, Outcome.FAILED):
            return "failure"
        return "membership" if self.then is RestartReason.MEMBERSHIP else "end"

    @property
    def restarts_left(self) -> int:
        """How many more failures are followed by a restart."""
        return self.max_restarts - self.attempt


# --- events ---------------------------------------------------------------------------------------


class AgentEvent(Value):
    """Something that the table decides upon."""


class Begin(AgentEvent):
    """The run begins."""


@plain_dataclass
class RoundFormed(AgentEvent):
    """The rendezvous is complete and ranks are assigned.

    Args:
        attempt: how many restarts the job has used.
        round: the number of the round; None if the job does not count rounds.
        message: why the round has formed, for the log; empty if that has been logged.
    """

    attempt: int = 0
    round: int | None = None
    message: str = ""

    def number_after(self, state: State) -> int:
        """The number of the round, for an agent that was in `state`."""
        return state.round + 1 if self.round is None else self.round


@plain_dataclass
class RoundFailed(AgentEvent):
    """The rendezvous did not complete; `graceful` if this node is simply not needed."""

    graceful: bool = False


class StartSucceeded(AgentEvent):
    """Every worker has a process."""


class StartFailed(AgentEvent):
    """A worker could not be started."""


class AgentFailed(AgentEvent):
    """Something went wrong in the agent itself."""


class WorkFailed(AgentEvent):
    """At least one worker failed by itself."""


class WorkSucceeded(AgentEvent):
    """All workers ended with success."""


@plain_dataclass
class NodesChanged(AgentEvent):
    """A node arrived or left; or was lost, if `is_loss`."""

    is_loss: bool = False


class PeersFailed(AgentEvent):
    """Workers of another node failed."""


class PeersUnreachable(AgentEvent):
    """The other nodes have been silent for too long."""


@plain_dataclass
class JobEnded(AgentEvent):
    """The job is over for all nodes."""

    outcome: JobOutcome


@plain_dataclass
class StopRequested(AgentEvent):
    """A stop signal was received, `at` seconds on a clock that never goes back."""

    signum: signal.Signals
    at: float = 0.0


@plain_dataclass
class Requested(AgentEvent):
    """A request from outside.

    Args:
        kind: what is requested.
        reason: why.
        who: what requests it, in a few words; empty if `reason` contains it.
        node: the node that received the request; empty for this one.
    """

    kind: RequestKind
    reason: str
    who: str
    node: str = ""

    @property
    def origin(self) -> str:
        """What requests it and why, as the other nodes receive it."""
        return f"{self.who}: {self.reason}" if self.who else self.reason


@plain_dataclass
class StopAfterFailure(AgentEvent):
    """A stop that was requested before the failure that is its cause was known.

    The failure is an exception of a worker that has not exited, or an error of the agent.

    Args:
        stop: the signal or request.
    """

    stop: StopRequested | Requested


class DecisionOverdue(AgentEvent):
    """The job has not decided about a failure in time, and a stop waits for that."""


class StopSucceeded(AgentEvent):
    """The stop sequence is over: no worker is left, and no process that one has started."""


class NodeHealthy(AgentEvent):
    """All health checks of this node have passed."""


class NodeUnhealthy(AgentEvent):
    """A health check has failed."""


@plain_dataclass
class StopFailed(AgentEvent):
    """The stop sequence is over and a worker still runs; `error` says which."""

    error: BaseException | None = None


class PeersFinished(AgentEvent):
    """All other nodes have finished, or the time to wait for them is over."""


# --- actions --------------------------------------------------------------------------------------


class Action(Value):
    """Something that follows, and that the loop carries out."""


class CheckHealth(Action):
    """Run the health checks of this node; their result is an event."""


class Join(Action):
    """Take part in the next round."""


@plain_dataclass
class SkipDelay(Action):
    """Begin the next round now, although the job has delayed it."""

    request: Requested


class StartWorkers(Action):
    """Start the workers of the round that has formed."""


class StopWorkers(Action):
    """Begin the stop sequence, with `AgentStatus.soft_signal`; its end is an event."""


class ClearUp(Action):
    """Begin to end the processes that successful workers left behind; its end is an event."""


class Escalate(Action):
    """Skip the grace of the stop that is in progress."""


@plain_dataclass
class ReportFailure(Action):
    """Report to the job what failed on this node.

    If `is_final`, no restart can help: it is reported at once. Otherwise it is reported a moment
    later, when more is known of it.
    """

    is_final: bool = False


class WaitForPeers(Action):
    """Give the other nodes time to finish."""


@plain_dataclass
class ReportDecision(Action):
    """Log what happened and what follows, and report it to the job if other nodes need it."""

    then: RestartReason | Outcome


@plain_dataclass
class Finish(Action):
    """End the run."""

    outcome: Outcome
