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
from collections import deque
from typing import TYPE_CHECKING, Any

from plaunch.agent import machine, moments
from plaunch.agent.api import DEFAULT_ROLE, ElasticAgent
from plaunch.agent.background import BackgroundCall
from plaunch.agent.narration import describe_turn
from plaunch.agent.ranks import NodeInfo, assign_alike, assign_through_store
from plaunch.agent.signals import SignalInbox, StopOn, WakeUp
from plaunch.agent.worker import (
    GroupInfo,
    RunResult,
    Worker,
    WorkerGroup,
    WorkerInfo,
    WorkerSpec,
    WorkerState,
)
from plaunch.errors import (
    RendezvousClosedError,
    RendezvousGracefulExitError,
    SignalException,
    UnkillableWorkerError,
)
from plaunch.process.signals import SignalAction, SignalPolicy
from plaunch.rendezvous.api import ChangeKind, ObservableRendezvous, RendezvousInfo, Store

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger("plaunch")

_PEERS_KEY = "torchelastic/agent/terminal_state"
# Seconds between two looks where everything wakes the loop by itself. Ten looks a second at nothing
# would be most of what a launcher costs; were a wake-up lost, the job would be late, but not stuck.
_QUIET_INTERVAL = 1.0


def _tell_nobody(moment: moments.Moment) -> None:
    del moment


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
    """

    def __init__(
        self,
        spec: WorkerSpec,
        exit_barrier_timeout: float = 300,
        shutdown_timeout: float = 30,
        *,
        signal_policy: SignalPolicy | None = None,
        notify: moments.Notify = _tell_nobody,
    ) -> None:
        self._worker_group = WorkerGroup(spec)
        self._exit_barrier_timeout = exit_barrier_timeout
        self._shutdown_timeout = shutdown_timeout
        self._signal_policy = signal_policy or StopOn.from_environment(os.environ)
        self._notify = notify
        self._host = socket.gethostname()
        self._machine = machine.State(max_restarts=spec.max_restarts)
        self._wake_up = WakeUp()
        self._background: BackgroundCall | None = None
        self._run_result = RunResult(WorkerState.INIT)
        self._death_signal = signal.SIGTERM
        self._close_reason = ""
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

    def _hurry(self) -> None:
        """Cut a stop in progress short; called inside a signal handler."""

    # --- for everybody ----------------------------------------------------------------------------

    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """The agent's worker group; it changes while the agent runs."""
        del role
        return self._worker_group

    @property
    def _remaining_restarts(self) -> int:
        return self._machine.restarts_left

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run the workers to the end; see `ElasticAgent.run`."""
        result: RunResult | None = None
        try:
            with SignalInbox(self._signal_policy, self._wake_up, self._hurry) as inbox:
                try:
                    outcome = self._invoke_run(role, inbox)
                finally:
                    self._shutdown(self._death_signal, timeout=self._shutdown_timeout)
            result = self._conclude(outcome)
            return result
        finally:
            self._notify(moments.AgentFinished(self._group_info(), result))
            self._wake_up.close()

    def _conclude(self, outcome: machine.Outcome) -> RunResult:
        if outcome in (machine.Outcome.SUCCEEDED, machine.Outcome.FAILED):
            return self._run_result
        if outcome is machine.Outcome.LEFT:
            logger.info("this node was not needed: %s", self._error)
            return RunResult(WorkerState.SUCCEEDED)
        if outcome is machine.Outcome.SIGNALLED:
            raise SignalException(
                f"{self._death_signal.name} received; the workers were stopped", self._death_signal
            )
        if outcome is machine.Outcome.CLOSED:
            raise RendezvousClosedError(
                f"the rendezvous of job {self._run_id()!r} was closed: {self._close_reason}"
            )
        if self._error is None:
            raise RuntimeError(f"the agent ended with {outcome.value!r} but without an error")
        raise self._error

    # --- the loop ---------------------------------------------------------------------------------

    def _invoke_run(self, role: str, inbox: SignalInbox) -> machine.Outcome:
        del role
        pending: deque[machine.Event] = deque([machine.Begin()])
        while True:
            # Signals come first: a stop that arrives during a restart must not be overtaken by it.
            pending.extendleft(reversed(self._take_signals(inbox)))
            if not pending:
                pending.extend(self._watch())
                continue
            for action in self._step(pending.popleft()):
                if isinstance(action, machine.Finish):
                    return action.outcome
                event = self._perform(action)
                if event is not None:
                    pending.append(event)

    def _take_signals(self, inbox: SignalInbox) -> list[machine.Event]:
        stops: list[machine.Event] = []
        for signum, action in inbox.take():
            if action is SignalAction.STOP:
                stops.append(machine.StopRequested(signum))
            elif action is SignalAction.NOTIFY:
                logger.warning("%s received; it is passed on and the job goes on", signum.name)
                self._signal_workers(signum)
        return stops

    def _step(self, event: machine.Event) -> tuple[machine.Action, ...]:
        if isinstance(event, machine.StopRequested):
            self._death_signal = event.signum
        self._machine, actions = machine.step(self._machine, event)
        self._set_state(self._machine.workers)
        return actions

    def _perform(self, action: machine.Action) -> machine.Event | None:
        if isinstance(action, machine.Join):
            self._notify(moments.BeforeRendezvous(self._group_info()))
            self._background = BackgroundCall("rendezvous", self._rendezvous, self._wake_up)
            return None
        if isinstance(action, machine.StartWorkers):
            return self._perform_start()
        if isinstance(action, machine.StopWorkers):
            return self._perform_stop()
        if isinstance(action, machine.WaitForPeers):
            self._background = BackgroundCall("peers", self._exit_barrier, self._wake_up)
            return None
        if isinstance(action, machine.Report):
            text = describe_turn(
                action.then, self._machine, self._run_result, self._death_signal, self._close_reason
            )
            logger.warning("%s", text)
        return None

    def _perform_start(self) -> machine.Event:
        group = self._worker_group
        try:
            ids = self._start_workers(group)
        except Exception as error:  # noqa: BLE001 - re-raised as the outcome of the run
            self._error = error
            return machine.StartFailed()
        for worker in group.workers:
            worker.id = ids.get(worker.local_rank)
        self._notify(moments.WorkersStarted(self._group_info()))
        return machine.WorkersStartedEvent()

    def _perform_stop(self) -> machine.Event:
        try:
            self._stop_workers(self._worker_group)
        except UnkillableWorkerError as error:
            self._error = error
            return machine.StopFailed()
        return machine.WorkersStopped()

    def _watch(self) -> list[machine.Event]:
        """Wait until something may have happened and say what it was."""
        phase = self._machine.phase
        if phase is machine.Phase.RUNNING:
            return self._watch_workers()
        self._poll([], None)
        call = self._background
        if call is None or not call.is_done():
            return []
        self._background = None
        call.join()
        if phase is machine.Phase.JOINING:
            return [self._round_event(call)]
        if call.error is not None:
            logger.warning("waiting for the other nodes failed: %s", call.error)
        return [machine.PeersFinished()]

    def _watch_workers(self) -> list[machine.Event]:
        spec = self._worker_group.spec
        handler = spec.rdzv_handler
        exit_fds = self._exit_fds()
        fds = list(exit_fds or ())
        observable = isinstance(handler, ObservableRendezvous)
        if isinstance(handler, ObservableRendezvous) and handler.fileno() >= 0:
            fds.append(handler.fileno())
        interval = spec.monitor_interval
        if exit_fds is not None and observable and self._exits_suffice():
            interval = max(interval, _QUIET_INTERVAL)
        self._poll(fds, interval)
        result = self._monitor_workers(self._worker_group)
        if result.state is WorkerState.SUCCEEDED:
            self._run_result = result
            return [machine.WorkersSucceeded()]
        if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
            self._run_result = result
            return [machine.WorkersFailed()]
        if isinstance(handler, ObservableRendezvous):
            return self._membership_events(handler)
        if not observable and handler.num_nodes_waiting() > 0:
            return [machine.MembershipChanged()]
        return []

    def _membership_events(self, handler: ObservableRendezvous) -> list[machine.Event]:
        events: list[machine.Event] = []
        for change in handler.changes():
            logger.info("node %s %s: %s", change.node, change.kind.value, change.reason)
            if change.kind is ChangeKind.CLOSED:
                self._close_reason = change.reason
                events.append(machine.RendezvousClosed())
            else:
                events.append(machine.MembershipChanged())
        return events

    def _poll(self, fds: Sequence[int], timeout: float | None) -> None:
        poller = select.poll()
        poller.register(self._wake_up.fileno(), select.POLLIN)
        for fd in fds:
            poller.register(fd, select.POLLIN)
        poller.poll(None if timeout is None else timeout * 1000)
        self._wake_up.clear()

    # --- rounds -----------------------------------------------------------------------------------

    def _rendezvous(self) -> _Round:
        """Meet the other nodes and work out ranks; runs in a background thread."""
        spec = self._worker_group.spec
        info = spec.rdzv_handler.next_rendezvous()
        workers = self._assign_worker_ranks(info.store, info.rank, info.world_size, spec)
        return _Round(info, workers)

    def _assign_worker_ranks(
        self, store: Store | None, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[Worker]:
        node = NodeInfo(spec.role, spec.local_world_size)
        alike = os.environ.get("TORCH_ELASTIC_WORKER_IDENTICAL", "0") == "1"
        if store is None or group_world_size == 1 or alike:
            ranks = assign_alike(node, group_rank, group_world_size)
        else:
            ranks = assign_through_store(store, node, group_rank, group_world_size)
        return ranks.workers(spec.local_world_size)

    def _round_event(self, call: BackgroundCall) -> machine.Event:
        if call.error is not None:
            self._error = call.error
            return machine.RoundFailed(isinstance(call.error, RendezvousGracefulExitError))
        formed = call.result
        if not isinstance(formed, _Round):
            raise TypeError(f"_rendezvous returned {formed!r}")
        group, spec = self._worker_group, self._worker_group.spec
        store_info = formed.info.bootstrap_store_info
        group.workers = formed.workers
        group.store = formed.info.store
        group.group_rank = formed.info.rank
        group.group_world_size = formed.info.world_size
        group.master_addr = spec.master_addr or store_info.master_addr
        group.master_port = spec.master_port or store_info.master_port
        self._notify(moments.AfterRendezvous(self._group_info(next_round=True), call.duration))
        return machine.RoundFormed()

    def _exit_barrier(self) -> None:
        """Wait for the other nodes of the round to finish; runs in a background thread.

        Only where the round has a store, which a node that leaves might take with it. torchrun
        waits in the same way, and goes on when the time is over, as this does.
        """
        group = self._worker_group
        nodes = group.group_world_size or 1
        if group.store is None or nodes == 1:
            return
        from datetime import timedelta  # noqa: PLC0415 - several nodes with a shared store only

        if group.store.add(f"{_PEERS_KEY}/num_members", 1) == nodes:
            group.store.set(f"{_PEERS_KEY}/last_member", "<val_ignored>")
        timeout = timedelta(seconds=self._exit_barrier_timeout)
        group.store.wait([f"{_PEERS_KEY}/last_member"], timeout)

    # --- telling ----------------------------------------------------------------------------------

    def _run_id(self) -> str:
        return self._worker_group.spec.rdzv_handler.get_run_id()

    def _set_state(self, new: WorkerState) -> None:
        old, self._worker_group.state = self._worker_group.state, new
        if old is not new:
            self._notify(moments.StateChanged(self._group_info(), old, new))

    def _worker_info(self, worker: Worker) -> WorkerInfo:
        pid = worker.id if isinstance(worker.id, int) else None
        return WorkerInfo(
            local_rank=worker.local_rank,
            global_rank=worker.global_rank,
            role_rank=worker.role_rank,
            world_size=worker.world_size,
            role_world_size=worker.role_world_size,
            pid=pid,
        )

    def _group_info(self, *, next_round: bool = False) -> GroupInfo:
        group, state = self._worker_group, self._machine
        return GroupInfo(
            run_id=self._run_id(),
            role=group.spec.role,
            state=group.state,
            attempt=state.attempt,
            round=state.round + next_round,
            max_restarts=group.spec.max_restarts,
            group_rank=-1 if group.group_rank is None else group.group_rank,
            group_world_size=-1 if group.group_world_size is None else group.group_world_size,
            master_addr=group.master_addr or "",
            master_port=group.master_port or 0,
            workers=tuple(self._worker_info(worker) for worker in group.workers),
        )


class _Round:
    """What a rendezvous brought: the round, and this node's workers with their ranks."""

    def __init__(self, info: RendezvousInfo, workers: list[Worker]) -> None:
        self.info = info
        self.workers = workers
