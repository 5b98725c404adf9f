"""One simulated node: a real agent with a real rendezvous, in a process of a simulated host."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plaunch.agent import notifications
from plaunch.agent.agent import SimpleElasticAgent
from plaunch.agent.components import AgentServices
from plaunch.agent.rounds import release_rendezvous, shut_down
from plaunch.agent.states import Outcome
from plaunch.agent.worker import WorkerSpec
from plaunch.errors import ExitCode, PlaunchError, SignalException, UnkillableWorkerError
from plaunch.plugin.context import PluginContext
from plaunch.rendezvous import ChangeKind
from plaunch.rendezvous.backend import JobSettings, RendezvousParameters
from plaunch_membership import DynamicRendezvousHandler
from plaunch_restarts.policies import StandardRestartPolicy

from plaunch_testing.simulation.health import SimulatedHealthChecks
from plaunch_testing.simulation.record import NodeEvent
from plaunch_testing.simulation.workers import SimulatedWorkers, WorkerTraits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plaunch.agent.notifications import Notification
    from plaunch.agent.notifier import Notifier
    from plaunch.agent.states import State
    from plaunch.agent.worker import RunResult, WorkerGroup
    from plaunch.rendezvous.job import Verdict

    from plaunch_testing.simulation.hub import SimulatedHost, SimulatedProcess
    from plaunch_testing.simulation.modules import SimulatedSystem
    from plaunch_testing.simulation.stores import SimulatedStore
    from plaunch_testing.simulation.training import Training

# Seconds between the end of a launch and the search for what is left. Attempts to connect to a
# store that is gone end one after the other.
_AFTER_END = 30.0

__all__ = ["JobOptions", "SimulatedNode"]


@dataclass(frozen=True)
class JobOptions:
    """The options of a job, as all of its nodes have them.

    Args:
        min_nodes: of a round.
        max_nodes: of a round.
        workers: per node.
        max_restarts: the budget.
        budgets: budgets by cause, as in `--max-restarts=node:2`.
        conf: `--rdzv-conf`.
        exclude_after: `--exclude-node-after`.
        exit_barrier_timeout: seconds.
        check_time: seconds that health checks take; None for none.
    """

    min_nodes: int
    max_nodes: int
    workers: int = 2
    max_restarts: int = 3
    budgets: Mapping[str, int] = field(default_factory=dict)
    conf: Mapping[str, object] = field(default_factory=dict)
    exclude_after: int | None = None
    exit_barrier_timeout: float = 60.0
    check_time: float | None = None


class _Agent(SimpleElasticAgent):
    """An agent whose workers are simulated."""

    def __init__(
        self,
        spec: WorkerSpec,
        options: JobOptions,
        services: AgentServices,
        create_workers: Callable[[_Agent, WorkerGroup], SimulatedWorkers],
    ) -> None:
        self._create = create_workers
        super().__init__(spec, options.exit_barrier_timeout, services=services)

    def _create_workers(self, group: WorkerGroup, notifier: Notifier) -> SimulatedWorkers:  # type: ignore[override]
        return self._create(self, group)

    def describe_round(self) -> tuple[str, int, int]:
        """The incarnation of the job, the round and the attempt of its workers."""
        state, handler = self._status.state, self._worker_group.spec.rdzv_handler
        assert isinstance(handler, DynamicRendezvousHandler)
        return handler.membership.keys.incarnation, state.round, state.attempt

    @property
    def state(self) -> State:
        """Its state."""
        return self._status.state

    def describe_phase(self) -> str:
        """The phase, for findings."""
        return str(self._status.state.phase.name)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        return {}

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        pass

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        raise NotImplementedError

    def _shutdown(self, death_sig: object = None, timeout: float | None = None) -> None:
        pass


class SimulatedNode:
    """One agent on a host, from its start to its exit code.

    Args:
        system: the operating system.
        host: where it runs.
        pid: the id of its process.
        options: of the job.
        server: the store.
        training: the job's work.
        note: adds a line to the history.

    Attributes:
        exit_code: once it has ended by itself.
        error: what ended it, unless it was a success.
        left_threads: the names of threads that were left when it ended.
        left_descriptors: the number of descriptors that were left.
        has_waited_for_others: whether it has succeeded, and the wait for other nodes has timed out.
        ends_by_itself: whether it was told to stop or to leave, and the others were not.
        verdict: how the job has ended, as far as it knows.
        last_round: the incarnation of the job, and the number of the round, that it knew last.
        events: its notifications, in order.
        left_connections: the number of connections to the store that were left when it ended.
    """

    def __init__(
        self,
        system: SimulatedSystem,
        process: SimulatedProcess,
        options: JobOptions,
        server: SimulatedStore,
        training: Training,
        note: Callable[[SimulatedNode, str], None],
    ) -> None:
        self.process = process
        self.traits = WorkerTraits(process.host.stop_time)
        self.exit_code: int | None = None
        self.error: BaseException | None = None
        self.agent: _Agent | None = None
        self.workers: SimulatedWorkers | None = None
        self.result: RunResult | None = None
        self.ended_at = 0.0
        self.left_threads: list[str] = []
        self.left_descriptors = 0
        self.has_waited_for_others = False
        self.ends_by_itself = False
        self.verdict: Verdict | None = None
        self.last_round: tuple[str, int] | None = None
        self.events: list[NodeEvent] = []
        self.left_connections = 0
        self.started_at = system.hub.now
        self._system = system
        self._options = options
        self._server = server
        self._training = training
        self._note = note
        system.hub.spawn(self._run, f"agent on {process.host.name}", process)

    @property
    def name(self) -> str:
        """The host and the process."""
        return f"{self.process.host.name}.{self.process.pid}"

    @property
    def outcome(self) -> Outcome | None:
        """What the agent has ended with."""
        then = None if self.agent is None else self.agent.state.then
        return then if isinstance(then, Outcome) else None

    @property
    def host(self) -> SimulatedHost:
        """Where it runs."""
        return self.process.host

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or was killed."""
        return self.exit_code is not None or not self.process.is_alive

    def was_alive(self, at: float) -> bool:
        """Whether it had started at this time, and had not ended."""
        ends = [self.ended_at] if self.exit_code is not None else []
        if self.process.killed_at is not None:
            ends.append(self.process.killed_at)
        return self.started_at <= at and all(at < end for end in ends)

    def _run(self) -> None:
        try:
            self._run_agent()
            code = int(ExitCode.OK)
        except SignalException as error:
            self.error, code = error, 128 + error.sigval
        except PlaunchError as error:
            self.error, code = error, int(error.exit_code)
        except Exception as error:
            self.error, code = error, int(ExitCode.INTERNAL)
            raise
        finally:
            self.ended_at = self._system.hub.now
        waited = self._options.exit_barrier_timeout - 1.0
        succeeded_at = None if self.workers is None else self.workers.succeeded_at
        self.has_waited_for_others = (
            succeeded_at is not None and self.ended_at - succeeded_at >= waited
        )
        self.exit_code = code
        self._note(self, f"exits with {code}" + (f": {self.error}" if self.error else ""))
        hub, process = self._system.hub, self.process
        hub.sleep(_AFTER_END)  # threads that were notified end
        self.left_threads = [task.name for task in hub.live_tasks(process)[1:]]
        own = 0 if self.workers is None else 2
        self.left_connections = self._server.connections_of(process)
        self.left_descriptors = len(self._system.descriptors.open_in(process)) - own
        process.is_alive = False
        self._server.end_process(self.process)

    def _run_agent(self) -> None:
        options = self._options
        settings = {
            "max_restarts": options.max_restarts,
            "max_restarts_by_cause": dict(options.budgets),
        }
        context = PluginContext(
            "job",
            "default",
            self.host.name,
            settings=settings,
            options={"exclude_node_after": options.exclude_after},
        )
        params = RendezvousParameters(
            "simulated",
            "store:29400",
            "job",
            options.min_nodes,
            options.max_nodes,
            self.host.name,
            job=JobSettings(restart_policy=StandardRestartPolicy(context)),
            **options.conf,
        )
        handler = DynamicRendezvousHandler(params, self._server.access(self.process))
        spec = WorkerSpec(
            "default",
            options.workers,
            handler,
            entrypoint="train.py",
            max_restarts=options.max_restarts,
            worker_store="rank0",
        )
        leaves = False
        try:
            services = AgentServices(notify=self._note_event, health_checks=self._health_checks())
            agent = self.agent = _Agent(spec, options, services, self._create_workers)
            try:
                self.result = result = agent.run()
                is_over = agent.has_ended_job or agent.snapshot().verdict is not None
                leaves = agent.is_asked_to_end() and not is_over
                if result.is_failed():
                    raise result.error("train.py")
            except (SignalException, UnkillableWorkerError):
                leaves = not agent.has_ended_job
                raise
        finally:
            self.verdict = handler.verdict
            membership = handler.membership
            if membership.state is not None:
                self.last_round = membership.keys.incarnation, membership.state.round
            release_rendezvous(
                handler.leave
                if leaves
                else functools.partial(shut_down, handler, AgentServices().signal_policy)
            )

    def _health_checks(self) -> SimulatedHealthChecks | None:
        takes = self._options.check_time
        if takes is None:
            return None
        return SimulatedHealthChecks(self._system.hub, self.process, takes)

    def _note_event(self, event: Notification) -> None:
        agent, group, told, lost, world = self.agent, event.group, "", "", ""
        if isinstance(event, notifications.AfterRendezvous):
            told = f"{event.reason}; {event.decision}"
            master = f"{group.master_addr}:{group.master_port}"
            world = f"{group.group_world_size} nodes, rank 0 at {master}"
        elif isinstance(event, notifications.MembershipChanged):
            if event.change.kind is ChangeKind.LOST:
                lost, told = event.change.node, event.change.reason
        elif isinstance(event, notifications.AgentFinished):
            told = event.outcome
        incarnation = "" if agent is None else agent.describe_round()[0]
        name, at = type(event).__name__, self._system.hub.now
        self.events.append(
            NodeEvent(name, incarnation, group.round, group.attempt, at, told, lost, world)
        )

    def _create_workers(self, agent: _Agent, group: WorkerGroup) -> SimulatedWorkers:
        self.workers = SimulatedWorkers(
            group,
            self._system,
            self._training,
            self.traits,
            lambda rank: agent.report_hang(rank, "simulated"),
            agent.describe_round,
            lambda text: self._note(self, text),
        )
        return self.workers
