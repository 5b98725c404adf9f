"""The agent's loop: it polls for events, lets the state machine decide, and performs the actions.

The loop runs on the calling thread and waits in one place, `Poller.poll`, also while workers are
stopped. Worker exits, signals, the rendezvous, deadlines and finished background calls wake it.
Calls that may block for long (a rendezvous, the start of a store) run in a background thread that
the loop can abandon. Only a start of workers, and a stop of those of a subclass that was written
for torchrun, hold the loop.

`phases.py` waits for the events of each phase, `machine.py` decides, `effects.py` performs.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from typing import TYPE_CHECKING

from plaunch.agent import machine, notifications, states
from plaunch.agent.effects import Effects, log_without_effect
from plaunch.agent.extensions import Hang, SignalWorkers, Snapshot
from plaunch.agent.phases import Phases
from plaunch.agent.poller import QUIET_INTERVAL, BackgroundCall
from plaunch.process.signals import KEYS, SignalAction
from plaunch.process.streams import show_rest

if TYPE_CHECKING:
    import signal

    from plaunch.agent.components import LoopComponents

    _Stop = states.StopRequested | states.Requested

logger = logging.getLogger("plaunch")

_DECISION_WAIT = 2.0  # seconds for the job to decide about a failure, before a stop counts
_VERDICT_WAIT = 5.0  # seconds for the other nodes to learn of a failure of this node itself
_LAST_CONSOLE_WAIT = 5.0  # seconds for the console after a stop signal, or an error of the agent
_REPORT_WAIT = 2.0  # seconds to report, after that wait, what was not shown
# After these outcomes no other node waits for this one.
_ENDS_OF_JOB = (states.Outcome.SUCCEEDED, states.Outcome.FAILED, states.Outcome.CLOSED)
# These stay the result of the workers if a stop arrives before they are handled.
_RESULTS = (states.WorkSucceeded, states.AgentFailed)


class Loop:
    """Runs the workers of one agent to their end.

    Args:
        components: what the loop drives; their status has the first state.
    """

    def __init__(self, components: LoopComponents) -> None:
        self._components = components
        self._status = components.status
        self.results = components.results
        self._effects = Effects(components)
        self._phases = Phases(components, self._effects)
        # What has arrived and is not among the pending events yet: signals and requests for the
        # end, and requests for a restart.
        self._stops: list[_Stop | states.StopAfterFailure] = []
        self._restarts: list[states.Requested] = []
        self._decision_due = 0.0  # on the monotonic clock, for stops after a failure
        self.take_snapshot()

    def run(self) -> states.Outcome:
        """Poll and dispatch until the state machine finishes; returns how the run ended."""
        pending: deque[states.AgentEvent] = deque([states.Begin()])
        while True:
            try:
                self._add_inputs(pending)
                if not pending:
                    self.take_snapshot()
                    pending.extend(self._phases.watch(self._status.state))
                    continue
                for action in self._step(pending.popleft()):
                    if isinstance(action, states.Finish):
                        if action.outcome is not states.Outcome.FAILED:
                            self._effects.log_deferred()  # else the report has it
                        return action.outcome
                    pending.extend(self._effects.perform(action, self._status.state))
            except Exception as error:
                if self._status.state.phase is not states.Phase.RUNNING:
                    raise
                # As in any other stop, workers get their grace and signals are handled.
                logger.error(
                    "the launcher has failed, and stops the workers: %s: %s",
                    type(error).__name__,
                    error,
                )
                self.results.note_error(error)
                self._hold_stops()
                pending.clear()
                pending.append(states.AgentFailed())

    def tear_down(self, error: BaseException) -> None:
        """Stop the workers that still run after `error` has ended `run`."""
        self._effects.log_deferred()
        if isinstance(error, Exception):
            self.results.note_error(error)
            self.results.report_error(is_restart=self._status.state.is_restart)
        self._step(states.AgentFailed())
        self._hold_stops()
        stop, workers = self._effects.stop, self._components.workers
        end: states.AgentEvent | None = None
        if not stop.is_in_progress():
            end = stop.begin(lambda: workers.begin_stop(self._status.soft_signal))
        while stop.is_in_progress():
            self._components.poller.poll(workers.exit_fds(), min(stop.delay, QUIET_INTERVAL))
            workers.tend_store()
            self._take_inputs()
            stops, self._stops = self._stops, []
            for event in stops:
                if states.Escalate() in self._step(event):
                    stop.escalate()
            end = stop.step()
        if isinstance(end, states.StopFailed) and end.error is not None:
            raise end.error from error

    def take_snapshot(self) -> None:
        """Take a snapshot; it is replaced as a whole, since other threads read it."""
        state, workers = self._status.state, self._components.workers
        ranks = [worker.global_rank for worker in workers.group.workers]
        stdouts, stderrs = workers.log_files()
        self.snapshot = Snapshot(
            state.workers,
            state.round,
            state.attempt,
            tuple(rank for rank in ranks if rank >= 0),
            workers.pids(),
            stdouts=stdouts,
            stderrs=stderrs,
            succeeded=workers.succeeded(),
        )

    def _step(self, event: states.AgentEvent) -> tuple[states.Action, ...]:
        before = self._status.state
        state, actions = machine.step(before, event)
        self._status.state = state
        if isinstance(event, states.Requested) and state == before and not actions:
            log_without_effect(event, before)
        self._components.notifier.notify_state(state.workers)
        return actions

    # --- the end ----------------------------------------------------------------------------------

    def await_verdict(self) -> None:
        """Wait until the job has reacted to an error of this node, which may host its store."""
        peers = self._components.peers
        until = time.monotonic() + _VERDICT_WAIT
        while peers.awaits_verdict() and (remaining := until - time.monotonic()) > 0:
            if self._take_late_stops():
                return
            self._components.poller.poll(peers.fds(), min(remaining, peers.interval))
            peers.take_changes()

    def await_console(self, outcome: states.Outcome | None) -> None:
        """Wait until a slow reader of the console has been shown all of the output.

        There is no timeout, but a stop signal or a request for the end stops the wait. If there was
        one before, or other nodes may wait for this one to leave, the console has some seconds,
        which Ctrl-C ends.
        """
        components = self._components
        notifier, poller = components.notifier, components.poller
        streams = components.workers.streams()
        if streams is None or not streams.counts().lag_bytes:
            return
        is_endless = outcome in _ENDS_OF_JOB and not self._status.is_asked_to_end()
        timeout = math.inf if is_endless else _LAST_CONSOLE_WAIT
        wait = BackgroundCall("console", lambda: show_rest(streams, timeout), poller.wake_up)
        notifier.notify(notifications.ConsoleAwaited, streams.counts().lag_bytes)
        until = time.monotonic() + timeout + _REPORT_WAIT
        while not wait.is_done() and (remaining := until - time.monotonic()) > 0:
            poller.poll((), min(remaining, QUIET_INTERVAL))
            before = self._status.state
            stops = self._take_late_stops()
            if is_endless:
                is_over = bool(stops) or components.requests.has_end()
            else:  # programs send SIGTERM more than once for one request
                is_over = any(one.signum in KEYS and before.is_impatient(one) for one in stops)
            if is_over:
                streams.escalate()
                until = min(until, time.monotonic() + _REPORT_WAIT)

    def _take_late_stops(self) -> list[states.StopRequested]:
        """Take the stop signals that arrive after the run; listeners are notified of them."""
        stops = []
        for signum, action, at in self._components.inbox.take():
            if action is SignalAction.STOP:
                self._components.notifier.notify(notifications.SignalReceived, signum, action)
                stops.append(states.StopRequested(signum, at))
                self._status.state = self._status.state.asked(stops[-1])
        return stops

    # --- signals and requests ---------------------------------------------------------------------

    def _add_inputs(self, pending: deque[states.AgentEvent]) -> None:
        """Put signals and requests for the end before all other events.

        A restart must not overtake a stop that arrives during it. But a success or a failure that
        was seen before stays the result.
        """
        self._take_inputs()
        is_known = bool(pending) and isinstance(pending[0], _RESULTS)
        if self._stops and not is_known and (failed := self._find_raised()):
            # The exception is the cause of this stop, so the failure is handled first.
            self._log_held()
            self._hold_stops()
            pending.extendleft(reversed(failed))
            return
        first = [pending.popleft()] if is_known else []
        is_stopping = self._status.state.phase is states.Phase.STOPPING
        if self._stops and is_stopping and self.results.due() is not None:
            self.results.report_failure()
            first += self._components.peers.check_while_stopping(is_clearing=False)
        if self._status.state.awaits_decision and time.monotonic() >= self._decision_due:
            first.append(states.DecisionOverdue())
        stops, self._stops = self._stops, []
        restarts, self._restarts = self._restarts, []
        pending.extendleft(reversed([*first, *stops]))
        pending.extend(restarts)

    def _find_raised(self) -> list[states.AgentEvent]:
        """Return the failure of running workers that have raised an exception, if there are any."""
        is_running = self._status.state.phase is states.Phase.RUNNING
        return (
            self._phases.check_workers()
            if is_running and self._components.workers.fail_raised()
            else []
        )

    def _hold_stops(self) -> None:
        """Make a failure come before the stops that have arrived."""
        self._decision_due = time.monotonic() + _DECISION_WAIT
        self._stops = [
            stop if isinstance(stop, states.StopAfterFailure) else states.StopAfterFailure(stop)
            for stop in self._stops
        ]

    def _log_held(self) -> None:
        for stop in self._stops:
            if isinstance(stop, states.StopRequested):
                logger.warning(
                    "%s received; a worker had raised an exception and not exited, and that "
                    "failure comes first",
                    stop.signum.name,
                )

    def _take_inputs(self) -> None:
        """Take all signals and requests; those that are not for the state machine are handled."""
        requests, received = self._components.requests.take(), self._components.inbox.take()
        # An error in what follows must not lose these.
        for request in requests:
            if isinstance(request, states.Requested):
                is_restart = request.kind is states.RequestKind.RESTART
                (self._restarts if is_restart else self._stops).append(request)
        self._stops += [
            states.StopRequested(one.signum, one.at)
            for one in received
            if one.action is SignalAction.STOP
        ]
        for request in requests:
            self._handle(request)
        for signum, action, _ in received:
            self._components.notifier.notify(notifications.SignalReceived, signum, action)
            if action is SignalAction.STOP and not self._components.inbox.is_listed(signum):
                logger.warning(
                    "%s received, which no signal policy handles; it ends the job "
                    "(--signal-policy=notify passes such signals on to the workers)",
                    signum.name,
                )
            elif action is SignalAction.NOTIFY:
                self._forward(signum)

    def _handle(self, request: states.Requested | SignalWorkers | Hang) -> None:
        """Notify listeners of a request; handle it if it is not for the state machine."""
        if isinstance(request, states.Requested):
            self._components.notifier.notify(notifications.RequestReceived, request)
        elif isinstance(request, Hang):
            self._components.workers.note_hang(request)
            self._components.poller.wake_up.wake()  # to check them at once
        else:
            self._components.workers.signal(request.signum, request.ranks, request.reason)

    def _forward(self, signum: signal.Signals) -> None:
        if self._status.state.phase is states.Phase.STOPPING:
            logger.warning(
                "%s received; the workers are being stopped and do not get it", signum.name
            )
        elif self._components.forwarded.pass_on(signum):
            self._components.peers.send_notice(signum)
