"""The shell around the state machine: it carries actions out and turns the world into events.

One loop on the calling thread. It waits in one place, `Poller.poll`, also while workers are
stopped: woken by worker exits, signals, the rendezvous, deadlines and finished background calls.
Calls that may block for long (a rendezvous, waiting for peers) run in a background thread that the
loop can abandon. Only a start of workers, and a stop of those of a subclass that was written for
torchrun, hold the loop.
"""

from __future__ import annotations

import logging
import math
import signal
import time
from collections import deque
from typing import TYPE_CHECKING

from plaunch.agent import machine, notifications, states
from plaunch.agent.cause_wait import CauseWait
from plaunch.agent.messages import describe_turn
from plaunch.agent.peers import QUIET_INTERVAL
from plaunch.agent.poller import BackgroundCall
from plaunch.agent.requests import Hang, Snapshot
from plaunch.agent.results import Results
from plaunch.agent.rounds import Rounds
from plaunch.agent.worker import WorkerState
from plaunch.agent.workers import Stopping
from plaunch.process.stopping.signals import SignalAction
from plaunch.process.streams.api import show_rest

if TYPE_CHECKING:
    from plaunch.agent.before_round import BeforeRound
    from plaunch.agent.notices import Notices
    from plaunch.agent.notifications import Notifier
    from plaunch.agent.own_restarts import OwnRestarts
    from plaunch.agent.peers import Peers
    from plaunch.agent.poller import Poller
    from plaunch.agent.requests import Requests
    from plaunch.agent.signals import SignalInbox
    from plaunch.agent.wait_reporter import WaitReporter
    from plaunch.agent.workers import Workers

logger = logging.getLogger("plaunch")

# Seconds that own workers are given to show a failure of their own, once others have failed or are
# lost: theirs may be the first of the job, and only its own node sees it.
_LAST_LOOK = 0.1
# Seconds that a node which failed itself stays for the other nodes to hear of it.
_VERDICT_WAIT = 5.0
# After these no other node waits for this one.
_ENDS_OF_JOB = (states.Outcome.SUCCEEDED, states.Outcome.FAILED, states.Outcome.CLOSED)
# In these phases the workers that have ended are those of the present round.
_WORKING = (states.Phase.RUNNING, states.Phase.CLEARING, states.Phase.WAITING)
_LAST_CONSOLE_WAIT = 5.0  # seconds for the console after a stop signal, or an error of the agent
_REPORT_WAIT = 2.0  # seconds until what is not shown is reported, once the wait has ended


class Loop:
    """Runs the workers of one agent to their end.

    Args:
        workers: what is started, looked at and stopped.
        peers: the other nodes.
        notifier: is told of what happens.
        notices: passes signals on to the workers.
        poller: waits, and is woken.
        reporter: says what a round waits for.
        requests: what other threads ask for.
        restarts: decides what follows a failure, where the job does not.
        before_round: waits, and looks at this node, before it joins.
        exit_barrier_timeout: how long to wait for the other nodes after success, in seconds.
        state: where it begins.
    """

    def __init__(
        self,
        workers: Workers,
        peers: Peers,
        notifier: Notifier,
        notices: Notices,
        poller: Poller,
        reporter: WaitReporter,
        requests: Requests,
        restarts: OwnRestarts,
        before_round: BeforeRound,
        *,
        exit_barrier_timeout: float,
        state: states.State,
    ) -> None:
        self._restarts = restarts
        spec = workers.group.spec
        self.state = state
        self._before_round = before_round
        self.results = Results(workers, peers, notifier)
        self.soft_signal = signal.SIGTERM  # that the workers are stopped with
        self._monitor_interval = spec.monitor_interval
        self._workers = workers
        self._peers = peers
        self._notifier = notifier
        self._notices = notices
        self._poller = poller
        self._reporter = reporter
        self._rounds = Rounds(workers, peers, notifier, poller, reporter)
        self._stopping = Stopping(workers.end_stop)
        self._cause_wait = CauseWait()
        self._exit_barrier_timeout = exit_barrier_timeout
        self._inbox: SignalInbox | None = None
        self._requests = requests
        self.look_around()

    def is_asked_to_end(self) -> bool:
        """Whether a signal or a request has asked for the end, or will when the loop comes to it.

        That is for what holds the loop.
        """
        is_due = self._inbox is not None and self._inbox.has_stop()
        return is_due or self._requests.has_end() or self.state.is_asked_to_end

    def run(self, inbox: SignalInbox) -> states.Outcome:
        """Go on until the table says that this is the end."""
        self._inbox = inbox
        pending: deque[states.Event] = deque([states.Begin()])
        while True:
            # Stops come first: one that arrives during a restart must not be overtaken by it.
            # But a node that was seen to have succeeded before has not been stopped.
            has_succeeded = bool(pending) and isinstance(pending[0], states.WorkSucceeded)
            seen = [pending.popleft()] if has_succeeded else []
            requests = self._take_requests()
            ends = [one for one in requests if one.kind is not states.RequestKind.RESTART]
            pending.extendleft(reversed([*seen, *self._take_signals(inbox), *ends]))
            pending.extend(one for one in requests if one not in ends)
            try:
                if not pending:
                    pending.extend(self._watch())
                    continue
                for action in self._step(pending.popleft()):
                    if isinstance(action, states.Finish):
                        return action.outcome
                    event = self._perform(action)
                    if event is not None:
                        pending.append(event)
            except Exception as error:
                if self.state.phase is not states.Phase.RUNNING:
                    raise
                # The workers have their grace, and signals are heard, as in any other stop.
                logger.error(
                    "the launcher has failed, and stops the workers: %s: %s",
                    type(error).__name__,
                    error,
                )
                self.results.error = error
                pending.clear()
                pending.append(states.AgentFailed())

    def tear_down(self, error: BaseException) -> None:
        """Stop what still runs after `error` has torn the loop out of its work."""
        if isinstance(error, Exception):
            self.results.error = error
            self.results.tell_error(is_restart=self.state.is_restart)
        if not self._workers.stop_in_steps() or self._inbox is None:
            return  # `_shutdown` does it
        self._step(states.AgentFailed())
        stop = self._stopping
        if not stop.is_in_progress():
            stop.begin(lambda: self._workers.begin_stop(self.soft_signal))
        while stop.is_in_progress():
            self._poller.poll(self._workers.exit_fds() or (), min(stop.delay, QUIET_INTERVAL))
            self._workers.tend()
            for event in self._take_signals(self._inbox):
                if states.Escalate() in self._step(event):
                    stop.escalate()
            stop.step()
        if stop.error is not None:
            raise stop.error from error

    def await_verdict(self) -> None:
        """Stay until the job has acted on an error of this node, which may host its store."""
        until = time.monotonic() + _VERDICT_WAIT
        while self._peers.awaits_verdict() and (remaining := until - time.monotonic()) > 0:
            received = () if self._inbox is None else self._inbox.take()
            if any(one.action is SignalAction.STOP for one in received):
                return
            self._poller.poll(self._peers.fds(), min(remaining, self._peers.interval))
            self._peers.take_changes()

    def await_console(self, outcome: states.Outcome | None) -> None:
        """Stay while something reads the console and has not been shown all of the output.

        A stop signal or a request for the end ends that. If one came before, or other nodes may
        wait for this one to leave, the console has some seconds, unless Ctrl-C ends them.
        """
        streams = self._workers.streams()
        if streams is None or self._inbox is None or not streams.counts().lag_bytes:
            return
        is_endless = outcome in _ENDS_OF_JOB and not self.is_asked_to_end()
        timeout = math.inf if is_endless else _LAST_CONSOLE_WAIT
        wait = BackgroundCall("console", lambda: show_rest(streams, timeout), self._poller.wake_up)
        self._notifier.notify(notifications.ConsoleAwaited, streams.counts().lag_bytes)
        until = time.monotonic() + timeout + _REPORT_WAIT
        while not wait.is_done() and (remaining := until - time.monotonic()) > 0:
            self._poller.poll((), min(remaining, QUIET_INTERVAL))
            if self._takes_end(self._inbox, is_endless=is_endless):
                streams.escalate()
                until = min(until, time.monotonic() + _REPORT_WAIT)

    def _takes_end(self, inbox: SignalInbox, *, is_endless: bool) -> bool:
        """Whether something ends the wait for the console that has come since the last call."""
        stops = [one for one in inbox.take() if one.action is SignalAction.STOP]
        for one in stops:
            self._notifier.notify(notifications.SignalReceived, one.signum, one.action)
        if is_endless:
            return bool(stops) or self._requests.has_end()
        # Programs send SIGTERM more than once for one request.
        return any(one.signum in (signal.SIGINT, signal.SIGQUIT) for one in stops)

    # --- signals ----------------------------------------------------------------------------------

    def _take_signals(self, inbox: SignalInbox) -> list[states.Event]:
        stops: list[states.Event] = []
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
                if self.state.asked_by is None and not stops:  # the first one to ask
                    # Workers may know a signal that nobody handles here as a notice.
                    self.soft_signal = signum if received.is_listed else signal.SIGTERM
                stops.append(states.StopRequested(signum, received.at))
            elif action is SignalAction.NOTIFY:
                self._pass_on(signum)
        return stops

    def _pass_on(self, signum: signal.Signals) -> None:
        if self.state.phase is states.Phase.STOPPING:
            logger.warning(
                "%s received; the workers are being stopped and do not get it", signum.name
            )
        elif self._notices.pass_on(signum):
            self._peers.send_notice(signum)

    def _take_requests(self) -> list[states.Requested]:
        events: list[states.Requested] = []
        for request in self._requests.take():
            if isinstance(request, states.Requested):
                self._notifier.notify(notifications.RequestReceived, request)
                events.append(request)
            elif isinstance(request, Hang):
                self._workers.note_hang(request)
                self._poller.wake_up.wake()  # to look at them at once
            else:
                self._workers.signal(request.signum, request.ranks, request.reason)
        return events

    # --- actions ----------------------------------------------------------------------------------

    def _step(self, event: states.Event) -> tuple[states.Action, ...]:
        before = self.state
        self.state, actions = machine.step(before, event)
        if isinstance(event, states.Requested) and self.state == before and not actions:
            logger.info(
                "%s asks for a %s (%s), but this has no effect while this agent is %s",
                event.who,
                event.kind.value,
                event.reason,
                before.phase.value,
            )
        self._notifier.notify_state(self.state.workers)
        return actions

    def look_around(self) -> None:
        """Have a snapshot of the present; as a whole, since other threads read it."""
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
            waits_for=self._before_round.waits_for if state.phase is states.Phase.PAUSING else "",
            is_job_wide=state.is_job_wide,
            stdouts=stdouts,
            stderrs=stderrs,
            succeeded=succeeded,
        )

    def _perform(self, action: states.Action) -> states.Event | None:
        if isinstance(action, states.Join):
            self._rounds.join()
        elif isinstance(action, (states.Pause, states.CheckHealth)):
            self._before_round.begin(action, self.state)
        elif isinstance(action, states.StartWorkers):
            return self._start_workers()
        elif isinstance(action, states.StopWorkers):
            self._notifier.notify(notifications.BeforeStop, self.state.stop_cause)
            return self._end_of_stop(
                self._stopping.begin(lambda: self._workers.begin_stop(self.soft_signal))
            )
        elif isinstance(action, states.ClearUp):
            return self._end_of_stop(self._stopping.begin(self._workers.begin_clearing))
        elif isinstance(action, states.Escalate):
            if self._stopping.is_in_progress():
                logger.warning("the rest of the grace is skipped")
                self._stopping.escalate()
                return self._end_of_stop(self._stopping.step())
        elif isinstance(action, states.TellFailure):
            if action.is_final:
                self.results.tell_error(is_restart=self.state.is_restart)
            else:
                self._peers.note_failure(self.results.of_workers)
        elif isinstance(action, states.WaitForPeers):
            self._peers.begin_wait(self._exit_barrier_timeout, self._workers.wait_for_peers)
        elif isinstance(action, states.Report):
            self._report(action)
        return None

    def _start_workers(self) -> states.Event:
        self._notifier.notify(notifications.BeforeWorkers)
        try:
            self._notices.forget()
            self._workers.start()
        except Exception as error:  # noqa: BLE001 - re-raised as the outcome of the run
            self.results.fail_start(
                error, is_restart=self.state.is_restart, is_wanted=not self.is_asked_to_end()
            )
            return states.StartFailed()
        self.results.begin_work(self.state.attempt)
        self._restarts.begin_work()
        self._cause_wait.begin_round()
        self._reporter.workers_started()
        self._notifier.notify(notifications.WorkersStarted, self._workers.forked())
        return states.StartSucceeded()

    def _report(self, report: states.Report) -> None:
        self.results.end_work()
        self._peers.announce(report.then, self.state)
        text = describe_turn(
            report.then, self.state, self.results.of_workers, self._peers.reason, report.reason
        )
        self._rounds.turn = text
        if text:
            logger.warning("%s", text)

    def _end_of_stop(self, end: states.Event | None) -> states.Event | None:
        if end is not None:
            self.results.error = self._stopping.error or self.results.error
            self.results.end_stop()
        return end

    # --- events -----------------------------------------------------------------------------------

    def _watch(self) -> list[states.Event]:
        """Wait until something may have happened and say what it was."""
        self.look_around()
        phase = self.state.phase
        if phase in (states.Phase.PAUSING, states.Phase.CHECKING):
            events = self._before_round.watch(self.state)
            self.results.error = self._before_round.error or self.results.error
            return events
        if phase is states.Phase.JOINING:
            events = self._rounds.watch(self.state)
            for formed in (one for one in events if isinstance(one, states.RoundFormed)):
                self.results.begin_round(formed.counted(self.state)[0], self._rounds.reason)
            self.results.error = self._rounds.error or self.results.error
            return events
        if phase is states.Phase.RUNNING:
            return self._watch_workers()
        if phase is states.Phase.WAITING:
            events = self._peers.watch(self._workers.exit_fds() or (), self._workers.due())
            self._workers.tend()
            return events
        return self._watch_stop()

    def _watch_workers(self) -> list[states.Event]:
        exit_fds, interval = self._workers.exit_fds(), self._monitor_interval
        dues = (self._workers.due(), self._cause_wait.due())
        if exit_fds is not None and self._peers.wakes and self._workers.exits_suffice():
            interval = max(interval, self._peers.interval)
        self._poller.poll(
            [*(exit_fds or ()), *self._peers.fds()],
            min(interval, *(due for due in dues if due is not None), interval),
        )
        return self._look_at_workers() or self._peers.look(self._look_for_failures)

    def _look_at_workers(self) -> list[states.Event]:
        result = self._workers.look()
        if result.state is WorkerState.SUCCEEDED:
            self.results.of_workers = result
            return [states.WorkSucceeded()]
        if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
            group = self._workers.group
            running = len(group.workers) - len(result.failures)
            has_peers = self.state.is_job_wide and (group.group_world_size or 1) > 1
            if self._cause_wait.is_on(result, others=running > 0 or has_peers):
                return []
            self.results.fail(result)
            is_final = not self._workers.are_of_use() or self._workers.is_final
            if is_final or self.state.is_job_wide:
                return [states.WorkFailed(is_final=is_final)]
            decision = self._restarts.decide(result, self.state.attempt)
            if decision is not None and not decision.is_restart:
                self.results.no_restart = decision.reason
            return [states.WorkFailed(decision=decision)]
        if result.state is not WorkerState.HEALTHY:
            raise RuntimeError(
                f"the workers of role {self._workers.group.spec.role!r} are {result.state.name}, "
                "says _monitor_workers of this agent, but that is not a state of started workers"
            )
        return []

    def _look_for_failures(self, *, is_loss: bool) -> list[states.Event]:
        """Look once more, for a moment, whether own workers have failed by themselves.

        If a node is lost (`is_loss`), workers that only miss a peer have not.
        """
        if not is_loss:
            self._cause_wait.end()
        until = time.monotonic() + _LAST_LOOK
        while (remaining := until - time.monotonic()) > 0:
            self._poller.poll(self._workers.exit_fds() or (), remaining)
            events = self._look_at_workers()
            if events and isinstance(events[0], states.WorkFailed):
                # The others settle soon what failed first, and wait for nobody then.
                self.results.tell_failure()
                return events
        return []

    def _watch_stop(self) -> list[states.Event]:
        """Wait until the stop in progress has something to do, or something else happens."""
        dues = (self._workers.due(), self.results.due())
        timeout = min(
            self._stopping.delay, self._peers.interval, *(due for due in dues if due is not None)
        )
        self._poller.poll([*(self._workers.exit_fds() or ()), *self._peers.fds()], timeout)
        self._workers.tend()
        if self.results.due() == 0.0:
            self.results.tell_failure()
        is_clearing = self.state.phase is states.Phase.CLEARING
        events = self._peers.look_while_stopping(is_clearing=is_clearing)
        end = self._end_of_stop(self._stopping.step())
        return events if end is None else [*events, end]
