"""What the loop does for each action of the state machine, and the stop that it drives."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plaunch.agent import notifications, states
from plaunch.agent.messages import REQUESTS, StopReason, describe_decision
from plaunch.errors import UnkillableWorkerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.agent.components import LoopComponents
    from plaunch.agent.states import Action, AgentEvent, State
    from plaunch.process.stopping.stop import Stop

logger = logging.getLogger("plaunch")

# Seconds until the cause of a stop is logged by itself. If the next round forms or the job ends
# before, that line or the report contains the cause, and it is logged once.
_LOG_AFTER = 1.0


class StopInProgress:
    """The stop in progress, if there is one, for the loop that drives it.

    Args:
        at_end: called when a stop is over, also if a worker survives SIGKILL; an
            `UnkillableWorkerError` of it replaces that of the stop. A step that is interrupted is
            not the end: another one follows.
    """

    def __init__(self, at_end: Callable[[], None]) -> None:
        self._at_end = at_end
        self._stop: Stop | None = None
        self.delay = 0.0  # seconds until it has something to do

    def begin(self, begin: Callable[[], Stop | None]) -> AgentEvent | None:
        """Begin a stop; the event of its end, if it is over at once."""
        try:
            self._stop = begin()
        except UnkillableWorkerError as error:
            return states.StopFailed(error)
        return self.step()

    def step(self) -> AgentEvent | None:
        """Take the next step; the event of the end, if it was the last one."""
        if self._stop is None:
            return states.StopSucceeded()
        error: UnkillableWorkerError | None = None
        try:
            delay = self._stop.step()
        except UnkillableWorkerError as found:
            delay, error = None, found
        if delay is not None:
            self.delay = delay
            return None
        try:
            self._at_end()
        except UnkillableWorkerError as found:
            error = found
        self._stop = None
        return states.StopSucceeded() if error is None else states.StopFailed(error)

    def is_in_progress(self) -> bool:
        """Whether a stop has begun and is not over."""
        return self._stop is not None

    def escalate(self) -> None:
        """Skip the grace."""
        if self._stop is not None:
            self._stop.escalate()


class Effects:
    """Performs actions. Each returns the events that follow from it at once.

    Args:
        components: of the agent.
    """

    def __init__(self, components: LoopComponents) -> None:
        self.logged = StopReason()  # about why the workers were stopped last
        self._deferred = StopReason()  # the next one
        self._log_at = 0.0  # on the monotonic clock
        self.stop = StopInProgress(components.workers.end_stop)
        self._components = components

    def perform(self, action: Action, state: State) -> list[AgentEvent]:
        """Perform one action; `state` is the state after the step that it comes from."""
        effect: Callable[..., list[AgentEvent] | None] = _EFFECTS[type(action)]
        return effect(self, action, state) or []

    def end_of_stop(self, end: AgentEvent | None, state: State) -> list[AgentEvent]:
        """The events of a step of the stop: none, or the decision of the job and then its `end`."""
        if end is None:
            return []
        components = self._components
        if isinstance(end, states.StopFailed):
            components.results.note_error(end.error)
        components.results.end_stop()
        is_clearing = state.phase is states.Phase.CLEARING
        return [*components.peers.check_while_stopping(is_clearing=is_clearing), end]

    def _join(self, action: Action, state: State) -> None:
        joiner = self._components.joiner
        joiner.join()
        if joiner.waits_for:
            self._deferred = StopReason()  # the next line has it
            self._log(StopReason(f"waiting for {joiner.waits_for}", has_next_round=True))

    def _skip_delay(self, action: states.SkipDelay, state: State) -> None:
        if self._components.joiner.waits_for:
            self._components.peers.skip_delay(action.request)
        else:
            log_without_effect(action.request, state)

    def _check_health(self, action: Action, state: State) -> None:
        self._components.preconditions.begin(is_member=state.round >= 0)

    def _start_workers(self, action: Action, state: State) -> list[AgentEvent]:
        components = self._components
        components.notifier.notify(notifications.BeforeWorkers)
        try:
            components.forwarded.forget()
            components.workers.start()
        except Exception as error:  # noqa: BLE001 - re-raised as the outcome of the run
            is_wanted = not components.status.is_asked_to_end()
            components.results.fail_start(error, is_restart=state.is_restart, is_wanted=is_wanted)
            return [states.StartFailed()]
        components.results.begin_work(state.attempt)
        components.wait_reporter.workers_started()
        components.notifier.notify(notifications.WorkersStarted, components.workers.forked())
        return [states.StartSucceeded()]

    def _stop_workers(self, action: Action, state: State) -> list[AgentEvent]:
        self._components.notifier.notify(notifications.BeforeStop, state.stop_cause)
        workers, signum = self._components.workers, self._components.status.soft_signal
        return self.end_of_stop(self.stop.begin(lambda: workers.begin_stop(signum)), state)

    def _clear_up(self, action: Action, state: State) -> list[AgentEvent]:
        return self.end_of_stop(self.stop.begin(self._components.workers.begin_clearing), state)

    def _escalate(self, action: Action, state: State) -> list[AgentEvent]:
        if not self.stop.is_in_progress():
            return []
        logger.warning("the rest of the grace is skipped")
        self.stop.escalate()
        return self.end_of_stop(self.stop.step(), state)

    def _report_failure(self, action: states.ReportFailure, state: State) -> None:
        results = self._components.results
        if action.is_final:
            results.report_error(is_restart=state.is_restart)
        else:
            self._components.peers.note_failure(results.of_workers)

    def _wait_for_peers(self, action: Action, state: State) -> None:
        self._components.peers.begin_wait()

    def _report(self, action: states.ReportDecision, state: State) -> None:
        components = self._components
        components.results.end_work()
        components.peers.announce(action.then, state)
        why = components.peers.stop_reason
        logged = replace(why, text=describe_decision(action.then, state, why, self.logged))
        if action.then in (states.RestartReason.FAILURE, states.Outcome.FAILED):
            self._deferred, self._log_at = logged, time.monotonic() + _LOG_AFTER
        else:
            self.log_deferred()
            self._log(logged)

    def due(self) -> float | None:
        """Seconds until a deferred message must be logged, or None."""
        return max(self._log_at - time.monotonic(), 0.0) if self._deferred.text else None

    def log_round(self, text: str) -> None:
        """Log why a round has formed; the deferred message if that is not known."""
        if text:
            self._deferred = StopReason()
            logger.warning("%s", text)
        else:
            self.log_deferred()

    def log_deferred(self) -> None:
        """Log the deferred message, if there is one."""
        self._log(self._deferred)
        self._deferred = StopReason()

    def _log(self, why: StopReason) -> None:
        if why.text:
            self.logged = why
            logger.warning("%s", why.text)


def log_without_effect(request: states.Requested, state: State) -> None:
    """Log that a request changes nothing in this state."""
    logger.info(
        "%s requests %s (%s), but this has no effect while this agent is %s",
        request.who,
        REQUESTS[request.kind],
        request.reason,
        state.phase.value,
    )


_EFFECTS: dict[type, Callable[..., Any]] = {
    states.CheckHealth: Effects._check_health,
    states.Join: Effects._join,
    states.SkipDelay: Effects._skip_delay,
    states.StartWorkers: Effects._start_workers,
    states.StopWorkers: Effects._stop_workers,
    states.ClearUp: Effects._clear_up,
    states.Escalate: Effects._escalate,
    states.ReportFailure: Effects._report_failure,
    states.WaitForPeers: Effects._wait_for_peers,
    states.ReportDecision: Effects._report,
}
