"""The agent's decisions: a pure function from a state and an event to a state and actions.

Nothing here touches a process, a clock or a store. `step` looks the pair of phase and event up in
a table; what the table does not list leaves the state as it is. The shell in `agent.py` turns the
world into events and carries the actions out, in order.

Two counters are never mixed up: `attempt` counts failures that led to a restart, `round` counts
worlds that were formed. A failure advances both, a membership change only the round.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from plaunch.agent.worker import WorkerState

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable


class Phase(enum.Enum):
    """What the agent is busy with."""

    IDLE = "idle"
    JOINING = "joining"  # waiting for a round to form
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"  # the ladder is at work; `State.then` says what follows
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


@dataclass(frozen=True)
class State:
    """All that the agent's decisions depend on."""

    max_restarts: int
    phase: Phase = Phase.IDLE
    workers: WorkerState = WorkerState.INIT
    attempt: int = 0
    round: int = -1
    then: Again | Outcome | None = None  # after STOPPING: another round, or the end

    @property
    def restarts_left(self) -> int:
        """How many more failures are followed by a restart."""
        return self.max_restarts - self.attempt


# --- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Begin:
    """The agent was asked to run."""


@dataclass(frozen=True)
class RoundFormed:
    """The rendezvous is complete and ranks are assigned."""


@dataclass(frozen=True)
class RoundFailed:
    """The rendezvous did not complete; `graceful` if this node is simply not needed."""

    graceful: bool = False


@dataclass(frozen=True)
class WorkersStartedEvent:
    """Every worker has a process."""


@dataclass(frozen=True)
class StartFailed:
    """A worker could not be started."""


@dataclass(frozen=True)
class WorkersFailed:
    """At least one worker failed by itself."""


@dataclass(frozen=True)
class WorkersSucceeded:
    """All workers ended with success."""


@dataclass(frozen=True)
class MembershipChanged:
    """A node arrived, left or was lost."""


@dataclass(frozen=True)
class RendezvousClosed:
    """Another node closed the rendezvous."""


@dataclass(frozen=True)
class StopRequested:
    """A stop signal was received."""

    signum: signal.Signals


@dataclass(frozen=True)
class WorkersStopped:
    """The ladder is through: no worker is left."""


@dataclass(frozen=True)
class StopFailed:
    """The ladder is through and a worker is still there."""


@dataclass(frozen=True)
class PeersFinished:
    """All other nodes have finished, or the time to wait for them is over."""


Event = (
    Begin
    | RoundFormed
    | RoundFailed
    | WorkersStartedEvent
    | StartFailed
    | WorkersFailed
    | WorkersSucceeded
    | MembershipChanged
    | RendezvousClosed
    | StopRequested
    | WorkersStopped
    | StopFailed
    | PeersFinished
)


# --- actions --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Join:
    """Take part in the next round."""


@dataclass(frozen=True)
class StartWorkers:
    """Start the workers of the round that has formed."""


@dataclass(frozen=True)
class StopWorkers:
    """Run the stop ladder, with `signum` as its soft signal (None: SIGTERM)."""

    signum: signal.Signals | None = None


@dataclass(frozen=True)
class WaitForPeers:
    """Give the other nodes time to finish."""


@dataclass(frozen=True)
class Report:
    """Say what happened and what follows."""

    then: Again | Outcome


@dataclass(frozen=True)
class Finish:
    """End the run."""

    outcome: Outcome


Action = Join | StartWorkers | StopWorkers | WaitForPeers | Report | Finish
Transition = tuple[State, tuple[Action, ...]]


# --- transitions ----------------------------------------------------------------------------------


def _begin(state: State, event: Event) -> Transition:
    return replace(state, phase=Phase.JOINING), (Join(),)


def _round_formed(state: State, event: Event) -> Transition:
    formed = replace(state, phase=Phase.STARTING, round=state.round + 1, then=None)
    return formed, (StartWorkers(),)


def _round_failed(state: State, event: Event) -> Transition:
    graceful = isinstance(event, RoundFailed) and event.graceful
    return _finish(state, Outcome.LEFT if graceful else Outcome.ERROR)


def _started(state: State, event: Event) -> Transition:
    return replace(state, phase=Phase.RUNNING, workers=WorkerState.HEALTHY), ()


def _start_failed(state: State, event: Event) -> Transition:
    return _stop(replace(state, workers=WorkerState.FAILED), Outcome.ERROR)


def _failed(state: State, event: Event) -> Transition:
    if state.restarts_left > 0:
        stopping, actions = _stop(replace(state, workers=WorkerState.STOPPED), Again.RESTART)
        return stopping, (Report(Again.RESTART), *actions)
    # The result says what happened; nothing needs to be reported on the way.
    return _stop(replace(state, workers=WorkerState.FAILED), Outcome.FAILED)


def _succeeded(state: State, event: Event) -> Transition:
    done = replace(state, phase=Phase.WAITING, workers=WorkerState.SUCCEEDED)
    return done, (WaitForPeers(),)


def _membership_changed(state: State, event: Event) -> Transition:
    stopping, actions = _stop(replace(state, workers=WorkerState.STOPPED), Again.MEMBERSHIP)
    return stopping, (Report(Again.MEMBERSHIP), *actions)


def _closed(state: State, event: Event) -> Transition:
    stopping, actions = _stop(replace(state, workers=WorkerState.STOPPED), Outcome.CLOSED)
    return stopping, (Report(Outcome.CLOSED), *actions)


def _closed_before_stopped(state: State, event: Event) -> Transition:
    # The stop was for another round, which can no longer form.
    if isinstance(state.then, Again):
        return replace(state, then=Outcome.CLOSED), (Report(Outcome.CLOSED),)
    return state, ()


def _stop_requested(state: State, event: Event) -> Transition:
    signum = event.signum if isinstance(event, StopRequested) else None
    stopped = replace(state, workers=WorkerState.STOPPED)
    stopping, _ = _stop(stopped, Outcome.SIGNALLED)
    return stopping, (Report(Outcome.SIGNALLED), StopWorkers(signum))


def _stop_requested_before_start(state: State, event: Event) -> Transition:
    finished, actions = _finish(state, Outcome.SIGNALLED)
    return finished, (Report(Outcome.SIGNALLED), *actions)


def _stop_requested_while_stopping(state: State, event: Event) -> Transition:
    # The ladder goes on as it is; only what follows it changes. A failure or an error that already
    # decided the end keeps its place as the first cause.
    if isinstance(state.then, Again):
        return replace(state, then=Outcome.SIGNALLED), (Report(Outcome.SIGNALLED),)
    return state, ()


def _stopped(state: State, event: Event) -> Transition:
    if isinstance(state.then, Outcome):
        return _finish(state, state.then)
    attempt = state.attempt + (state.then is Again.RESTART)
    return replace(state, phase=Phase.JOINING, attempt=attempt), (Join(),)


def _stop_failed(state: State, event: Event) -> Transition:
    # Workers that cannot be ended must not meet a second generation on the same devices.
    finished, actions = _finish(replace(state, workers=WorkerState.UNHEALTHY), Outcome.ERROR)
    return finished, actions


def _peers_finished(state: State, event: Event) -> Transition:
    return _finish(state, Outcome.SUCCEEDED)


def _stop(state: State, then: Again | Outcome) -> Transition:
    return replace(state, phase=Phase.STOPPING, then=then), (StopWorkers(),)


def _finish(state: State, outcome: Outcome) -> Transition:
    return replace(state, phase=Phase.DONE, then=outcome), (Finish(outcome),)


_TABLE: dict[tuple[Phase, type], Callable[[State, Event], Transition]] = {
    (Phase.IDLE, Begin): _begin,
    (Phase.IDLE, StopRequested): _stop_requested_before_start,
    (Phase.JOINING, RoundFormed): _round_formed,
    (Phase.JOINING, RoundFailed): _round_failed,
    (Phase.JOINING, StopRequested): _stop_requested_before_start,
    (Phase.STARTING, WorkersStartedEvent): _started,
    (Phase.STARTING, StartFailed): _start_failed,
    (Phase.STARTING, StopRequested): _stop_requested,
    (Phase.RUNNING, WorkersFailed): _failed,
    (Phase.RUNNING, WorkersSucceeded): _succeeded,
    (Phase.RUNNING, MembershipChanged): _membership_changed,
    (Phase.RUNNING, RendezvousClosed): _closed,
    (Phase.RUNNING, StopRequested): _stop_requested,
    (Phase.STOPPING, WorkersStopped): _stopped,
    (Phase.STOPPING, StopFailed): _stop_failed,
    (Phase.STOPPING, RendezvousClosed): _closed_before_stopped,
    (Phase.STOPPING, StopRequested): _stop_requested_while_stopping,
    (Phase.WAITING, PeersFinished): _peers_finished,
    # Own workers have succeeded; a stop now cannot undo that, so it only ends the wait.
    (Phase.WAITING, RendezvousClosed): _peers_finished,
    (Phase.WAITING, StopRequested): _peers_finished,
}


def step(state: State, event: Event) -> Transition:
    """Decide what `event` means in `state`: the next state, and what to do, in order."""
    transition = _TABLE.get((state.phase, type(event)))
    if transition is None:
        return state, ()
    return transition(state, event)
