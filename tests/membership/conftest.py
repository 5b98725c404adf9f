"""A simulated job: any number of nodes over a store in memory, step by step, in simulated time."""

from __future__ import annotations

import itertools
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from plaunch.errors import RendezvousClosedError, RendezvousError, RendezvousStateError
from plaunch.rendezvous import ChangeKind, JobSettings, NodeSettings
from plaunch_membership.agent_requests import AgentRequests
from plaunch_membership.failures import JobFailure
from plaunch_membership.job_lookup import JobLookup
from plaunch_membership.keys import job_key
from plaunch_membership.leader import LeaderRoutine
from plaunch_membership.membership import Membership
from plaunch_membership.node import NodeIdentity
from plaunch_membership.operations import Sleep, Wait
from plaunch_membership.options import Timing
from plaunch_membership.outage import OutageReporter
from plaunch_membership.records import RecordCodec
from plaunch_membership.runner import Runner
from plaunch_membership.state import JobPhase, JobState
from plaunch_membership.store_threads import StoreThreads
from plaunch_membership.testing import MemoryBoard
from plaunch_membership.watcher import WatcherRoutine
from plaunch_membership.writer import WriterRoutine

RUN_ID = "simulated"


@dataclass
class Task:
    """One routine of one node, between two operations."""

    node: SimulatedNode
    name: str
    routine: object
    operation: object = None
    wakes_at: float = 0.0
    is_nudged: bool = False
    steps: int = 0

    def is_ready(self, now):
        if self.node.is_paused:
            return False
        if isinstance(self.operation, Sleep):
            return self.is_nudged or now >= self.wakes_at
        if isinstance(self.operation, Wait):
            return now >= self.wakes_at or self.operation.key in self.node.job.board.data
        return True


@dataclass
class SimulatedNode:
    """One node and its agent, which rejoins after every change."""

    job: Simulation
    name: str
    membership: Membership
    agent: AgentRequests
    tasks: dict[str, Task] = field(default_factory=dict)
    is_paused: bool = False
    is_dead: bool = False
    has_ended: bool = False
    writer: WriterRoutine | None = None
    error: BaseException | None = None
    places: list = field(default_factory=list)
    received: list = field(default_factory=list)
    operations: Counter = field(default_factory=Counter)
    must_join: bool = False
    is_slow_until: float = 0.0  # when its workers have stopped

    @property
    def state(self):
        return self.membership.state

    @property
    def place(self):
        return self.membership.part.place if self.membership.part.is_active else None

    @property
    def verdict(self):
        return self.membership.news.verdict

    @property
    def incarnation(self):
        return self.membership.keys.incarnation

    @property
    def kinds(self):
        """The kinds of the changes that it received."""
        return [change.kind.value for change in self.received]

    def begin(self, name, routine):
        self.tasks[name] = Task(self, name, routine)
        self.job.resume(self.tasks[name], None)

    def opened(self):
        self.begin("watcher", WatcherRoutine(self.membership).watch())
        self.nudge()

    def nudge(self):
        for task in self.tasks.values():
            task.is_nudged = True
        state = self.membership.state
        if state is not None and state.leader == self.name and not self.is_dead:
            leader = self.tasks.get("leader")
            incarnation = self.membership.job.incarnation
            if leader is None or leader.incarnation != incarnation:
                task = Task(self, "leader", LeaderRoutine(self.membership).lead())
                task.incarnation = incarnation
                self.tasks["leader"] = task
                self.job.unstarted.append(task)

    def handle_changes(self):
        """Handle changes and errors as an agent does."""
        membership = self.membership
        if membership.part.place is not None and membership.part.is_active:
            found = (membership.keys.incarnation, membership.part.place)
            if not self.places or self.places[-1] != found:
                self.places.append(found)
        if self.error is None and membership.news.error is not None:
            self.error = membership.news.error
        for change in membership.news.take():
            self.received.append(change)
            if change.kind not in (ChangeKind.NOTICE, ChangeKind.ENDING, ChangeKind.CLOSED):
                self.must_join = True
        if self.must_join and self.job.now >= self.is_slow_until:
            self.must_join = False
            self.want_round()
        if membership.part.wants_round and self.error is None:
            self.error = membership.exclusion()
            if self.error is not None:
                self.agent.leave("it is excluded")

    def want_round(self):
        if self.verdict is None:
            self.agent.want_round()

    def fail(self, *failures, is_final=False):
        """Report failures as its agent does; by default the failure of the node's first worker."""
        if not failures:
            rank = self.membership.part.place.ranks.first_global
            failures = [JobFailure(rank, 5.0, f"rank {rank} failed")]
        self.agent.report(list(failures), is_final=is_final)
        self.want_round()


class Simulation:
    """Runs the nodes of one job in an order that the test chooses.

    Args:
        choose: receives the number of runnable tasks, and returns the index of the one to run.
    """

    def __init__(
        self,
        choose=None,
        *,
        min_nodes=1,
        max_nodes=3,
        max_restarts=3,
        absence_is_loss=False,
        **timing,
    ):
        self.absence_is_loss = absence_is_loss
        self.board = MemoryBoard()
        self.store = self.board.connect()
        self.now = 1000.0
        turns = itertools.count()
        self.choose = choose or (lambda count: next(turns))
        self.nodes = []
        self.unstarted = []
        self.min_nodes, self.max_nodes, self.max_restarts = min_nodes, max_nodes, max_restarts
        self.timing = Timing(**{"last_call_timeout": 2.0, "keep_alive_max_attempt": 3, **timing})
        self.restart_policy = None
        self.has_lost_data = False  # whether the store reports that
        self.repeat = lambda: False  # whether an operation is repeated, as after a lost answer
        self._names = itertools.count()

    def add(
        self,
        *,
        host=None,
        index=None,
        nproc=1,
        role="default",
        is_host=False,
        is_alone=True,
        **settings,
    ):
        """Add a node; if `is_alone`, run it until it waits."""
        number = next(self._names)
        host = host or f"h{number}"
        identity = NodeIdentity(
            node=f"{host}~{number}",
            host=host,
            pid=100 + number,
            address=f"10.0.0.{number}",
            run_id=RUN_ID,
            min_nodes=settings.get("min_nodes", self.min_nodes),
            max_nodes=settings.get("max_nodes", self.max_nodes),
            job=JobSettings(
                index, restart_policy=settings.get("restart_policy", self.restart_policy)
            ),
            settings=NodeSettings(
                role,
                nproc,
                settings.get("max_restarts", self.max_restarts),
                settings.get("stop_timeout", 0.0),
            ),
        )
        membership = Membership(
            identity,
            self.timing,
            RecordCodec(RUN_ID, settings.get("token")),
            absence_is_loss=self.absence_is_loss,
            hosts_store=lambda: is_host,
            has_lost_data=lambda: self.has_lost_data,
            clock=lambda: self.now,
            wall_clock=lambda: self.now - settings.get("clock_behind", 0.0),
        )
        lookup = JobLookup(membership, make_name=lambda: f"i{next(self._names)}")
        writer = WriterRoutine(membership, lookup, hold_port=lambda: 20000 + number)
        agent = AgentRequests(membership, writer.reports)
        node = SimulatedNode(self, identity.node, membership, agent, writer=writer)
        membership.on_nudge(node.nudge)
        self.nodes.append(node)
        node.want_round()
        node.begin("writer", writer.write(node.opened))
        if is_alone:
            while self.step():
                pass
        return node

    def kill(self, node):
        node.is_dead = True
        node.tasks.clear()

    def resume(self, task, result):
        if isinstance(task.operation, Sleep):
            task.is_nudged = False  # else it ends the next sleep
        try:
            is_error = isinstance(result, RendezvousStateError)
            resume = task.routine.throw if is_error else task.routine.send
            task.operation = resume(result)
        except StopIteration:
            self._drop(task)
            if task.name == "writer":
                task.node.has_ended = True
        except RendezvousError as error:
            self._drop(task)
            task.node.error = task.node.error or error
        else:
            waits = isinstance(task.operation, (Sleep, Wait))
            seconds = getattr(task.operation, "seconds", None) or getattr(
                task.operation, "timeout", 0.0
            )
            task.wakes_at = self.now + seconds if waits else self.now

    def _drop(self, task):
        if task.node.tasks.get(task.name) is task:
            del task.node.tasks[task.name]

    def step(self):
        """Run one operation of one routine; False if none can run before time passes."""
        while self.unstarted:
            task = self.unstarted.pop()
            if task.node.tasks.get("leader") is task:
                self.resume(task, None)
        tasks = [task for node in self.nodes for task in node.tasks.values()]
        ready = [task for task in tasks if task.is_ready(self.now)]
        if not ready:
            return False
        task = ready[self.choose(len(ready)) % len(ready)]
        operation, result = task.operation, None
        if not isinstance(operation, Sleep):
            task.node.operations[task.name, type(operation).__name__] += 1
            if not isinstance(operation, Wait) and self.repeat():
                operation.run(self.store)
            if isinstance(operation, Wait):
                result = replace(operation, timeout=0.0).run(self.store)
            else:
                try:
                    result = operation.run(self.store)
                except RendezvousStateError as error:
                    result = error
        task.steps += 1
        self.resume(task, result)
        task.node.handle_changes()
        return True

    def run(self, seconds, until=lambda: False):
        """Advance time; returns whether `until` became true."""
        end = self.now + seconds
        while not until():
            if self.step():
                continue
            tasks = [t for n in self.nodes if not n.is_paused for t in n.tasks.values()]
            wakes = [task.wakes_at for task in tasks if task.wakes_at > self.now]
            if not wakes or min(wakes) > end:
                self.now = end
                return until()
            self.now = min(wakes)
        return True

    def settle(self, *nodes, seconds=60.0):
        """Advance time until these nodes, or all living ones, and no others are in a round."""
        assert self.run(seconds, lambda: self.is_settled(nodes)), self.describe()
        return [node.place.rank for node in nodes]

    def gather(self, count):
        """Return a number of nodes that are in a round."""
        nodes = [self.add() for _ in range(count)]
        self.settle(*nodes)
        return nodes

    def is_settled(self, nodes=()):
        nodes = nodes or self.living
        places = [node.place for node in nodes]
        if None in places or {place.nodes for place in places} != {len(nodes)}:
            return False
        return len({place.round for place in places}) == 1 and all(
            node.state.phase is JobPhase.RUNNING and node.state.world.round == node.place.round
            for node in nodes
        )

    def refuse(self, *words, **settings):
        """Add a node that is refused with this message."""
        node = self.add(**settings)
        self.run(10.0)
        assert isinstance(node.error, RendezvousClosedError)
        assert [word for word in words if word not in str(node.error)] == []
        return node

    def restore(self, older):
        """Replace the data of the store by a snapshot."""
        self.board.data.clear()
        self.board.data.update(older)

    def have_verdict(self, nodes, seconds=10.0):
        """Advance time until all these nodes know the verdict."""
        assert self.run(seconds, lambda: all(node.verdict for node in nodes)), self.describe()

    @property
    def leader(self):
        return next(node for node in self.living if node.name == node.state.leader)

    @property
    def living(self):
        return [node for node in self.nodes if not node.is_dead]

    @property
    def states(self):
        """All states of the current incarnation, in order."""
        keys = next((n.membership.keys for n in reversed(self.nodes) if n.state), None)
        if keys is None:
            return []
        codec = self.nodes[-1].membership.codec
        job = self.board.data.get(job_key(RUN_ID))
        if job is None:
            return []
        found = [JobState.from_record(codec.decode(job_key(RUN_ID), job).record("state"), 0)]
        while (value := self.board.data.get(keys.state(len(found)))) is not None:
            found.append(
                JobState.from_record(codec.decode(keys.state(len(found)), value), len(found))
            )
        return found

    def describe(self):
        return "\n".join(
            f"{n.name}: dead={n.is_dead} place={n.place} error={n.error!r}"
            f" state={n.state}"
            f" tasks={[(name, task.operation) for name, task in n.tasks.items()]}"
            for n in self.nodes
        )


@pytest.fixture
def board():
    return MemoryBoard()


class Gate:
    """Blocks some operations on a board while it is shut."""

    def __init__(self, board, *names):
        self.is_shut, self.asked, self._opened = False, threading.Event(), threading.Event()
        self._board, self._names = board, names

    def connect(self):
        store = self._board.connect()
        for name in self._names:
            setattr(store, name, self._guarded(getattr(store, name)))
        return store

    def open(self):
        self.is_shut = False
        self._opened.set()

    def _guarded(self, operation):
        def call(*args):
            self._pass()
            result = operation(*args)
            self._pass()
            return result

        return call

    def _pass(self):
        if self.is_shut:
            self.asked.set()
            self._opened.wait(30.0)


@pytest.fixture
def gate(board):
    """Make a `Gate`."""
    return lambda *names: Gate(board, *names)


class Ended:
    """Records how a runner ended."""

    def __init__(self):
        self.event = threading.Event()
        self.error = None

    def __call__(self, error):
        self.error = error
        self.event.set()

    def wait(self):
        assert self.event.wait(30.0), "it does not end"
        return self.error


@pytest.fixture
def run():
    """Return a function that runs a routine; all runners are stopped after the test."""
    runners = []

    def run(routine, connect, **options):
        ended = Ended()
        options.setdefault("outage", OutageReporter("board", time.monotonic))
        runner = Runner("test", routine, connect, ended, **options)
        runners.append(runner)
        runner.start()
        return runner, ended

    yield run
    for runner in runners:
        runner.stop()
        assert runner.join(30.0)


@pytest.fixture
def simulate():
    """Make a `Simulation`."""
    return Simulation


@pytest.fixture
def settled():
    """Make a `Simulation` of nodes that are in a round; by default `min_nodes` of them."""

    def settle(count, *, min_nodes=None, max_nodes=None, **settings):
        job = Simulation(min_nodes=min_nodes or count, max_nodes=max_nodes or count, **settings)
        return job, job.gather(count)

    return settle


@pytest.fixture(autouse=True)
def _runners_are_not_touched_under_the_lock_of_a_membership(monkeypatch):
    """Routines take that lock under their runner's lock, so the reverse order could deadlock."""
    locks, touched = [], []
    create, stop, renew = StoreThreads.__init__, Runner.stop, Runner.renew

    def created(threads, membership, *args, **kwargs):
        create(threads, membership, *args, **kwargs)
        locks.append(membership.lock)

    def checked(method):
        def call(runner):
            if any(lock._is_owned() for lock in locks):
                touched.append("".join(traceback.format_stack(limit=3)[:-1]))
            method(runner)

        return call

    monkeypatch.setattr(StoreThreads, "__init__", created)
    monkeypatch.setattr(Runner, "stop", checked(stop))
    monkeypatch.setattr(Runner, "renew", checked(renew))
    yield
    assert touched == []
