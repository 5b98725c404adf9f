"""The shell around the state machine: it carries actions out and turns the world into events.

One loop on the calling thread. It waits in one place, `poll`, also while workers are stopped: woken
by worker exits, signals, the rendezvous, deadlines and finished background calls. Calls that may
block for long (a rendezvous, waiting for peers) run in a background thread that the loop can
abandon. Only `_start_workers`, and `_stop_workers` of a subclass that was written for torchrun,
hold the loop.
"""

from __future__ import annotations

import abc
import logging
import os
import select
import signal
import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from plaunch.agent import machine, notifications, states
from plaunch.agent.alive import TURN_BOUND, Alive
from plaunch.agent.api import DEFAULT_ROLE, ElasticAgent
from plaunch.agent.background import BackgroundCall
from plaunch.agent.barrier import wait_for_peers
from plaunch.agent.job import Job
from plaunch.agent.messages import describe_round, describe_turn
from plaunch.agent.node import prepare_rendezvous
from plaunch.agent.notices import Notices
from plaunch.agent.notifier import Notifier
from plaunch.agent.rounds import Round, enter_round, join_round
from plaunch.agent.signals import SignalInbox, StopOn, WakeUp
from plaunch.agent.wait_reporter import WaitReporter
from plaunch.agent.worker import RunResult, WorkerGroup, WorkerSpec, WorkerState
from plaunch.durations import PATIENCE, milliseconds
from plaunch.errors import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousGracefulExitError,
    SignalException,
    UnkillableWorkerError,
)
from plaunch.process.stopping.signals import SignalAction, SignalPolicy
from plaunch.rendezvous.api import ChangeKind, MembershipChange, ObservableRendezvous
from plaunch.rendezvous.job import JobRound

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch.agent.stopping import WorkersStop

logger = logging.getLogger("plaunch")

# Seconds between two looks where everything wakes the loop by itself. Ten looks a second at nothing
# would be most of what a launcher costs; were a wake-up lost, the job would be late, but not stuck.
_QUIET_INTERVAL = 2.0
# The same with other nodes: what knows of them looks after its connections when it is asked.
_JOB_INTERVAL = 1.0
# Seconds that own workers are given to show a failure of their own, once others have failed or are
# lost: theirs may be the first of the job, and only its own node sees it.
_LAST_LOOK = 0.1
# Seconds that a failure may take to be complete: that others of the same moment and cause are seen,
# and what they last wrote. Then it is told, while the stop goes on.
_SETTLE = 0.1
# Seconds that a node which failed itself stays for the other nodes to hear of it.
_VERDICT_WAIT = 5.0


class SimpleElasticAgent(ElasticAgent):
    """An agent whose way of running workers is left to four methods; names are torchrun's.

    A subclass defines `_start_workers`, `_stop_workers`, `_monitor_workers` and `_shutdown`. It is
    asked how its workers are once per monitor interval, unless `_exit_fds` names descriptors that
    become readable when a worker ends.

    Args:
        spec: what to run.
        exit_barrier_timeout: how long to wait for the other nodes after success, in seconds.
        shutdown_timeout: how long workers may take to stop before they are killed, in seconds.
        signal_policy: what signals mean; by default those of `TORCHELASTIC_SIGNALS_TO_HANDLE` stop
            the job.
        notify: is called with each of `plaunch.agent.notifications`; it must not raise or block.
        waiting: says what a round waits for, and ends a first one that takes too long.
        alive: is told whenever the loop goes to sleep and wakes.

    Raises:
        UsageError: a time cannot be used, or the rendezvous has joined with another spec.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        exit_barrier_timeout: float = 300,
        shutdown_timeout: float = 30,
        *,
        signal_policy: SignalPolicy | None = None,
        notify: notifications.Notify | None = None,
        waiting: WaitReporter | None = None,
        alive: Alive | None = None,
    ) -> None:
        PATIENCE.check(exit_barrier_timeout, "exit_barrier_timeout")
        PATIENCE.check(shutdown_timeout, "shutdown_timeout")
        self._waiting = waiting or WaitReporter()
        self._alive = alive or Alive(shutdown_timeout + TURN_BOUND)
        self._worker_group = WorkerGroup(spec)
        self._exit_barrier_timeout = exit_barrier_timeout
        self._shutdown_timeout = shutdown_timeout
        self._signal_policy = signal_policy or StopOn.from_environment(os.environ)
        self._host = socket.gethostname()
        prepare_rendezvous(spec, shutdown_timeout)
        self._job = Job.find(spec.rdzv_handler, self._host)
        self._machine = states.State(
            max_restarts=spec.max_restarts, is_job_wide=self._job is not None
        )
        self._notifier = Notifier(self._worker_group, lambda: self._machine, notify)
        self._wake_up = WakeUp()
        self._inbox: SignalInbox | None = None
        # Looked up when it is called: somebody may replace the method of one agent.
        self._notices = Notices(lambda signum: self._signal_workers(signum))  # noqa: PLW0108
        self._background: BackgroundCall | None = None
        self._run_result = RunResult(WorkerState.INIT)
        self._death_signal = signal.SIGTERM  # that the job ended with
        self._soft_signal = signal.SIGTERM  # that the workers are stopped with
        self._close_reason = ""
        self._joined_at = 0.0  # on the monotonic clock
        self._turn = ""  # why the agent changed its course last
        self._error: BaseException | None = None
        self._stop: WorkersStop | None = None
        self._stop_delay = 0.0  # seconds until the stop has something to do
        self._failure_due: float | None = None  # on the monotonic clock, of one not told yet
        self._failed_before: RunResult | None = None  # the failure that this round is to mend
        self._has_started = False  # whether the workers of this round have been

    # --- what subclasses define -------------------------------------------------------------------

    @abc.abstractmethod
    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        """Start `spec.local_world_size` workers and return an id for each local rank."""

    @abc.abstractmethod
    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        """Stop all workers, whatever their state; also called when there are none."""

    @abc.abstractmethod
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Say how the workers are, without waiting."""

    @abc.abstractmethod
    def _shutdown(
        self, death_sig: signal.Signals = signal.SIGTERM, timeout: float | None = None
    ) -> None:
        """Stop all workers and release everything; called once, at the end of the run."""

    def _exit_fds(self) -> Sequence[int] | None:
        """Descriptors that become readable when a worker ends; None: ask every interval."""
        return None

    def _due(self) -> float | None:
        """Seconds until `_monitor_workers` is to be called whatever happens, or None."""
        return None

    def _tend(self) -> None:
        """Look after what the workers of other nodes need of this one, whose own have ended."""

    def _exits_suffice(self) -> bool:
        """Whether `_monitor_workers` finds nothing that a descriptor of `_exit_fds` does not tell.

        It is then called less often than once per monitor interval.
        """
        return False

    def _signal_workers(self, signum: signal.Signals) -> None:
        """Pass a signal on to the workers, which keep running."""
        logger.warning("%s is not passed on: this agent has no way to do so", signum.name)

    def _is_of_use(self) -> bool:
        """Whether workers that failed are the job's concern.

        False if it is this host that has failed: the job is then better off without it.
        """
        return True

    def _stops_in_steps(self) -> bool:
        """Whether `_begin_stop` returns at once, and all that is known of a failure comes later."""
        return False

    def _begin_stop(self, death_sig: signal.Signals) -> WorkersStop | None:
        """Begin to stop all workers; the loop takes the steps of what is returned.

        None if it is done: here, where all that is known is `_stop_workers`, which may block.
        """
        del death_sig
        self._stop_workers(self._worker_group)
        return None

    def _begin_clearing(self) -> WorkersStop | None:
        """The same for what workers that have all succeeded left behind."""
        return None

    def _stopped_result(self) -> RunResult | None:
        """How the workers failed, as far as it is known by now; None if no more than before."""
        return None

    @property
    def stop_signal(self) -> signal.Signals | None:
        """The signal that asked this agent to stop first, if any has."""
        return self._machine.asked_by

    # --- for everybody ----------------------------------------------------------------------------

    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """The agent's worker group; it changes while the agent runs."""
        del role
        return self._worker_group

    def has_stop_request(self) -> bool:
        """Whether a signal that the loop has not come to yet stops the job; for what holds it."""
        return self._inbox is not None and self._inbox.has_stop()

    @property
    def _remaining_restarts(self) -> int:
        return self._machine.restarts_left

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run the workers to the end; see `ElasticAgent.run`."""
        result: RunResult | None = None
        outcome: states.Outcome | None = None
        try:
            with SignalInbox(self._signal_policy, self._wake_up) as inbox:
                self._inbox = inbox
                try:
                    outcome = self._invoke_run(role, inbox)
                except BaseException as error:
                    if isinstance(error, Exception):
                        self._tell_error(error)
                    self._stop_at_last(inbox)
                    raise
                finally:
                    self._shutdown(self._soft_signal, timeout=self._shutdown_timeout)
                    self._await_verdict(inbox)
            result = self._conclude(outcome)
            return result
        finally:
            word = "" if outcome is None else outcome.value
            reason = str(self._error) if outcome is states.Outcome.LEFT else ""
            self._notifier.notify(notifications.AgentFinished, result, word, reason)
            self._wake_up.close()
            self._alive.ends()

    def _conclude(self, outcome: states.Outcome) -> RunResult:
        if outcome is states.Outcome.FAILED and self._job is not None:
            result = self._job.failed_result(self._run_result)
            self._notifier.notify_failures(result)
            return result
        if outcome in (states.Outcome.SUCCEEDED, states.Outcome.FAILED):
            return self._run_result
        if outcome is states.Outcome.LEFT:
            logger.info("this node was not needed: %s", self._error)
            return RunResult(WorkerState.SUCCEEDED)
        if outcome is states.Outcome.SIGNALLED:
            raise SignalException(
                f"{self._death_signal.name} received; the workers were stopped", self._death_signal
            )
        if self._error is not None:
            raise self._error
        if outcome is states.Outcome.ERROR and self._job is not None:
            raise self._job.unreachable_error()
        if outcome is states.Outcome.CLOSED and self._job is not None:
            raise self._job.closed_error()
        if outcome is states.Outcome.CLOSED:
            raise RendezvousClosedError(
                f"the rendezvous of job {self._notifier.run_id!r} was closed: {self._close_reason}"
            )
        raise RuntimeError(f"the agent ended with {outcome.value!r} but without an error")

    # --- the loop ---------------------------------------------------------------------------------

    def _invoke_run(self, role: str, inbox: SignalInbox) -> states.Outcome:
        del role
        pending: deque[states.Event] = deque([states.Begin()])
        while True:
            # Signals come first: a stop that arrives during a restart must not be overtaken by it.
            pending.extendleft(reversed(self._take_signals(inbox)))
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
                if self._machine.phase is not states.Phase.RUNNING:
                    raise
                # The workers have their grace, and signals are heard, as in any other stop.
                logger.error(
                    "the launcher has failed, and stops the workers: %s: %s",
                    type(error).__name__,
                    error,
                )
                self._error = error
                pending.clear()
                pending.append(states.AgentFailed())

    def _take_signals(self, inbox: SignalInbox) -> list[states.Event]:
        stops: list[states.Event] = []
        for received in inbox.take():
            signum, action = received.signum, received.action
            self._notifier.notify(notifications.SignalReceived, signum, action)
            if action is SignalAction.STOP:
                if not received.is_listed:
                    logger.warning(
                        "%s received, which no signal policy handles: it ends the job, as it would "
                        "end any program (--signal-policy=notify passes such signals on to the "
                        "workers)",
                        signum.name,
                    )
                if self._machine.asked_by is None and not stops:  # the first one to ask
                    # Workers may know a signal that nobody handles here as a notice.
                    self._soft_signal = signum if received.is_listed else signal.SIGTERM
                stops.append(states.StopRequested(signum, received.at))
            elif action is SignalAction.NOTIFY:
                self._pass_on(signum)
        return stops

    def _pass_on(self, signum: signal.Signals) -> None:
        if self._machine.phase is states.Phase.STOPPING:
            logger.warning(
                "%s received; the workers are being stopped and do not get it", signum.name
            )
            return
        if self._notices.pass_on(signum) and self._job is not None:
            self._job.send_notice(signum)

    def _step(self, event: states.Event) -> tuple[states.Action, ...]:
        self._machine, actions = machine.step(self._machine, event)
        if self._machine.asked_by is not None:
            self._death_signal = self._machine.asked_by
        self._notifier.notify_state(self._machine.workers)
        return actions

    def _perform(self, action: states.Action) -> states.Event | None:
        if isinstance(action, states.Join):
            self._join()
        elif isinstance(action, states.StartWorkers):
            return self._perform_start()
        elif isinstance(action, states.StopWorkers):
            return self._perform_stop(lambda: self._begin_stop(self._soft_signal))
        elif isinstance(action, states.ClearUp):
            return self._perform_stop(self._begin_clearing)
        elif isinstance(action, states.Escalate):
            return self._escalate()
        elif isinstance(action, states.TellFailure) and self._job is not None:
            if action.is_final:
                self._tell_error(self._error)
            else:
                self._job.note_failure(self._run_result)
        elif isinstance(action, states.WaitForPeers):
            self._wait_for_peers()
        elif isinstance(action, states.Report):
            self._report(action.then)
        return None

    def _join(self) -> None:
        self._notifier.notify(notifications.BeforeRendezvous)
        self._joined_at = time.monotonic()
        self._waiting.begin()
        self._background = BackgroundCall(
            "rendezvous", lambda: join_round(self._worker_group.spec), self._wake_up
        )

    def _wait_for_peers(self) -> None:
        if self._job is not None:
            self._job.tell_success(self._exit_barrier_timeout)
        else:
            self._background = BackgroundCall("peers", self._exit_barrier, self._wake_up)

    def _report(self, then: states.Again | states.Outcome) -> None:
        if self._job is not None and then is states.Outcome.SIGNALLED:
            self._job.announce_leave(self._death_signal)
        reason = self._close_reason if self._job is None else self._job.reason
        text = describe_turn(then, self._machine, self._run_result, self._death_signal, reason)
        self._turn = text
        logger.warning("%s", text)

    def _perform_start(self) -> states.Event:
        group = self._worker_group
        self._notifier.notify(notifications.BeforeWorkers)
        self._has_started = False
        try:
            self._notices.forget()
            ids = self._start_workers(group)
        except Exception as error:  # noqa: BLE001 - re-raised as the outcome of the run
            return self._start_failed(error)
        for worker in group.workers:
            worker.id = ids.get(worker.local_rank)
        self._has_started = True
        self._failed_before = None  # it is mended
        self._waiting.workers_started()
        self._notifier.notify(notifications.WorkersStarted)
        return states.StartSucceeded()

    def _start_failed(self, error: Exception) -> states.Event:
        self._error = error
        if self._machine.is_restart and self._failed_before is not None:
            # The first failure stays the cause; that it could not be mended is said beside it.
            self._run_result = self._failed_before
            if not self.has_stop_request():  # else they are not to start, and the job ends for that
                logger.error(
                    "the workers cannot be started again after a failure, which is therefore the "
                    "end of the job: %s",
                    error,
                )
        return states.StartFailed()

    def _perform_stop(self, begin: Callable[[], WorkersStop | None]) -> states.Event | None:
        try:
            self._stop = begin()
        except UnkillableWorkerError as error:
            self._error = error
            return states.StopFailed()
        return self._step_stop()

    def _step_stop(self) -> states.Event | None:
        """Take the next step of the stop in progress; an event if it was the last one."""
        try:
            delay = None if self._stop is None else self._stop.step()
        except UnkillableWorkerError as error:
            self._error = error
            end: states.Event = states.StopFailed()
        else:
            if delay is not None:
                self._stop_delay = delay
                return None
            end = states.StopSucceeded()
        self._stop = None
        if self._failure_due is not None:
            self._tell_failure()
        elif self._run_result.is_failed():
            self._complete_failure()
        return end

    def _stop_at_last(self, inbox: SignalInbox) -> None:
        """Stop what still runs after something has torn the loop out of its work."""
        if not self._stops_in_steps():
            return  # `_shutdown` does it
        self._step(states.AgentFailed())
        stop = self._stop or self._begin_stop(self._soft_signal)
        while stop is not None and (delay := stop.step()) is not None:
            self._poll(list(self._exit_fds() or ()), min(delay, _QUIET_INTERVAL))
            self._tend()
            for event in self._take_signals(inbox):
                if states.Escalate() in self._step(event):
                    stop.escalate()

    def _escalate(self) -> states.Event | None:
        if self._stop is None:
            return None
        logger.warning("the rest of the grace is skipped")
        self._stop.escalate()
        return self._step_stop()

    def _tell_failure(self) -> None:
        """Tell of the failure that ended the round, with all that is known of it by now."""
        self._failure_due = None
        self._complete_failure()
        self._notifier.notify_failures(self._run_result)
        if self._job is not None and self._is_of_use():
            self._job.tell_failures(self._run_result.failures)

    def _complete_failure(self) -> None:
        """Have all in the result that is known of the failure by now."""
        # Before the workers of a round are started, all that is there are those of the last one.
        result = self._stopped_result() if self._has_started else None
        if result is not None and result.failures:
            self._run_result = result
        self._failed_before = self._run_result

    def _tell_error(self, error: BaseException | None) -> None:
        """Tell the job why this node ends, unless the job would rather go on without it."""
        if error is None or self._job is None or self._job.has_verdict():
            return
        if not isinstance(error, (RendezvousError, SignalException, UnkillableWorkerError)):
            before = self._failed_before if self._machine.is_restart else None
            self._job.tell_error(error, {} if before is None else before.failures)

    def _await_verdict(self, inbox: SignalInbox) -> None:
        """Stay until the job has acted on an error of this node, which may host its store."""
        job = self._job
        if job is None or not job.has_told_error:
            return
        until = time.monotonic() + _VERDICT_WAIT
        fds = [job.fileno()] if job.fileno() >= 0 else []
        while not job.has_verdict() and (remaining := until - time.monotonic()) > 0:
            if any(received.action is SignalAction.STOP for received in inbox.take()):
                return
            self._poll(fds, min(remaining, _JOB_INTERVAL))
            self._notifier.notify_changes(job.take_changes())

    def _watch(self) -> list[states.Event]:
        """Wait until something may have happened and say what it was."""
        phase = self._machine.phase
        if phase is states.Phase.RUNNING:
            return self._watch_workers()
        if phase in (states.Phase.STOPPING, states.Phase.CLEARING):
            return self._watch_stop()
        if phase is states.Phase.WAITING and self._job is not None:
            return self._watch_peers(self._job)
        is_joining = phase is states.Phase.JOINING
        if is_joining:
            self._poll([], self._waiting.pause())
        else:
            self._poll(self._exit_fds() or (), self._due())
            self._tend()
        call = self._background
        if call is None or not call.is_done():
            return self._keep_waiting() if is_joining else []
        self._background = None
        self._waiting.end()
        call.join()
        if is_joining:
            return [self._round_event(call)]
        if call.error is not None:
            logger.warning("waiting for the other nodes failed: %s", call.error)
        return [states.PeersFinished()]

    def _keep_waiting(self) -> list[states.Event]:
        """Say what a round waits for, unless it has taken too long."""
        self._error = self._waiting.look(self._worker_group.spec.rdzv_handler)
        if self._error is None:
            return []
        self._tell_no_round(self._error)
        return [states.RoundFailed()]

    def _watch_workers(self) -> list[states.Event]:
        handler = self._worker_group.spec.rdzv_handler
        exit_fds = self._exit_fds()
        interval = self._worker_group.spec.monitor_interval
        is_observable = isinstance(handler, ObservableRendezvous)
        if exit_fds is not None and is_observable and self._exits_suffice():
            interval = max(interval, _QUIET_INTERVAL if self._job is None else _JOB_INTERVAL)
        due = self._due()
        self._poll(
            [*(exit_fds or ()), *self._change_fds()],
            interval if due is None else min(interval, due),
        )
        ends = self._look_at_workers()
        if ends:
            return ends
        if self._job is not None:
            changes = self._notifier.notify_changes(self._job.take_changes())
            if any(change.kind in (ChangeKind.FAILED, ChangeKind.LOST) for change in changes):
                ends = self._look_for_failures(list(exit_fds or ()))
            return ends or self._job.events(changes, self._notices.pass_on)
        if isinstance(handler, ObservableRendezvous):
            return self._membership_events(handler)
        if self._num_nodes_waiting() > 0:
            self._notifier.notify_changes([MembershipChange(ChangeKind.ARRIVED)])
            return [states.NodesChanged()]
        return []

    def _watch_stop(self) -> list[states.Event]:
        """Wait until the stop in progress has something to do, or something else happens."""
        timeout = min(self._stop_delay, _QUIET_INTERVAL if self._job is None else _JOB_INTERVAL)
        due = self._due()
        timeout = timeout if due is None else min(timeout, due)
        if self._failure_due is not None:
            timeout = min(timeout, max(self._failure_due - time.monotonic(), 0.0))
        self._poll([*(self._exit_fds() or ()), *self._change_fds()], timeout)
        self._tend()
        if self._failure_due is not None and self._failure_due <= time.monotonic():
            self._tell_failure()
        events: list[states.Event] = []
        handler = self._worker_group.spec.rdzv_handler
        phase = self._machine.phase
        if self._job is not None:
            # Nobody gets another signal while it saves what it has, hence no notices.
            changes = self._notifier.notify_changes(self._job.take_changes())
            if phase is states.Phase.STOPPING:
                events = self._job.events_of_end(changes)
            else:  # the workers have succeeded, and need not be stopped for another round
                events = self._job.events(changes, None)
        elif isinstance(handler, ObservableRendezvous):
            events = self._membership_events(handler)
        end = self._step_stop()
        return events if end is None else [*events, end]

    def _change_fds(self) -> list[int]:
        """Descriptors that are readable while there is news of other nodes."""
        handler = self._worker_group.spec.rdzv_handler
        if isinstance(handler, ObservableRendezvous) and handler.fileno() >= 0:
            return [handler.fileno()]
        return []

    def _num_nodes_waiting(self) -> int:
        with self._alive.calling():
            return self._worker_group.spec.rdzv_handler.num_nodes_waiting()

    def _look_at_workers(self) -> list[states.Event]:
        result = self._monitor_workers(self._worker_group)
        if result.state is WorkerState.SUCCEEDED:
            self._run_result = result
            return [states.WorkSucceeded()]
        if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
            self._run_result = result
            self._failure_due = time.monotonic() + _SETTLE
            if not self._stops_in_steps():
                self._tell_failure()
            return [states.WorkFailed()]
        if result.state is not WorkerState.HEALTHY:
            raise RuntimeError(
                f"the workers of role {self._worker_group.spec.role!r} are {result.state.name}, "
                "says _monitor_workers of this agent, and that is no state of workers that were "
                "started"
            )
        return []

    def _look_for_failures(self, exit_fds: list[int]) -> list[states.Event]:
        """Look once more, for a moment, whether own workers have failed by themselves."""
        until = time.monotonic() + _LAST_LOOK
        while (remaining := until - time.monotonic()) > 0:
            self._poll(exit_fds, remaining)
            if self._look_at_workers() == [states.WorkFailed()]:
                if self._failure_due is not None:
                    # The others settle soon what failed first, and wait for nobody then.
                    self._tell_failure()
                return [states.WorkFailed()]
        return []

    def _watch_peers(self, job: Job) -> list[states.Event]:
        """Wait until all nodes have succeeded, or the job goes on after all, or it takes too long.

        Nothing is written and nobody is asked: the rendezvous tells.
        """
        fds = [*(self._exit_fds() or ()), *self._change_fds()]
        self._poll(fds, min(job.patience(), _JOB_INTERVAL))
        self._tend()
        changes = self._notifier.notify_changes(job.take_changes())
        events = job.events(changes, self._notices.pass_on)
        if not events and job.patience() <= 0:
            logger.warning(
                "other nodes have not finished %g s after this one (--exit-barrier-timeout), which "
                "does not wait any longer",
                self._exit_barrier_timeout,
            )
            return [states.PeersFinished()]
        return events

    def _membership_events(self, handler: ObservableRendezvous) -> list[states.Event]:
        events: list[states.Event] = []
        for change in self._notifier.notify_changes(handler.changes()):
            logger.info("node %s %s: %s", change.node, change.kind.value, change.reason)
            if change.kind is ChangeKind.CLOSED:
                self._close_reason = change.reason
                events.append(states.RendezvousClosed())
            else:
                events.append(states.NodesChanged())
        return events

    def _poll(self, fds: Sequence[int], timeout: float | None) -> None:
        poller = select.poll()
        poller.register(self._wake_up.fileno(), select.POLLIN)
        for fd in fds:
            poller.register(fd, select.POLLIN)
        self._alive.sleeps(timeout)
        poller.poll(milliseconds(timeout))
        self._alive.wakes()
        self._wake_up.clear()

    # --- rounds -----------------------------------------------------------------------------------

    def _round_event(self, call: BackgroundCall) -> states.Event:
        if call.error is not None:
            self._error = call.error
            self._tell_no_round(call.error)
            if (
                self._job is not None
                and isinstance(call.error, RendezvousClosedError)
                and self._job.has_verdict()
            ):
                return states.JobEnded(self._job.end())
            return states.RoundFailed(isinstance(call.error, RendezvousGracefulExitError))
        formed = call.result
        if not isinstance(formed, Round):
            raise TypeError(f"join_round returned {formed!r}")
        enter_round(self._worker_group, formed)
        text = describe_round(formed.info, self._machine)
        if text:
            logger.warning("%s", text)
        self._run_result = RunResult(WorkerState.INIT)
        reason = formed.info.reason if isinstance(formed.info, JobRound) else ""
        self._notifier.notify_round(formed, call.duration, reason or self._turn)
        return states.RoundFormed(formed.attempt, formed.number)

    def _exit_barrier(self) -> None:
        """Wait for the other nodes of the round to finish; runs in a background thread.

        Only where the round has a store, which a node that leaves might take with it.
        """
        group = self._worker_group
        nodes = group.group_world_size or 1
        if group.store is not None and nodes > 1:
            wait_for_peers(group.store, nodes, self._exit_barrier_timeout)

    def _tell_no_round(self, error: BaseException) -> None:
        duration = time.monotonic() - self._joined_at
        self._notifier.notify(notifications.RendezvousFailed, duration, str(error))
