"""The shell around the state machine: it carries actions out and turns the world into events.

One loop on the calling thread. It blocks in three places only: in `poll`, woken by worker exits,
signals, the rendezvous and finished background calls; in `_start_workers`; and in `_stop_workers`,
which a second stop signal hurries. Calls that may block for long (a rendezvous, waiting for peers)
run in a background thread that the loop can abandon.
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

from plaunch.agent import machine, moments, states
from plaunch.agent.api import DEFAULT_ROLE, ElasticAgent
from plaunch.agent.background import BackgroundCall
from plaunch.agent.barrier import wait_for_peers
from plaunch.agent.job import Job
from plaunch.agent.narration import describe_round, describe_turn
from plaunch.agent.rounds import Round, enter_round, join_round
from plaunch.agent.signals import SignalInbox, StopOn, WakeUp
from plaunch.agent.status.alive import TURN_BOUND, Alive
from plaunch.agent.teller import Teller
from plaunch.agent.waiting import Waiting
from plaunch.agent.worker import RunResult, WorkerGroup, WorkerSpec, WorkerState
from plaunch.errors import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousGracefulExitError,
    SignalException,
    UnkillableWorkerError,
)
from plaunch.process.signals import SignalAction, SignalPolicy
from plaunch.rendezvous.api import ChangeKind, MembershipChange, ObservableRendezvous
from plaunch.rendezvous.job import JobRound

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger("plaunch")

# Seconds between two looks where everything wakes the loop by itself. Ten looks a second at nothing
# would be most of what a launcher costs; were a wake-up lost, the job would be late, but not stuck.
_QUIET_INTERVAL = 2.0
# The same with other nodes: what knows of them looks after its connections when it is asked.
_JOB_INTERVAL = 1.0
# Seconds that own workers are given to show a failure of their own, once others have failed or are
# lost: theirs may be the first of the job, and only its own node sees it.
_LAST_LOOK = 0.1
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
        notify: is called at every moment of `plaunch.agent.moments`; it must not raise or block.
        waiting: says what a round waits for, and ends a first one that takes too long.
        alive: is told whenever the loop goes to sleep and wakes.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        exit_barrier_timeout: float = 300,
        shutdown_timeout: float = 30,
        *,
        signal_policy: SignalPolicy | None = None,
        notify: moments.Notify | None = None,
        waiting: Waiting | None = None,
        alive: Alive | None = None,
    ) -> None:
        self._waiting = waiting or Waiting()
        self._alive = alive or Alive(shutdown_timeout + TURN_BOUND)
        self._worker_group = WorkerGroup(spec)
        self._exit_barrier_timeout = exit_barrier_timeout
        self._shutdown_timeout = shutdown_timeout
        self._signal_policy = signal_policy or StopOn.from_environment(os.environ)
        self._host = socket.gethostname()
        self._job = Job.find(spec.rdzv_handler, self._host)
        self._machine = states.State(
            max_restarts=spec.max_restarts, is_job_wide=self._job is not None
        )
        self._teller = Teller(self._worker_group, lambda: self._machine, notify)
        self._wake_up = WakeUp()
        self._inbox: SignalInbox | None = None
        self._background: BackgroundCall | None = None
        self._run_result = RunResult(WorkerState.INIT)
        self._death_signal = signal.SIGTERM
        self._close_reason = ""
        self._joined_at = 0.0  # on the monotonic clock
        self._turn = ""  # why the agent changed its course last
        self._error: BaseException | None = None

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

    def _hurry(self) -> None:
        """Cut a stop in progress short; called inside a signal handler."""

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
            with SignalInbox(self._signal_policy, self._wake_up, self._hurry) as inbox:
                self._inbox = inbox
                try:
                    outcome = self._invoke_run(role, inbox)
                except Exception as error:
                    self._tell_error(error)
                    raise
                finally:
                    self._shutdown(self._death_signal, timeout=self._shutdown_timeout)
                    self._await_verdict(inbox)
            result = self._conclude(outcome)
            return result
        finally:
            word = "" if outcome is None else outcome.value
            reason = str(self._error) if outcome is states.Outcome.LEFT else ""
            self._teller.tell(moments.AgentFinished, result, word, reason)
            self._wake_up.close()
            self._alive.ends()

    def _conclude(self, outcome: states.Outcome) -> RunResult:
        if outcome is states.Outcome.FAILED and self._job is not None:
            result = self._job.failed_result(self._run_result)
            self._teller.tell_failures(result)
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
                f"the rendezvous of job {self._teller.run_id!r} was closed: {self._close_reason}"
            )
        raise RuntimeError(f"the agent ended with {outcome.value!r} but without an error")

    # --- the loop ---------------------------------------------------------------------------------

    def _invoke_run(self, role: str, inbox: SignalInbox) -> states.Outcome:
        del role
        pending: deque[states.Event] = deque([states.Begin()])
        while True:
            # Signals come first: a stop that arrives during a restart must not be overtaken by it.
            pending.extendleft(reversed(self._take_signals(inbox)))
            if not pending:
                pending.extend(self._watch())
                continue
            for action in self._step(pending.popleft()):
                if isinstance(action, states.Finish):
                    return action.outcome
                event = self._perform(action)
                if event is not None:
                    pending.append(event)

    def _take_signals(self, inbox: SignalInbox) -> list[states.Event]:
        stops: list[states.Event] = []
        for signum, action in inbox.take():
            self._teller.tell(moments.SignalReceived, signum, action)
            if action is SignalAction.STOP:
                stops.append(states.StopRequested(signum))
            elif action is SignalAction.NOTIFY:
                logger.warning("%s received; it is passed on and the job goes on", signum.name)
                self._signal_workers(signum)
                if self._job is not None:
                    self._job.send_notice(signum)
        return stops

    def _step(self, event: states.Event) -> tuple[states.Action, ...]:
        if isinstance(event, states.StopRequested):
            self._death_signal = event.signum
        self._machine, actions = machine.step(self._machine, event)
        self._teller.tell_state(self._machine.workers)
        return actions

    def _perform(self, action: states.Action) -> states.Event | None:
        if isinstance(action, states.Join):
            self._teller.tell(moments.BeforeRendezvous)
            self._joined_at = time.monotonic()
            self._waiting.begin()
            self._background = BackgroundCall(
                "rendezvous", lambda: join_round(self._worker_group.spec), self._wake_up
            )
            return None
        if isinstance(action, states.StartWorkers):
            return self._perform_start()
        if isinstance(action, states.StopWorkers):
            return self._perform_stop()
        if isinstance(action, states.TellFailure) and self._job is not None:
            if action.is_final and self._error is not None:
                self._job.tell_error(self._error)
            else:
                self._job.note_failure(self._run_result, is_told=self._is_of_use())
            return None
        if isinstance(action, states.WaitForPeers):
            if self._job is not None:
                self._job.tell_success(self._exit_barrier_timeout)
            else:
                self._background = BackgroundCall("peers", self._exit_barrier, self._wake_up)
            return None
        if isinstance(action, states.Report):
            if self._job is not None and action.then is states.Outcome.SIGNALLED:
                self._job.announce_leave(self._death_signal)
            reason = self._close_reason if self._job is None else self._job.reason
            text = describe_turn(
                action.then, self._machine, self._run_result, self._death_signal, reason
            )
            self._turn = text
            logger.warning("%s", text)
        return None

    def _perform_start(self) -> states.Event:
        group = self._worker_group
        self._teller.tell(moments.BeforeWorkers)
        try:
            ids = self._start_workers(group)
        except Exception as error:  # noqa: BLE001 - re-raised as the outcome of the run
            self._error = error
            return states.StartFailed()
        for worker in group.workers:
            worker.id = ids.get(worker.local_rank)
        self._waiting.workers_started()
        self._teller.tell(moments.WorkersStarted)
        return states.WorkersStartedEvent()

    def _perform_stop(self) -> states.Event:
        try:
            self._stop_workers(self._worker_group)
        except UnkillableWorkerError as error:
            self._error = error
            return states.StopFailed()
        return states.WorkersStopped()

    def _tell_error(self, error: Exception) -> None:
        """Tell the job why this node ends, unless the job would rather go on without it."""
        if self._job is None or self._job.has_verdict():
            return
        if not isinstance(error, (RendezvousError, SignalException, UnkillableWorkerError)):
            self._job.tell_error(error)

    def _await_verdict(self, inbox: SignalInbox) -> None:
        """Stay until the job has acted on an error of this node, which may host its store."""
        job = self._job
        if job is None or not job.has_told_error:
            return
        until = time.monotonic() + _VERDICT_WAIT
        fds = [job.fileno()] if job.fileno() >= 0 else []
        while not job.has_verdict() and (remaining := until - time.monotonic()) > 0:
            if any(action is SignalAction.STOP for _, action in inbox.take()):
                return
            self._poll(fds, min(remaining, _JOB_INTERVAL))
            self._teller.tell_changes(job.take_changes())

    def _watch(self) -> list[states.Event]:
        """Wait until something may have happened and say what it was."""
        phase = self._machine.phase
        if phase is states.Phase.RUNNING:
            return self._watch_workers()
        if phase is states.Phase.WAITING and self._job is not None:
            return self._watch_peers(self._job)
        is_joining = phase is states.Phase.JOINING
        self._poll([], self._waiting.pause() if is_joining else None)
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
        spec = self._worker_group.spec
        handler = spec.rdzv_handler
        exit_fds = self._exit_fds()
        fds = list(exit_fds or ())
        observable = isinstance(handler, ObservableRendezvous)
        if isinstance(handler, ObservableRendezvous) and handler.fileno() >= 0:
            fds.append(handler.fileno())
        interval = spec.monitor_interval
        if exit_fds is not None and observable and self._exits_suffice():
            interval = max(interval, _QUIET_INTERVAL if self._job is None else _JOB_INTERVAL)
        self._poll(fds, interval)
        ends = self._look_at_workers()
        if ends:
            return ends
        if self._job is not None:
            changes = self._teller.tell_changes(self._job.take_changes())
            if any(change.kind in (ChangeKind.FAILED, ChangeKind.LOST) for change in changes):
                ends = self._look_for_failures(list(exit_fds or ()))
            return ends or self._job.events(changes, self._signal_workers)
        if isinstance(handler, ObservableRendezvous):
            return self._membership_events(handler)
        if not observable and self._num_nodes_waiting() > 0:
            self._teller.tell_changes([MembershipChange(ChangeKind.ARRIVED)])
            return [states.MembershipChanged()]
        return []

    def _num_nodes_waiting(self) -> int:
        with self._alive.calling():
            return self._worker_group.spec.rdzv_handler.num_nodes_waiting()

    def _look_at_workers(self) -> list[states.Event]:
        result = self._monitor_workers(self._worker_group)
        if result.state is WorkerState.SUCCEEDED:
            self._run_result = result
            return [states.WorkersSucceeded()]
        if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
            self._run_result = result
            self._teller.tell_failures(result)
            return [states.WorkersFailed()]
        return []

    def _look_for_failures(self, exit_fds: list[int]) -> list[states.Event]:
        """Look once more, for a moment, whether own workers have failed by themselves."""
        until = time.monotonic() + _LAST_LOOK
        while (remaining := until - time.monotonic()) > 0:
            self._poll(exit_fds, remaining)
            if self._look_at_workers() == [states.WorkersFailed()]:
                return [states.WorkersFailed()]
        return []

    def _watch_peers(self, job: Job) -> list[states.Event]:
        """Wait until all nodes have succeeded, or the job goes on after all, or it takes too long.

        Nothing is written and nobody is asked: the rendezvous tells.
        """
        fds = [job.fileno()] if job.fileno() >= 0 else []
        self._poll(fds, min(job.patience(), _JOB_INTERVAL))
        changes = self._teller.tell_changes(job.take_changes())
        events = job.events(changes, self._signal_workers)
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
        for change in self._teller.tell_changes(handler.changes()):
            logger.info("node %s %s: %s", change.node, change.kind.value, change.reason)
            if change.kind is ChangeKind.CLOSED:
                self._close_reason = change.reason
                events.append(states.RendezvousClosed())
            else:
                events.append(states.MembershipChanged())
        return events

    def _poll(self, fds: Sequence[int], timeout: float | None) -> None:
        poller = select.poll()
        poller.register(self._wake_up.fileno(), select.POLLIN)
        for fd in fds:
            poller.register(fd, select.POLLIN)
        self._alive.sleeps(timeout)
        poller.poll(None if timeout is None else timeout * 1000)
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
        self._teller.tell_round(formed, call.duration, reason or self._turn)
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
        self._teller.tell(moments.RendezvousFailed, duration, str(error))
