"""The nodes of a job in the model: the real routines of the membership, in virtual time.

Each step of a routine runs, and takes the CPU time that it has just taken. So the requests of a
node, their bytes and the work of the leader are those of the product, and none is written here.
"""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from plaunch.rendezvous import ChangeKind, JobSettings, NodeSettings
from plaunch_membership import Timing
from plaunch_membership.agent_requests import AgentRequests
from plaunch_membership.failures import JobFailure
from plaunch_membership.job_lookup import JobLookup
from plaunch_membership.leader import LeaderRoutine
from plaunch_membership.membership import Membership
from plaunch_membership.node import NodeIdentity
from plaunch_membership.operations import Sleep
from plaunch_membership.records import RecordCodec
from plaunch_membership.runner import FIRST_PAUSE
from plaunch_membership.watcher import WatcherRoutine
from plaunch_membership.writer import WriterRoutine
from plaunch_rendezvous_c10d.options import job_store_interval
from server_model import ClientModel, ServerModel
from timeline import Core, Timeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from costs import StoreCosts
    from plaunch_membership.operations import Routine, StoreOperation

_RUN_ID = "scale"
_TOKEN = b"0123456789abcdef" * 4
_LIMIT = 600.0  # virtual seconds for one phase


@dataclass(frozen=True)
class ModelSettings:
    """What is not measured.

    Args:
        latency: seconds of a message's way from one host to another.
        backlog: connections that the kernel keeps for the server.
        is_one_process: whether all nodes share a core, as in a benchmark of one process.
    """

    latency: float = 50e-6
    backlog: int = 4096
    is_one_process: bool = False


class RoutineTask:
    """A routine of a node, as its `Runner` runs it."""

    def __init__(self, node: NodeModel, name: str, routine: Routine[None]) -> None:
        self.node = node
        self.name = name
        self.pending: StoreOperation | None = None  # that has no answer yet
        self._routine = routine
        self._is_nudged = False
        self._sleep = 0  # the number of the current sleep; 0 while it does not sleep
        self._sleeps = itertools.count(1)
        self._attempt = 0  # of the pending operation
        self.is_over = False

    def resume(self, result: object = None) -> None:
        """Run the next step, and begin the operation that it yields."""
        if self.is_over:
            return
        node = self.node
        self.pending = None
        began = time.thread_time()
        try:
            operation = self._routine.send(result)
        except StopIteration:
            self.is_over = True
            return
        spent = time.thread_time() - began
        if self.name == "leader":
            node.job.leader_seconds += spent
        node.handle_changes()
        if isinstance(operation, Sleep):
            self._begin_sleep(node.core.take(spent), operation.seconds)
        else:
            self.pending = operation
            node.core.take(spent)
            self.repeat()

    def repeat(self) -> None:
        """Send the pending operation, perhaps not for the first time."""
        node, operation = self.node, self.pending
        if operation is None or not node.is_connected:
            return  # the connection sends it once it is open
        job = node.job
        self._attempt += 1
        attempt = self._attempt
        sent = node.core.take(job.costs.client_request)

        def arrive() -> None:
            if attempt == self._attempt and not self.is_over:
                node.client.run(operation, answer)

        def answer(result: object) -> None:
            if attempt == self._attempt:
                self.resume(result)

        job.timeline.at(sent + job.settings.latency, arrive)

    def drop(self) -> None:
        """The connection is lost, and with it the answer to the pending operation."""
        self._attempt += 1

    def nudge(self) -> None:
        """End the current sleep, or the next one."""
        self._is_nudged = True
        if self._sleep:
            self._wake(self._sleep)

    def _begin_sleep(self, now: float, seconds: float) -> None:
        self._sleep = next(self._sleeps)
        timeline = self.node.job.timeline
        wake = partial(self._wake, self._sleep)
        timeline.at(now if self._is_nudged else now + seconds, wake)

    def _wake(self, sleep: int) -> None:
        if sleep == self._sleep:
            self._sleep = 0
            self._is_nudged = False
            self.node.job.timeline.at(self.node.job.timeline.now, self.resume)


class NodeModel:
    """One node: its membership, and its agent, which rejoins after each change."""

    def __init__(self, job: JobModel, number: int) -> None:
        self.job = job
        self.core = job.shared_core or Core(job.timeline)
        self.is_connected = False
        self.is_dead = False
        self.heard: list[ChangeKind] = []
        identity = NodeIdentity(
            node=f"node{number}~{number}",
            host=f"node{number}",
            pid=100 + number,
            address=f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}",
            run_id=_RUN_ID,
            min_nodes=job.size - 1,
            max_nodes=job.size,
            job=JobSettings(None),
            settings=NodeSettings("default", 8, 3, 0.0),
        )
        self.membership = Membership(
            identity,
            job.timing,
            RecordCodec(_RUN_ID, _TOKEN),
            absence_is_loss=True,
            hosts_store=lambda: number == 0,
            has_lost_data=lambda: job.server.incarnation > 1,
            clock=lambda: job.timeline.now,
            wall_clock=lambda: job.timeline.now,
        )
        names = itertools.count()
        lookup = JobLookup(self.membership, make_name=lambda: f"{number}-{next(names)}")
        self.writer = WriterRoutine(self.membership, lookup, hold_port=lambda: 20000)
        self.agent = AgentRequests(self.membership, self.writer.reports)
        self.tasks: dict[str, RoutineTask] = {}
        self.client = ClientModel(job.server, self.check_heartbeats)
        self._led = 0  # the incarnation that it has led
        self.membership.on_nudge(self.nudge)

    @property
    def is_placed(self) -> bool:
        """Whether it is in a round."""
        return self.membership.part.is_active

    def start(self) -> None:
        """Connect, and join."""
        self.agent.want_round()
        self._begin("writer", self.writer.write(self._opened))
        self.connect()

    def connect(self) -> None:
        """Open a connection, and send what has no answer."""
        job = self.job
        begun = self.core.take(job.costs.client_greeting)

        def opened() -> None:
            self.is_connected = True
            for task in list(self.tasks.values()):
                task.repeat()

        job.timeline.at(begun, lambda: job.server.greet(self.client, opened))

    def lose_store(self) -> None:
        """The server's process has ended: its successor refuses the session, and takes a new one.

        The first attempt resumes the session. Then all nodes wait for a random time, as a `Runner`
        does.
        """
        self.is_connected = False
        for task in self.tasks.values():
            task.drop()
        timeline = self.job.timeline

        def refused() -> None:
            self.job.server.clients.discard(self.client)
            self.job.server.table.end(self.client.session, is_orderly=True)
            self.check_heartbeats()
            pause = FIRST_PAUSE * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
            timeline.at(timeline.now + pause, self.connect)

        begun = self.core.take(self.job.costs.client_greeting)
        timeline.at(begun, lambda: self.job.server.greet(self.client, refused))

    def die(self) -> None:
        """End its process."""
        self.is_dead = True
        for task in self.tasks.values():
            task.is_over = True
        self.job.server.end(self.client)

    def fail(self) -> None:
        """Report that a worker has failed, and rejoin."""
        place = self.membership.part.place
        rank = 0 if place is None else place.ranks.first_global
        failure = JobFailure(rank, self.job.timeline.now, "exit code 1")
        self.agent.report([failure], is_final=False)
        self.agent.want_round()

    def check_heartbeats(self) -> None:
        """Send and check heartbeats now, as `StoreThreads` does."""
        if not self.is_dead:
            self.writer.is_beat_due = True
            self.nudge()

    def nudge(self) -> None:
        """Wake its routines, and begin to lead if this node does."""
        membership = self.membership
        state, incarnation = membership.state, membership.job.incarnation
        if state is not None and state.leader == membership.me and self._led != incarnation:
            self._led = incarnation
            self._begin("leader", LeaderRoutine(membership).lead())
        for task in list(self.tasks.values()):
            task.nudge()

    def handle_changes(self) -> None:
        """Rejoin after a change that ends the round, as an agent without workers does."""
        membership = self.membership
        if membership.news.error is not None:
            raise membership.news.error
        kinds = [change.kind for change in membership.news.take()]
        if any(kind is not ChangeKind.NOTICE for kind in kinds):
            self.heard += kinds
            self.agent.want_round()

    def _opened(self) -> None:
        self._begin("watcher", WatcherRoutine(self.membership).watch())
        self.nudge()

    def _begin(self, name: str, routine: Routine[None]) -> None:
        former = self.tasks.get(name)
        if former is not None:
            former.is_over = True
        task = self.tasks[name] = RoutineTask(self, name, routine)
        self.job.timeline.at(self.job.timeline.now, task.resume)


@dataclass(frozen=True)
class JobFigures:
    """What happens to a job of many nodes, in the model. Times are seconds.

    Args:
        nodes: their number.
        form: from the start of all nodes until the last one is in the first round.
        form_cpu: of the server until then.
        form_leader: CPU time of the leader's routine until then.
        requests: of a node until then.
        bytes: of these, and of their replies.
        queue: the longest time that a message has waited for the server.
        backlog: the most connections that waited for the server.
        repeated: connections that found the backlog full, and came again after a second.
        beats: the share of a core that the server takes while all workers run.
        beat_requests: its requests per second then.
        beat_queue: the longest time that a message has waited then.
        failure: from the failure of a worker until the last node knows.
        failure_round: until all nodes are in the next round; their workers stop at once.
        killed: from the end of a node's agent until the last node knows.
        killed_round: until all others are in the next round.
        store: from the end of the server's process until all nodes are in a round again.
        store_bytes: what the table counts then, of its `MAX_BYTES`.
    """

    nodes: int
    form: float
    form_cpu: float
    form_leader: float
    requests: float
    bytes: float
    queue: float
    backlog: int
    repeated: int
    beats: float
    beat_requests: float
    beat_queue: float
    failure: float
    failure_round: float
    killed: float
    killed_round: float
    store: float
    store_bytes: int


class JobModel:
    """A job of many nodes over one store.

    Args:
        size: the number of nodes.
        costs: of the store, on this machine.
        settings: what is not measured.
    """

    def __init__(self, size: int, costs: StoreCosts, settings: ModelSettings) -> None:
        self.size = size
        self.costs = costs
        self.settings = settings
        self.timeline = Timeline()
        self.timing = Timing(keep_alive_interval=job_store_interval(size))
        self.server = ServerModel(self.timeline, costs, settings.latency, settings.backlog)
        self.shared_core = Core(self.timeline) if settings.is_one_process else None
        self.leader_seconds = 0.0
        self.nodes = [NodeModel(self, number) for number in range(size)]

    @property
    def living(self) -> list[NodeModel]:
        """The nodes whose processes run."""
        return [node for node in self.nodes if not node.is_dead]

    def form(self) -> float:
        """Start all nodes at once; return the seconds until the last one is in the round."""
        for node in self.nodes:
            self.timeline.at(0.0, node.start)
        self._run(self._are_placed(), "the first round")
        return self.timeline.now

    def fail_worker(self) -> tuple[float, float]:
        """Let a worker fail; return when the last node knows, and when all are in a round again."""
        failing, *others = self.nodes[1:] + self.nodes[:1]
        return self._interrupt(failing.fail, others)

    def kill_node(self) -> tuple[float, float]:
        """Kill a node that does not lead; the same figures."""
        killed = self.nodes[-1]
        return self._interrupt(killed.die, self.nodes[:-1])

    def lose_store(self) -> float:
        """Kill the server's process; return the seconds until all are in a round again."""
        began = self.timeline.now
        for node in self.nodes:
            node.heard.clear()
        self.server.crash()
        for node in self.living:
            node.lose_store()
        self._run(_all_of(lambda node: bool(node.heard), self.living), "the loss of the store")
        self._run(self._are_placed(), "the round after the loss of the store")
        return self.timeline.now - began

    def rest(self, seconds: float) -> None:
        """Let time pass."""
        self.timeline.run(lambda: False, seconds)

    def figures(self) -> JobFigures:
        """Return what happens to the job from its start."""
        server, core, size, interval = (
            self.server,
            self.server.core,
            self.size,
            self.timing.keep_alive_interval,
        )
        form = self.form()
        at_start = {
            "form": form,
            "form_cpu": core.busy,
            "form_leader": self.leader_seconds,
            "requests": server.requests / size,
            "bytes": (server.received + server.sent) / size,
            "queue": server.longest_queue,
            "backlog": server.most_waiting,
            "repeated": server.repeated,
        }
        self.rest(interval)
        busy, requests, server.longest_queue = core.busy, server.requests, 0.0
        self.rest(interval)
        beats, beat_requests = (core.busy - busy), server.requests - requests
        beat_queue = server.longest_queue
        failure = self.fail_worker()
        killed = self.kill_node()
        return JobFigures(
            nodes=size,
            **at_start,  # type: ignore[arg-type]  # as its fields
            beats=beats / interval,
            beat_requests=beat_requests / interval,
            beat_queue=beat_queue,
            failure=failure[0],
            failure_round=failure[1],
            killed=killed[0],
            killed_round=killed[1],
            store=self.lose_store(),
            store_bytes=server.table.size,
        )

    def _interrupt(self, event: Callable[[], None], others: list[NodeModel]) -> tuple[float, float]:
        began = self.timeline.now
        for node in self.nodes:
            node.heard.clear()
        self.timeline.at(began, event)
        self._run(_all_of(lambda node: bool(node.heard), others), "the spread of a failure")
        spread = self.timeline.now - began
        self._run(self._are_placed(), "the next round")
        return spread, self.timeline.now - began

    def _are_placed(self) -> Callable[[], bool]:
        return _all_of(lambda node: node.is_placed, self.living)

    def _run(self, until: Callable[[], bool], what: str) -> None:
        if not self.timeline.run(until, _LIMIT):
            raise RuntimeError(f"{what} does not come within {_LIMIT:g} s")


def _all_of(holds: Callable[[NodeModel], bool], nodes: list[NodeModel]) -> Callable[[], bool]:
    """Return whether it holds for all nodes; the one that it did not hold for is asked first."""
    left = list(nodes)

    def all_hold() -> bool:
        while left and holds(left[-1]):
            left.pop()
        return not left and all(map(holds, nodes))

    return all_hold
