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
import signal
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from plaunch.agent import machine, notifications, states
from plaunch.agent.effects import Effects, log_without_effect
from plaunch.agent.phases import Phases
from plaunch.agent.poller import QUIET_INTERVAL
from plaunch.agent.requests import Hang, Snapshot
from plaunch.process.signals import SignalAction

if TYPE_CHECKING:
    from plaunch.agent.loop_components import LoopComponents
    from plaunch.agent.signals import SignalInbox

logger = logging.getLogger("plaunch")

# In these phases the workers that have ended are those of the present round.
_WORKING = (states.Phase.RUNNING, states.Phase.CLEARING, states.Phase.WAITING)


class Inputs(NamedTuple):
    """The signals that stop the job, and the requests, that have arrived since the last call."""

    stops: list[states.AgentEvent]
    requests: list[states.Requested]


class Loop:
    """Runs the workers of one agent to their end.

    Args:
        components: what the loop drives.
        exit_barrier_timeout: how long to wait for the other nodes after success, in seconds.
        state: where the state machine begins.
        is_whole_job: whether requests to this agent are for all nodes of the job; for snapshots.
    """

    def __init__(
        self,
        components: LoopComponents,
        *,
        exit_barrier_timeout: float,
        state: states.State,
        is_whole_job: bool,
    ) -> None:
        self.state = state
        self.results = components.results
        self._is_whole_job = is_whole_job
        self._workers = components.workers
        self._peers = components.peers
        self._notifier = components.notifier
        self._forwarded = components.forwarded
        self._poller = components.poller
        self._requests = components.requests
        self._effects = Effects(components, exit_barrier_timeout, self.is_asked_to_end)
        self._phases = Phases(components, self._effects)
        self._inbox: SignalInbox | None = None
        self.look_around()

    @property
    def soft_signal(self) -> signal.Signals:
        """The signal that the workers are stopped with."""
        return self._effects.soft_signal

    def is_asked_to_end(self) -> bool:
        """Whether a signal or a request asks for the end, taken from its queue or not.

        For code that holds the loop, on any thread.
        """
        is_due = self._inbox is not None and self._inbox.has_stop()
        return is_due or self._requests.has_end() or self.state.is_asked_to_end

    def run(self, inbox: SignalInbox) -> states.Outcome:
        """Poll and dispatch until the state machine finishes; returns how the run ended."""
        self._inbox = inbox
        pending: deque[states.AgentEvent] = deque([states.Begin()])
        while True:
            self._add_inputs(pending, inbox)
            try:
                if not pending:
                    self.look_around()
                    pending.extend(self._phases.watch(self.state))
                    continue
                for action in self._step(pending.popleft()):
                    if isinstance(action, states.Finish):
                        if action.outcome is not states.Outcome.FAILED:
                            self._effects.log_deferred()  # else the report has it
                        return action.outcome
                    pending.extend(self._effects.perform(action, self.state))
            except Exception as error:
                if self.state.phase is not states.Phase.RUNNING:
                    raise
                # As in any other stop, workers get their grace and signals are handled.
                logger.error(
                    "the launcher has failed, and stops the workers: %s: %s",
                    type(error).__name__,
                    error,
                )
                self.results.note_error(error)
                pending.clear()
                pending.append(states.AgentFailed())

    def tear_down(self, error: BaseException, inbox: SignalInbox) -> None:
        """Stop the workers that still run after `error` has ended `run`."""
        self._effects.log_deferred()
        if isinstance(error, Exception):
            self.results.note_error(error)
            self.results.report_error(is_restart=self.state.is_restart)
        self._step(states.AgentFailed())
        stop = self._effects.stop
        if not stop.is_in_progress():
            stop.begin(lambda: self._workers.begin_stop(self.soft_signal))
        while stop.is_in_progress():
            self._poller.poll(self._workers.exit_fds(), min(stop.delay, QUIET_INTERVAL))
            self._workers.tend()
            for event in self._take_inputs(inbox).stops:
                if states.Escalate() in self._step(event):
                    stop.escalate()
            stop.step()
        if stop.error is not None:
            raise stop.error from error

    def look_around(self) -> None:
        """Take a snapshot; it is replaced as a whole, since other threads read it."""
        state, workers = self.state, self._workers
        pids = workers.pids()
        workers.holds.tend(pids.values())
        ranks = [worker.global_rank for worker in workers.group.workers]
        stdouts, stderrs = workers.log_files()
        succeeded = workers.succeeded()
        if state.phase in _WORKING:
            self._peers.note_succeeded(succeeded)
        self.snapshot = Snapshot(
            state.workers,
            state.round,
            state.attempt,
            tuple(rank for rank in ranks if rank >= 0),
            pids,
            is_job_wide=self._is_whole_job,
            stdouts=stdouts,
            stderrs=stderrs,
            succeeded=succeeded,
        )

    def _step(self, event: states.AgentEvent) -> tuple[states.Action, ...]:
        before = self.state
        self.state, actions = machine.step(before, event)
        if isinstance(event, states.Requested) and self.state == before and not actions:
            log_without_effect(event, before)
        self._notifier.notify_state(self.state.workers)
        return actions

    # --- signals and requests ---------------------------------------------------------------------

    def _add_inputs(self, pending: deque[states.AgentEvent], inbox: SignalInbox) -> None:
        """Put signals and requests for the end before all other events.

        A restart must not overtake a stop that arrives during it. But a success or a failure of
        workers that was seen before stays the result.
        """
        has_succeeded = bool(pending) and isinstance(pending[0], states.WorkSucceeded)
        first = [pending.popleft()] if has_succeeded else []
        stops, requests = self._take_inputs(inbox)
        ends = [one for one in requests if one.kind is not states.RequestKind.RESTART]
        is_stopping = self.state.phase is states.Phase.STOPPING
        if (stops or ends) and is_stopping and self.results.due() is not None:
            self.results.report_failure()
            first += self._peers.look_while_stopping(is_clearing=False)
        pending.extendleft(reversed([*first, *stops, *ends]))
        pending.extend(one for one in requests if one not in ends)

    def _take_inputs(self, inbox: SignalInbox) -> Inputs:
        """Take all requests and signals, and handle those that are not for the state machine."""
        requests = self._take_requests()
        stops: list[states.AgentEvent] = []
        for received in inbox.take():
            signum, action = received.signum, received.action
            self._notifier.notify(notifications.SignalReceived, signum, action)
            if action is SignalAction.STOP:
                if not received.is_listed:
                    logger.warning(
                        "%s received, which no signal policy handles; it ends the job "
                        "(--signal-policy=notify passes such signals on to the workers)",
                        signum.name,
                    )
                if self.state.asked_by is None and not stops:  # the first request for the end
                    # Workers may handle a signal that no policy lists as a notice.
                    listed = signum if received.is_listed else signal.SIGTERM
                    self._effects.soft_signal = listed
                stops.append(states.StopRequested(signum, received.at))
            elif action is SignalAction.NOTIFY:
                self._forward(signum)
        return Inputs(stops, requests)

    def _forward(self, signum: signal.Signals) -> None:
        if self.state.phase is states.Phase.STOPPING:
            logger.warning(
                "%s received; the workers are being stopped and do not get it", signum.name
            )
        elif self._forwarded.pass_on(signum):
            self._peers.send_notice(signum)

    def _take_requests(self) -> list[states.Requested]:
        events: list[states.Requested] = []
        for request in self._requests.take():
            if isinstance(request, states.Requested):
                self._notifier.notify(notifications.RequestReceived, request)
                events.append(request)
            elif isinstance(request, Hang):
                self._workers.note_hang(request)
                self._poller.wake_up.wake()  # to check them at once
            else:
                self._workers.signal(request.signum, request.ranks, request.reason)
        return events
