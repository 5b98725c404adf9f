"""The agent's decisions: a pure function from a state and an event to a state and actions.

Nothing here touches a process, a clock or a store. `step` looks the pair of phase and event up in
a table; what the table does not list leaves the state as it is. The loop (`loop.py`) creates the
events and performs the actions, in order.

Two counters are never mixed up: `attempt` counts failures that led to a restart, `round` counts
worlds that were formed. A failure advances both; a membership change and a requested restart
advance only the round.

The job (`JobRendezvous`) counts attempts and decides about restarts. After a failure, on this node
or another one, the agent stops its workers and joins again; the job then forms a round or has
ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from plaunch.agent import states
from plaunch.agent.states import (
    Action,
    AgentEvent,
    Outcome,
    Phase,
    RequestKind,
    RestartReason,
    State,
)
from plaunch.agent.worker import WorkerState
from plaunch.rendezvous.job import JobOutcome

Step = tuple[State, tuple[Action, ...]]
# Each takes the type of event that the table lists it for.
Transition = Callable[[State, Any], Step]


def _begin(state: State, event: AgentEvent) -> Step:
    return _join(state, is_suspect=True)


def _round_formed(state: State, event: states.RoundFormed) -> Step:
    if state.awaits_decision:  # the job continues, and the stop counts
        return _stop_requested_before_start(state, event)
    formed = replace(
        state,
        phase=Phase.STARTING,
        attempt=event.attempt,
        round=event.number_after(state),
        has_succeeded=False,
        then=None,
        request=None,
    )
    return formed, (states.StartWorkers(),)


def _round_failed(state: State, event: states.RoundFailed) -> Step:
    return _finish(state, Outcome.LEFT if event.graceful else Outcome.ERROR)


def _started(state: State, event: AgentEvent) -> Step:
    return replace(state, phase=Phase.RUNNING, workers=WorkerState.HEALTHY), ()


def _start_failed(state: State, event: AgentEvent) -> Step:
    # The failure that this start follows, if there is one, stays the cause.
    end = Outcome.FAILED if state.is_restart else Outcome.ERROR
    failed = replace(state, workers=WorkerState.FAILED)
    return _stop(failed, end, states.ReportFailure(is_final=True))


def _agent_failed(state: State, event: AgentEvent) -> Step:
    failed = replace(state, workers=WorkerState.FAILED)
    return _stop(failed, Outcome.ERROR, states.ReportFailure(is_final=True))


def _failed(state: State, event: AgentEvent) -> Step:
    stopped = replace(state, workers=WorkerState.STOPPED)
    actions = (states.ReportFailure(), states.ReportDecision(RestartReason.FAILURE))
    return _stop(stopped, RestartReason.FAILURE, *actions)


def _succeeded(state: State, event: AgentEvent) -> Step:
    done = replace(state, phase=Phase.CLEARING, workers=WorkerState.SUCCEEDED, has_succeeded=True)
    return done, (states.ClearUp(),)


def _cleared(state: State, event: AgentEvent) -> Step:
    if state.then is Outcome.SUCCEEDED:
        # This node does not wait for others, but reports its success to them.
        return _finish(state, Outcome.SUCCEEDED, states.WaitForPeers())
    return replace(state, phase=Phase.WAITING), (states.WaitForPeers(),)


def _stop_requested_while_clearing(state: State, event: AgentEvent) -> Step:
    # Own workers have succeeded; a stop now cannot undo that, but other nodes are not awaited.
    first = state.then is not Outcome.SUCCEEDED
    done = replace(state.asked(event), then=Outcome.SUCCEEDED)
    actions: tuple[Action, ...] = (states.ReportDecision(Outcome.SUCCEEDED),) if first else ()
    return done, (*actions, states.Escalate()) if state.is_impatient(event) else actions


def _stops_for(then: RestartReason | Outcome) -> Transition:
    """The workers are stopped, and the reason is reported."""

    def decide(state: State, event: AgentEvent) -> Step:
        return _stop(replace(state, workers=WorkerState.STOPPED), then, states.ReportDecision(then))

    return decide


_stop_for_members = _stops_for(RestartReason.MEMBERSHIP)
_peers_failed = _stops_for(RestartReason.FAILURE)


def _membership_changed(state: State, event: states.NodesChanged) -> Step:
    return _stop_for_members(replace(state, is_suspect=event.is_loss), event)


def _unreachable(state: State, event: AgentEvent) -> Step:
    stopped = replace(state, workers=_stopped_if_running(state))
    return _stop(stopped, Outcome.ERROR, states.ReportDecision(Outcome.ERROR))


def _unreachable_before_stopped(state: State, event: AgentEvent) -> Step:
    # Only a stop for another round changes its aim.
    if isinstance(state.then, RestartReason):
        return replace(state, then=Outcome.ERROR), (states.ReportDecision(Outcome.ERROR),)
    return state, ()


def _job_ended(state: State, event: states.JobEnded) -> Step:
    ended = _with_end_of_job(state, event)
    if ended.then is Outcome.SUCCEEDED:
        return _finish(ended, Outcome.SUCCEEDED)
    return replace(ended, phase=Phase.STOPPING), (
        states.ReportDecision(_end(ended)),
        states.StopWorkers(),
    )


def _job_ended_while_clearing(state: State, event: states.JobEnded) -> Step:
    if state.then is Outcome.SUCCEEDED and state.request is not None:
        return state, ()  # this node has ended it, or is about to go, and keeps its result
    ended = _with_end_of_job(state, event)
    if ended.then is Outcome.SUCCEEDED:
        return ended, ()
    return replace(ended, phase=Phase.STOPPING), (states.ReportDecision(_end(ended)),)


def _job_ended_before_stopped(state: State, event: states.JobEnded) -> Step:
    # Only a stop for another round changes its aim.
    if isinstance(state.then, RestartReason):
        ended = _with_end_of_job(state, event)
        return ended, (states.ReportDecision(_end(ended)),)
    return state, ()


def _job_ended_before_round(state: State, event: states.JobEnded) -> Step:
    ended = _with_end_of_job(state, event)
    return _finish(ended, _end(ended), states.ReportDecision(_end(ended)))


def _with_end_of_job(state: State, event: states.JobEnded) -> State:
    """Set `then` to what the end of the job means for this node, and the state of its workers."""
    if event.outcome is JobOutcome.FAILED:
        return replace(state, workers=WorkerState.FAILED, then=Outcome.FAILED)
    if event.outcome is JobOutcome.SUCCEEDED and state.has_succeeded:
        return replace(state, workers=WorkerState.SUCCEEDED, then=Outcome.SUCCEEDED)
    # Closed or stopped, or a success that this node has no part in.
    return replace(state, workers=_stopped_if_running(state), then=Outcome.CLOSED)


def _stopped_if_running(state: State) -> WorkerState:
    return WorkerState.STOPPED if WorkerState.is_running(state.workers) else state.workers


def _end(state: State) -> Outcome:
    return state.then if isinstance(state.then, Outcome) else Outcome.CLOSED


def _stop_requested(state: State, event: AgentEvent) -> Step:
    stopped = replace(state.asked(event), workers=WorkerState.STOPPED)
    after, stop = _stop(stopped, Outcome.SIGNALLED)
    # The workers get their signal first: on a busy machine, a message takes a tenth of a second.
    return after, (*stop, states.ReportDecision(Outcome.SIGNALLED))


def _stop_requested_before_start(state: State, event: AgentEvent) -> Step:
    return _finish(state.asked(event), Outcome.SIGNALLED, states.ReportDecision(Outcome.SIGNALLED))


def _stop_requested_before_round(state: State, event: AgentEvent) -> Step:
    if state.awaits_decision_despite(event) and not state.is_impatient(event):
        return state.asked(event), ()
    return _stop_requested_before_start(state, event)


def _stop_requested_while_stopping(state: State, event: AgentEvent) -> Step:
    # A failure or an error that already decided the end keeps its place as the first cause.
    actions: tuple[Action, ...] = (states.Escalate(),) if state.is_impatient(event) else ()
    known = state.asked(event)
    if isinstance(state.then, RestartReason) and not state.awaits_decision_despite(event):
        after, report = _end_by_signal(known)
        return after, (*report, *actions)
    return known, actions


def _end_by_signal(state: State) -> Step:
    ended = replace(state, then=Outcome.SIGNALLED)
    return ended, (states.ReportDecision(Outcome.SIGNALLED),)


def _stop_requested_after_failure(state: State, event: states.StopAfterFailure) -> Step:
    known = state.asked(event.stop)
    if not isinstance(state.then, RestartReason):
        return known, ()
    # A job that may restart its workers is not awaited: the stop would prevent that.
    is_last = known.awaits_decision and state.attempt >= state.max_restarts
    return (known, ()) if is_last else _end_by_signal(known)


def _decision_overdue(state: State, event: AgentEvent) -> Step:
    if not state.awaits_decision:
        return state, ()
    if state.phase is Phase.STOPPING:
        return _end_by_signal(state)
    return _stop_requested_before_start(state, event)


def _restart_requested(state: State, event: states.Requested) -> Step:
    known = replace(state.asked(event), workers=WorkerState.STOPPED)
    return _stop(known, RestartReason.REQUEST, states.ReportDecision(RestartReason.REQUEST))


def _restart_requested_before_round(state: State, event: states.Requested) -> Step:
    return state, (states.SkipDelay(event),) if state.is_restart else ()


def _stopped(state: State, event: AgentEvent) -> Step:
    if isinstance(state.then, Outcome):
        return _finish(state, state.then)
    is_restart = state.then is RestartReason.FAILURE
    again = replace(state, is_restart=is_restart)
    return _join(again, is_suspect=is_restart or state.is_suspect)


def _healthy(state: State, event: AgentEvent) -> Step:
    return _join(state, is_suspect=False)


def _unhealthy(state: State, event: AgentEvent) -> Step:
    return _finish(state, Outcome.ERROR)


def _unreachable_before_round(state: State, event: AgentEvent) -> Step:
    return _finish(state, Outcome.ERROR, states.ReportDecision(Outcome.ERROR))


def _stop_failed(state: State, event: AgentEvent) -> Step:
    # Workers that cannot be killed still use the devices, so no others may be started.
    return _finish(replace(state, workers=WorkerState.UNHEALTHY), Outcome.ERROR)


def _peers_finished(state: State, event: AgentEvent) -> Step:
    return _finish(state, Outcome.SUCCEEDED)


def _stop_requested_while_waiting(state: State, event: AgentEvent) -> Step:
    # Own workers have succeeded; a stop now cannot undo that, so it only ends the wait.
    return _finish(state.asked(event), Outcome.SUCCEEDED, states.ReportDecision(Outcome.SUCCEEDED))


def _while_clearing(transition: Transition) -> Transition:
    """The same decision while what the workers left behind is being ended already.

    A node that was asked to stop in the meantime ends with its success, whatever happens to others.
    """

    def decide(state: State, event: AgentEvent) -> Step:
        if state.then is Outcome.SUCCEEDED:
            return state, ()
        after, actions = transition(state, event)
        return after, tuple(action for action in actions if action != states.StopWorkers())

    return decide


# --- what several of them have in common ---------------------------------------------------------


def _stop(state: State, then: RestartReason | Outcome, *before: Action) -> Step:
    return replace(state, phase=Phase.STOPPING, then=then), (*before, states.StopWorkers())


def _join(state: State, *, is_suspect: bool) -> Step:
    if is_suspect and state.has_checks:
        return replace(state, phase=Phase.CHECKING), (states.CheckHealth(),)
    return replace(state, phase=Phase.JOINING, is_suspect=False), (states.Join(),)


def _finish(state: State, outcome: Outcome, *before: Action) -> Step:
    return replace(state, phase=Phase.DONE, then=outcome), (*before, states.Finish(outcome))


# A request is listed by its kind; one for an end, as a signal that means so.
_TABLE: dict[tuple[Phase, type | RequestKind], Transition] = {
    (Phase.IDLE, states.Begin): _begin,
    (Phase.IDLE, states.StopRequested): _stop_requested_before_start,
    (Phase.CHECKING, states.NodeHealthy): _healthy,
    (Phase.CHECKING, states.NodeUnhealthy): _unhealthy,
    (Phase.CHECKING, states.PeersUnreachable): _unreachable_before_round,
    (Phase.CHECKING, states.JobEnded): _job_ended_before_round,
    (Phase.CHECKING, states.StopRequested): _stop_requested_before_round,
    (Phase.CHECKING, states.DecisionOverdue): _decision_overdue,
    (Phase.JOINING, states.RoundFormed): _round_formed,
    (Phase.JOINING, states.RoundFailed): _round_failed,
    (Phase.JOINING, states.JobEnded): _job_ended_before_round,
    (Phase.JOINING, states.StopRequested): _stop_requested_before_round,
    (Phase.JOINING, states.DecisionOverdue): _decision_overdue,
    (Phase.JOINING, RequestKind.RESTART): _restart_requested_before_round,
    (Phase.STARTING, states.StartSucceeded): _started,
    (Phase.STARTING, states.StartFailed): _start_failed,
    (Phase.STARTING, states.AgentFailed): _agent_failed,
    (Phase.STARTING, states.StopRequested): _stop_requested,
    (Phase.STARTING, RequestKind.RESTART): _restart_requested,
    (Phase.RUNNING, states.WorkFailed): _failed,
    (Phase.RUNNING, states.WorkSucceeded): _succeeded,
    (Phase.RUNNING, states.NodesChanged): _membership_changed,
    (Phase.RUNNING, states.PeersFailed): _peers_failed,
    (Phase.RUNNING, states.PeersUnreachable): _unreachable,
    (Phase.RUNNING, states.JobEnded): _job_ended,
    (Phase.RUNNING, states.AgentFailed): _agent_failed,
    (Phase.RUNNING, states.StopRequested): _stop_requested,
    (Phase.RUNNING, RequestKind.RESTART): _restart_requested,
    (Phase.STOPPING, states.StopSucceeded): _stopped,
    (Phase.STOPPING, states.StopFailed): _stop_failed,
    (Phase.STOPPING, states.PeersUnreachable): _unreachable_before_stopped,
    (Phase.STOPPING, states.JobEnded): _job_ended_before_stopped,
    (Phase.STOPPING, states.StopRequested): _stop_requested_while_stopping,
    (Phase.STOPPING, states.StopAfterFailure): _stop_requested_after_failure,
    (Phase.STOPPING, states.DecisionOverdue): _decision_overdue,
    (Phase.CLEARING, states.StopSucceeded): _cleared,
    (Phase.CLEARING, states.StopFailed): _stop_failed,
    (Phase.CLEARING, states.NodesChanged): _while_clearing(_membership_changed),
    (Phase.CLEARING, states.PeersFailed): _while_clearing(_peers_failed),
    (Phase.CLEARING, states.PeersUnreachable): _while_clearing(_unreachable),
    (Phase.CLEARING, states.JobEnded): _job_ended_while_clearing,
    (Phase.CLEARING, states.StopRequested): _stop_requested_while_clearing,
    (Phase.CLEARING, RequestKind.RESTART): _while_clearing(_restart_requested),
    (Phase.WAITING, states.PeersFinished): _peers_finished,
    # The job is not done after all.
    (Phase.WAITING, states.NodesChanged): _membership_changed,
    (Phase.WAITING, states.PeersFailed): _peers_failed,
    (Phase.WAITING, states.PeersUnreachable): _unreachable,
    (Phase.WAITING, states.JobEnded): _job_ended,
    (Phase.WAITING, states.StopRequested): _stop_requested_while_waiting,
    (Phase.WAITING, RequestKind.RESTART): _restart_requested,
}


def step(state: State, event: AgentEvent) -> Step:
    """Decide what `event` means in `state`: the next state, and what to do, in order."""
    kind: type | RequestKind = type(event)
    if isinstance(event, states.Requested):
        is_end = event.kind is not RequestKind.RESTART
        kind = states.StopRequested if is_end else event.kind
    decide = _TABLE.get((state.phase, kind))
    return (state, ()) if decide is None else decide(state, event)
