"""The agent as its users see it, and as subclasses that were written for torchrun do."""

from __future__ import annotations

import abc
import logging
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plaunch import parts
from plaunch.agent import notifications
from plaunch.agent.alive import TURN_BOUND, Alive
from plaunch.agent.before_round import BeforeRound
from plaunch.agent.loop import Loop
from plaunch.agent.messages import describe_asker
from plaunch.agent.notices import Notices
from plaunch.agent.notifications import Notifier
from plaunch.agent.own_restarts import OwnRestarts
from plaunch.agent.peers import ObservedPeers, Peers
from plaunch.agent.poller import Poller
from plaunch.agent.requests import Hang, Requests, SignalWorkers, Snapshot
from plaunch.agent.rounds import longest_stop, prepare_rendezvous
from plaunch.agent.signals import SignalInbox
from plaunch.agent.states import Outcome, Requested, RequestKind, State
from plaunch.agent.wait_reporter import WaitReporter
from plaunch.agent.worker import RunResult, WorkerGroup, WorkerSpec, WorkerState
from plaunch.agent.workers import Workers
from plaunch.durations import PATIENCE
from plaunch.errors import SignalException
from plaunch.rendezvous.api import ObservableRendezvous, RendezvousHandler
from plaunch.rendezvous.job import JobRendezvous

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from plaunch.agent.requests import Progress
    from plaunch.health import HealthChecks
    from plaunch.process.kernel.holds import Held
    from plaunch.process.stopping.signals import SignalPolicy
    from plaunch.restarts import RestartPolicy

logger = logging.getLogger("plaunch")

DEFAULT_ROLE = "default"


class ElasticAgent(abc.ABC):
    """Runs the workers of one node from the first round to the end; the name is torchrun's."""

    @abc.abstractmethod
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run the workers, restarting them up to `max_restarts` times, and say how it ended.

        Failures of workers are in the result; any other failure is raised.

        Raises:
            SignalException: a stop signal ended the job.
            RendezvousError: the nodes could not meet.
            PlaunchError: any other failure of the launcher or of a plugin.
        """

    @abc.abstractmethod
    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """The agent's worker group; it changes while the agent runs."""


class SimpleElasticAgent(ElasticAgent):
    """An agent; four methods decide how workers run. Names are torchrun's.

    A subclass defines `_start_workers`, `_stop_workers`, `_monitor_workers` and `_shutdown`. It is
    asked how its workers are once per monitor interval, and a stop may hold it.

    Args:
        spec: what to run.
        exit_barrier_timeout: how long to wait for the other nodes after success, in seconds.
        shutdown_timeout: how long workers may take to stop before they are killed, in seconds.
        signal_policy: what signals mean; by default those of `TORCHELASTIC_SIGNALS_TO_HANDLE` stop
            the job.
        notify: is called with each of `plaunch.agent.notifications`; it must not raise or block.
        waiting: says what a round waits for, and ends a first one that takes too long.
        alive: is notified when the loop goes to sleep and wakes.
        restart_policy: decides what follows a failure, unless the rendezvous knows the whole job
            and decides that; by default the budget does.
        health_checks: look at this node before it joins its first round, and after a failure.

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
        restart_policy: RestartPolicy | None = None,
        health_checks: HealthChecks | None = None,
    ) -> None:
        PATIENCE.check(exit_barrier_timeout, "exit_barrier_timeout")
        PATIENCE.check(shutdown_timeout, "shutdown_timeout")
        self._shutdown_timeout = shutdown_timeout
        self._signal_policy = signal_policy or parts.load_part(parts.DEFAULT_POLICY)()
        self._worker_group = group = WorkerGroup(spec)
        checks_timeout = 0.0 if health_checks is None else health_checks.timeout
        self._longest_stop = longest_stop(shutdown_timeout, checks_timeout)
        prepare_rendezvous(spec, self._longest_stop)
        self._notifier = Notifier(group, lambda: self._loop.state, notify)
        self._workers = self._create_workers(group, self._notifier)
        self._exit_barrier_timeout = exit_barrier_timeout
        self._alive = alive or Alive(shutdown_timeout + TURN_BOUND)
        self._reporter = waiting or WaitReporter()
        self._restarts = OwnRestarts(restart_policy)
        self._health_checks = health_checks
        # Of the workers, as an extension knows it.
        self.progress: Mapping[int, Progress] = {}
        self.notes: Mapping[str, str] = {}  # the states that extensions show, by name
        self._create_loop()

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

    def _create_workers(self, group: WorkerGroup, notifier: Notifier) -> Workers:
        """What the loop asks about the workers: here, what the four methods tell.

        An agent that knows more of them has another one; called once, by `__init__`.
        """
        del notifier
        return Workers(self, group)

    def _create_loop(self, before: State | None = None) -> None:
        """Create what serves one run; `before` is the state at the end of an earlier one."""
        self._poller = Poller(self._alive)
        self._requests = Requests(self._poller.wake_up)
        # Looked up at the call: a program may replace the method of one agent.
        notices = Notices(lambda signum: self._workers.signal(signum))  # noqa: PLW0108
        spec = self._worker_group.spec
        self._peers = peers = _find_peers(spec.rdzv_handler, self._notifier, self._poller, notices)
        before_round = BeforeRound(self._health_checks, peers, self._poller, self._notifier)
        state = State(
            max_restarts=spec.max_restarts,
            is_job_wide=peers.is_job_wide,
            has_checks=before_round.has_checks,
        )
        if before is not None:
            state = replace(state, attempt=before.attempt, round=before.round)
        self._loop = Loop(
            self._workers,
            peers,
            self._notifier,
            notices,
            self._poller,
            self._reporter,
            self._requests,
            self._restarts,
            before_round,
            exit_barrier_timeout=self._exit_barrier_timeout,
            state=state,
        )

    # --- for everybody ----------------------------------------------------------------------------

    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """The agent's worker group; it changes while the agent runs."""
        del role
        return self._worker_group

    def request(self, kind: RequestKind, reason: str, who: str) -> None:
        """Ask for something that the state machine decides upon; for any thread, at any time.

        Args:
            kind: what is asked for; see `RequestKind`.
            reason: why, in a few words.
            who: who asks, in a few words that people know: a plugin, with its distribution.
        """
        self._requests.put(Requested(kind, reason, who))

    def signal_workers(
        self,
        signum: signal.Signals,
        ranks: Collection[int] | None = None,
        reason: str = "",
    ) -> None:
        """Have a signal sent to the workers that run; for any thread. The workers go on.

        Args:
            signum: the signal.
            ranks: the global ranks of those that get it; None for all of this node.
            reason: why, for the report of a worker that the signal ends.
        """
        chosen = None if ranks is None else frozenset(ranks)
        self._requests.put(SignalWorkers(signum, chosen, reason))

    def report_hang(self, rank: int, text: str, *, is_final: bool = False) -> None:
        """Have the round end as one that has failed, because its workers hang; for any thread.

        Args:
            rank: the global rank of a worker of this node that runs, and counts as failed.
            text: where it is, for the report.
            is_final: whether no restart is to follow.
        """
        self._requests.put(Hang(rank, text, is_final))

    def snapshot(self) -> Snapshot:
        """Where the agent is; for any thread."""
        return self._loop.snapshot

    def held(self) -> dict[int, Held]:
        """What holds workers that cannot run now, by global rank, and since when; thread-safe."""
        return self._workers.held(self.snapshot().pids)

    def is_asked_to_end(self) -> bool:
        """Whether a signal or a request asks for the end of the run, heard by the loop or not."""
        return self._loop.is_asked_to_end()

    @property
    def has_ended_job(self) -> bool:
        """Whether this run ends because the end of the job on all nodes was requested.

        Otherwise the job may go on without this node.
        """
        request = self._loop.state.request
        return request is not None and request.kind is RequestKind.STOP

    @property
    def result_of_workers(self) -> RunResult:
        """What has become of the workers of the last round, as far as it is known."""
        return self._loop.results.of_workers

    @property
    def _remaining_restarts(self) -> int:
        return self._loop.state.restarts_left

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run the workers to the end; see `ElasticAgent.run`.

        An agent may run again when it has ended. As in torchrun, the restarts that it has used
        remain used.
        """
        del role
        if self._poller.is_closed:
            prepare_rendezvous(self._worker_group.spec, self._longest_stop)
            self._create_loop(self._loop.state)
        loop = self._loop
        result: RunResult | None = None
        outcome: Outcome | None = None
        try:
            with SignalInbox(self._signal_policy, self._poller.wake_up) as inbox:
                try:
                    outcome = loop.run(inbox)
                except BaseException as error:
                    loop.tear_down(error)
                    raise
                finally:
                    self._shutdown(loop.soft_signal, timeout=self._shutdown_timeout)
                    loop.look_around()
                    loop.await_verdict()
                    loop.await_console(outcome)
            result = self._conclude(outcome)
            return result
        finally:
            word = "" if outcome is None else outcome.value
            reason = str(loop.results.error) if outcome is Outcome.LEFT else ""
            self._notifier.notify(notifications.AgentFinished, result, word, reason)
            self._poller.close()

    def _conclude(self, outcome: Outcome) -> RunResult:
        """What `run` returns, or raises."""
        loop, error = self._loop, self._loop.results.error
        if outcome is Outcome.SUCCEEDED:
            return loop.results.of_workers
        if outcome is Outcome.FAILED:
            result = self._peers.failed_result(loop.results.of_workers)
            result.no_restart = result.no_restart or loop.results.no_restart
            result.earlier = list(loop.results.earlier)
            return result
        if outcome is Outcome.LEFT:
            logger.info("this node was not needed: %s", error)
            return RunResult(WorkerState.SUCCEEDED)
        if outcome is Outcome.SIGNALLED:
            state = loop.state
            raise SignalException(
                f"{describe_asker(state)}; the workers were stopped",
                state.asked_by or signal.SIGTERM,
            )
        raise error or self._peers.error_of(outcome)


def _find_peers(
    handler: RendezvousHandler, notifier: Notifier, poller: Poller, notices: Notices
) -> Peers:
    """The peers behind `handler`, as well as that knows them."""
    if isinstance(handler, JobRendezvous):
        from plaunch.agent.job_peers import JobPeers  # several nodes only

        return JobPeers(handler, notifier, poller, handler, notices=notices)
    if isinstance(handler, ObservableRendezvous):
        return ObservedPeers(handler, notifier, poller, handler)
    return Peers(handler, notifier, poller)
