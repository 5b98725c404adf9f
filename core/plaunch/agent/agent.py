"""The agent as its users see it, and as subclasses that were written for torchrun do."""

from __future__ import annotations

import abc
import logging
import math
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plaunch import parts
from plaunch.agent import notifications
from plaunch.agent.components import AgentJob, AgentServices, LoopComponents
from plaunch.agent.extensions import Hang, Requests, SignalWorkers, Snapshot
from plaunch.agent.local_job import LocalJob
from plaunch.agent.loop import Loop
from plaunch.agent.messages import describe_request
from plaunch.agent.notifier import Notifier
from plaunch.agent.peers import Peers
from plaunch.agent.poller import QUIET_INTERVAL, TURN_BOUND, LoopWatchdog, Poller
from plaunch.agent.results import Results
from plaunch.agent.rounds import Preconditions, RoundJoiner, longest_stop, prepare_rendezvous
from plaunch.agent.signals import ForwardedSignals, SignalInbox
from plaunch.agent.states import Outcome, Phase, Requested, RequestKind, State
from plaunch.agent.status import AgentStatus
from plaunch.agent.worker import RunResult, WorkerGroup, WorkerSpec, WorkerState
from plaunch.durations import EXIT_BARRIER_TIMEOUT, PATIENCE, SHUTDOWN_TIMEOUT
from plaunch.errors import SignalException
from plaunch.rendezvous.job import JobOutcome, JobRendezvous

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from plaunch.agent.extensions import Progress
    from plaunch.agent.workers import Workers
    from plaunch.process.watches import Held

logger = logging.getLogger("plaunch")

DEFAULT_ROLE = "default"


class ElasticAgent(abc.ABC):
    """Runs the workers of one node from the first round to the end; the name is torchrun's."""

    @abc.abstractmethod
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run the workers, restarting them up to `max_restarts` times, and return their result.

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

    A subclass defines `_start_workers`, `_stop_workers`, `_monitor_workers` and `_shutdown`. Its
    `_monitor_workers` is called once per monitor interval, and its `_stop_workers` may block.

    Args:
        spec: what to run.
        exit_barrier_timeout, shutdown_timeout: as in `LaunchConfig`.
        services: what a launch gives its agent beyond torchrun's arguments.

    Raises:
        UsageError: a time cannot be used, or the rendezvous has joined with another spec.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        exit_barrier_timeout: float = EXIT_BARRIER_TIMEOUT,
        shutdown_timeout: float = SHUTDOWN_TIMEOUT,
        *,
        services: AgentServices | None = None,
    ) -> None:
        services = services or AgentServices()
        PATIENCE.check(exit_barrier_timeout, "exit_barrier_timeout")
        PATIENCE.check(shutdown_timeout, "shutdown_timeout")
        self._shutdown_timeout = shutdown_timeout
        self._services = services
        self._worker_group = group = WorkerGroup(spec)
        self._status = services.status or AgentStatus()
        checks = services.health_checks
        checks_timeout = 0.0 if checks is None else checks.timeout
        self._longest_stop = longest_stop(shutdown_timeout, checks_timeout)
        prepare_rendezvous(spec, self._longest_stop)
        self._notifier = Notifier(group, self._status, services.notify)
        self._workers = self._create_workers(group, self._notifier)
        self._exit_barrier_timeout = exit_barrier_timeout
        self._watchdog = services.watchdog or LoopWatchdog(shutdown_timeout + TURN_BOUND)
        self._progress: Mapping[int, Progress] = {}
        self._notes: Mapping[str, str] = {}
        self._noted_holds: Mapping[int, Held] = {}
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
        """The state of the workers, without waiting."""

    @abc.abstractmethod
    def _shutdown(
        self, death_sig: signal.Signals = signal.SIGTERM, timeout: float | None = None
    ) -> None:
        """Stop all workers and release everything; called once, at the end of the run."""

    def _create_workers(self, group: WorkerGroup, notifier: Notifier) -> Workers:
        """Create the object through which the loop drives the workers; called once.

        This one polls the four methods. That of `LocalElasticAgent` wakes the loop.

        Raises:
            PluginLoadError: the adapter for such agents is not installed.
        """
        workers: Workers = parts.load_part(parts.POLLED_WORKERS)(self, group)
        return workers

    def _create_loop(self, attempt: int = 0, round: int = -1) -> None:
        """Create the components of one run; earlier runs ended in this attempt and round."""
        workers, notifier, services = self._workers, self._notifier, self._services
        checks, reporter = services.health_checks, services.wait_reporter
        poller = Poller(self._watchdog)
        inbox = SignalInbox(services.signal_policy, poller.wake_up)
        requests = Requests(poller.wake_up)
        first = State(
            max_restarts=self._worker_group.spec.max_restarts,
            has_checks=checks is not None,
            attempt=attempt,
            round=round,
        )
        self._status.begin_run(first, inbox, requests)
        self._job = self._create_job(attempt, poller)
        job = self._job.rendezvous
        forwarded = ForwardedSignals(workers)
        interval, patience = self._job.interval, self._job.patience
        note_ending = workers.note_peers_ended
        peers = Peers(job, notifier, poller, forwarded, interval, patience, note_ending)
        results = Results(workers, peers, notifier)
        self._components = LoopComponents(
            status=self._status,
            workers=workers,
            peers=peers,
            joiner=RoundJoiner(job, workers, peers, results, notifier, poller, reporter),
            preconditions=Preconditions(checks, peers, results, poller),
            results=results,
            notifier=notifier,
            forwarded=forwarded,
            inbox=inbox,
            poller=poller,
            wait_reporter=reporter,
            requests=requests,
        )
        self._loop = Loop(self._components)

    def _create_job(self, attempt: int, poller: Poller) -> AgentJob:
        """Return the job behind the handler of the spec; a plain handler is adapted."""
        spec, services = self._worker_group.spec, self._services
        if isinstance(spec.rdzv_handler, JobRendezvous):
            return AgentJob(spec.rdzv_handler, QUIET_INTERVAL, self._exit_barrier_timeout)
        job = LocalJob(
            spec,
            services.restart_policy,
            attempt=attempt,
            wait_for_peers=self._wait_for_peers,
            wake=poller.wake_up.wake,
            is_running=self._status.is_running,
            is_asked_to_end=self._status.is_asked_to_end,
        )
        interval = QUIET_INTERVAL if job.is_observable else spec.monitor_interval
        # The job bounds the wait for other nodes itself, in `_wait_for_peers`.
        return AgentJob(job, interval, math.inf, local=job)

    def _wait_for_peers(self) -> None:
        """Wait for the exit barrier of a round of `LocalJob`, and for this node's store.

        The workers of other nodes must leave the store before this node ends.
        """
        group, timeout = self._worker_group, self._exit_barrier_timeout
        if group.agent_store is not None:
            wait = parts.load_part(parts.WAIT_THROUGH_STORE)
            wait(group.agent_store, group.group_world_size, timeout)
        self._workers.wait_for_guests(timeout)

    # --- for any thread ---------------------------------------------------------------------------

    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """The agent's worker group; it changes while the agent runs."""
        return self._worker_group

    def request(self, kind: RequestKind, reason: str, who: str) -> None:
        """Request a stop, a restart or that this node leaves; thread-safe.

        Args:
            kind: what is requested; see `RequestKind`.
            reason: why, in a few words.
            who: what requests it, in a few words for messages: a plugin, with its distribution.
        """
        self._components.requests.put(Requested(kind, reason, who))

    def signal_workers(
        self,
        signum: signal.Signals,
        ranks: Collection[int] | None = None,
        reason: str = "",
    ) -> None:
        """Send a signal to running workers, without stopping them; thread-safe.

        Args:
            signum: the signal.
            ranks: the global ranks that get it; None for all workers of this node.
            reason: why, for the report of a worker that the signal ends.
        """
        chosen = None if ranks is None else frozenset(ranks)
        self._components.requests.put(SignalWorkers(signum, chosen, reason))

    def report_hang(self, rank: int, text: str, *, is_final: bool = False) -> None:
        """Fail the round because its workers hang; thread-safe.

        Args:
            rank: the global rank of a running worker of this node, which counts as failed.
            text: where it hangs, for the report.
            is_final: whether no restart may follow.
        """
        self._components.requests.put(Hang(rank, text, is_final))

    def note_progress(self, progress: Mapping[int, Progress]) -> None:
        """Set the progress of workers for snapshots, by global rank; thread-safe."""
        self._progress = dict(progress)

    def note_holds(self, holds: Mapping[int, Held]) -> None:
        """Set what holds workers besides the kernel, by global rank; thread-safe."""
        self._noted_holds = dict(holds)

    def note_state(self, name: str, text: str) -> None:
        """Set a state of an extension for snapshots; an empty `text` removes it."""
        others = {key: value for key, value in self._notes.items() if key != name}
        self._notes = {**others, name: text} if text else others

    def snapshot(self) -> Snapshot:
        """The state of the agent; thread-safe."""
        is_joining = self._status.state.phase is Phase.JOINING
        waits_for = self._components.joiner.waits_for if is_joining else ""
        verdict = self._job.rendezvous.verdict
        return replace(
            self._loop.snapshot,
            waits_for=waits_for,
            is_job_wide=self._job.local is None,
            progress=self._progress,
            notes=self._notes,
            verdict=None if verdict is None or verdict.is_past else JobOutcome(verdict.outcome),
        )

    def held(self) -> dict[int, Held]:
        """What holds workers that cannot run now, by global rank, and since when; thread-safe."""
        pids = self.snapshot().pids
        noted = {one.pid: one for one in self._noted_holds.values()}
        found = {**noted, **self._workers.holds.sample(pids.values())}
        return {rank: found[pid] for rank, pid in pids.items() if pid in found}

    def is_asked_to_end(self) -> bool:
        """Whether the end of the run is requested, also while the loop is busy."""
        return self._status.is_asked_to_end()

    @property
    def asked_at(self) -> float:
        """When the first stop signal of this run arrived (`ReceivedSignal.at`); -inf if none."""
        state = self._status.state
        return -math.inf if state.asked_by is None else state.asked_at

    @property
    def has_ended_job(self) -> bool:
        """Whether this run ends because the end of the job on all nodes was requested.

        Otherwise the job may go on without this node.
        """
        request = self._status.state.request
        return request is not None and request.kind is RequestKind.STOP

    @property
    def result_of_workers(self) -> RunResult:
        """The result of the workers of the last round, as far as it is known."""
        return self._loop.results.of_workers

    @property
    def _remaining_restarts(self) -> int:
        return self._status.state.restarts_left

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run the workers to the end; see `ElasticAgent.run`.

        An agent may run again when it has ended. As in torchrun, the restarts that it has used
        remain used.
        """
        if self._components.poller.is_closed:
            prepare_rendezvous(self._worker_group.spec, self._longest_stop)
            local, state = self._job.local, self._status.state
            # A restart whose round has not formed was used as well.
            attempt = state.attempt if local is None else local.attempt
            self._create_loop(attempt, state.round)
        loop = self._loop
        result: RunResult | None = None
        outcome: Outcome | None = None
        try:
            with self._components.inbox:
                try:
                    outcome = loop.run()
                except BaseException as error:
                    loop.tear_down(error)
                    raise
                finally:
                    self._shutdown(self._status.soft_signal, timeout=self._shutdown_timeout)
                    loop.take_snapshot()
                    loop.await_verdict()
                    loop.await_console(outcome)
            outcome = self._agreed(outcome)
            result = self._conclude(outcome)
            return result
        finally:
            word = "" if outcome is None else outcome.value
            reason = str(loop.results.error) if outcome is Outcome.LEFT else ""
            self._notifier.notify(notifications.AgentFinished, result, word, reason)
            self._components.poller.close()

    def _agreed(self, outcome: Outcome) -> Outcome:
        """The outcome, or that of all nodes if the job had failed when its end was requested here.

        Then the request has come too late to end the job.
        """
        verdict = self._job.rendezvous.verdict
        is_late = verdict is not None and verdict.outcome == JobOutcome.FAILED and verdict.failures
        if outcome is Outcome.SIGNALLED and self.has_ended_job and is_late:
            return Outcome.FAILED
        return outcome

    def _conclude(self, outcome: Outcome) -> RunResult:
        """What `run` returns, or raises."""
        loop, error = self._loop, self._loop.results.error
        if outcome is Outcome.SUCCEEDED:
            return loop.results.of_workers
        if outcome is Outcome.FAILED:
            result = self._components.peers.failed_result(loop.results.of_workers)
            if error is not None and not result.is_failed():
                raise error  # of a restart after a failure elsewhere, whose verdict is not known
            return replace(result, earlier=list(loop.results.earlier))
        if outcome is Outcome.LEFT:
            logger.info("this node was not needed: %s", error)
            return RunResult(WorkerState.SUCCEEDED)
        if outcome is Outcome.SIGNALLED:
            state = self._status.state
            raise SignalException(
                f"{describe_request(state)}; the workers were stopped",
                state.asked_by or signal.SIGTERM,
            )
        raise error or self._components.peers.error_of(outcome)
