"""Preparing a rendezvous, its rounds and the ranks in them, health checks, and leaving it."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plaunch.agent import RunResult, WorkerSpec, WorkerState
from plaunch.agent import states as m
from plaunch.agent.local_job import LocalJob, assign_alike
from plaunch.agent.machine import step
from plaunch.agent.poller import WakeUp
from plaunch.agent.rounds import create_workers, join_round, shut_down
from plaunch.agent.signals import SignalInbox
from plaunch.errors import (
    NodeExcludedError,
    RendezvousClosedError,
    RendezvousStateError,
    SignalException,
    ThreadStartError,
)
from plaunch.process.failure import ProcessFailure
from plaunch.rendezvous import JobOutcome, JobRendezvous, WorldRanks, world_ranks
from plaunch.testing import FakeJobRendezvous, FakeRendezvous
from plaunch_signals.policies import StopSignalPolicy
from plaunch_torchrun.round_store import assign_ranks

from helpers.agents import SUCCEEDED, PretendAgent, and_then
from helpers.calls import Call, meanwhile
from helpers.signals import send
from helpers.stores import Store

NODES = st.lists(
    st.tuples(st.sampled_from(["trainer", "reader", "critic"]), st.integers(1, 5)),
    min_size=1,
    max_size=12,
)


def test_nodes_of_different_sizes_and_roles():
    nodes = [("trainer", 2), ("reader", 1), ("trainer", 3)]
    assert world_ranks(nodes) == [
        WorldRanks(first_global=0, world_size=6, first_role=0, role_world_size=5),
        WorldRanks(first_global=2, world_size=6, first_role=0, role_world_size=1),
        WorldRanks(first_global=3, world_size=6, first_role=2, role_world_size=5),
    ]


@given(NODES)
def test_every_rank_is_given_once(nodes):
    workers = [
        (role, worker)
        for (role, size), ranks in zip(nodes, world_ranks(nodes), strict=True)
        for worker in create_workers(ranks, size)
    ]
    total = sum(size for _, size in nodes)
    assert [worker.global_rank for _, worker in workers] == list(range(total))
    assert {worker.world_size for _, worker in workers} == {total}
    for role in {role for role, _ in workers}:
        same = [worker for other, worker in workers if other == role]
        assert [worker.role_rank for worker in same] == list(range(len(same)))
        assert {worker.role_world_size for worker in same} == {len(same)}


@given(st.integers(1, 5), st.integers(1, 9))
def test_equal_nodes_need_not_ask(local_world_size, nodes):
    asked = world_ranks([("trainer", local_world_size)] * nodes)
    assert [assign_alike(local_world_size, rank, nodes) for rank in range(nodes)] == asked


def test_nodes_agree_over_the_store_whatever_their_order():
    nodes = [("trainer", 2), ("reader", 1), ("trainer", 3)]
    store, answers = Store(), {}

    def join(rank):
        answers[rank] = assign_ranks(store, *nodes[rank], rank, len(nodes))

    assert all(call.ended() for call in [Call(join, rank) for rank in (2, 0, 1)])
    assert [answers[rank] for rank in range(3)] == world_ranks(nodes)


def test_torchruns_agents_understand_what_is_written():
    api = pytest.importorskip("torch.distributed.elastic.agent.server.api")
    store = Store()
    assign_ranks(store, "trainer", 2, 0, 1)
    theirs = api._RoleInstanceInfo.deserialize(store.values["torchelastic/role_info/0"])
    assert (theirs.role, theirs.rank, theirs.local_world_size) == ("trainer", 0, 2)
    assert json.loads(store.values["torchelastic/assigned_ranks/0"]) == [0, 2, 0, 2]


@pytest.mark.parametrize("garbage", ["not json", "[1]", "[1, 2, 3, null]", '{"a": 1}'])
def test_garbage_in_the_store_is_named(garbage):
    store = Store()
    store.set("torchelastic/assigned_ranks/1", garbage)
    with pytest.raises(RendezvousStateError, match="no valid ranks for node 1"):
        assign_ranks(store, "trainer", 1, 1, 2)


def joined(handler, nproc=2):
    """The global ranks of the second of two nodes, and the size of the world."""
    spec = WorkerSpec("trainer", nproc, handler, entrypoint="python")
    job = handler
    if not isinstance(handler, JobRendezvous):
        job = LocalJob(
            spec,
            None,
            attempt=0,
            wait_for_peers=print,
            wake=print,
            is_running=bool,
            is_asked_to_end=bool,
        )
    workers = join_round(job, spec).workers
    return [worker.global_rank for worker in workers], workers[0].world_size


@pytest.mark.parametrize(("promise", "asks"), [(None, True), ("0", True), ("1", False)])
def test_nodes_of_a_plain_handler_ask_each_other_unless_they_are_promised_to_be_alike(
    monkeypatch, promise, asks
):
    monkeypatch.delenv("TORCH_ELASTIC_WORKER_IDENTICAL", raising=False)
    if promise is not None:
        monkeypatch.setenv("TORCH_ELASTIC_WORKER_IDENTICAL", promise)
    store = Store()
    store.set("torchelastic/assigned_ranks/1", "[3, 5, 3, 5]")  # the first node has three workers
    handler = FakeRendezvous(rank=1, world_size=2, store=store)
    assert joined(handler) == (([3, 4], 5) if asks else ([2, 3], 4))
    assert ("torchelastic/role_info/1" in store.values) is asks


@pytest.mark.parametrize("promise", ["0", "1"])
def test_a_round_that_brings_the_ranks_needs_no_promise(monkeypatch, promise):
    monkeypatch.setenv("TORCH_ELASTIC_WORKER_IDENTICAL", promise)
    handler = FakeJobRendezvous(rank=1, world_size=2, local_world_size=2)
    handler.ranks = WorldRanks(first_global=3, world_size=5, first_role=3, role_world_size=5)
    with handler:
        assert joined(handler) == ([3, 4], 5)


# --- health checks before a round -----------------------------------------------------------------


UP = [m.Begin(), m.NodeHealthy(), m.RoundFormed(), m.StartSucceeded()]
FAILED = RunResult(WorkerState.FAILED, failures={0: ProcessFailure(0, 4242, 3, "")})
TERM = m.StopRequested(signal.SIGTERM)


def play(*events, has_checks=True, **options):
    state, done = m.State(has_checks=has_checks, **options), []
    for event in events:
        state, actions = step(state, event)
        done.extend(actions)
    return state, done


def asked(done):
    return done.count(m.CheckHealth())


# --- health checks in the table -------------------------------------------------------------------


def test_a_node_joins_once_it_is_healthy():
    state, done = play(m.Begin())
    assert (state.phase, done) == (m.Phase.CHECKING, [m.CheckHealth()])
    state, actions = step(state, m.NodeHealthy())
    assert (state.phase, actions) == (m.Phase.JOINING, (m.Join(),))


def test_without_checks_the_agent_joins_at_once():
    for events in ([m.Begin()], [m.Begin(), *UP[2:], m.WorkFailed(), m.StopSucceeded()]):
        state, done = play(*events, has_checks=False)
        assert (state.phase, done[-1]) == (m.Phase.JOINING, m.Join())


@pytest.mark.parametrize(
    ("event", "is_checked"),
    [
        (m.WorkFailed(), True),
        (m.PeersFailed(), True),
        (m.NodesChanged(is_loss=True), True),
        (m.NodesChanged(), False),
        (m.Requested(m.RequestKind.RESTART, "why not", "somebody"), False),
    ],
)
def test_failures_and_losses_are_a_reason_and_planned_changes_are_none(event, is_checked):
    state, done = play(*UP, event, m.StopSucceeded())
    assert asked(done) == 1 + is_checked
    assert state.phase is (m.Phase.CHECKING if is_checked else m.Phase.JOINING)


def test_a_loss_is_a_reason_once():
    again = [m.StopSucceeded(), m.NodeHealthy(), m.RoundFormed(), m.StartSucceeded()]
    lost, planned = m.NodesChanged(is_loss=True), m.NodesChanged()
    state, done = play(*UP, lost, *again, planned, m.StopSucceeded())
    assert (asked(done), state.phase) == (2, m.Phase.JOINING)


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        (m.NodeUnhealthy(), m.Outcome.ERROR),
        (m.PeersUnreachable(), m.Outcome.ERROR),
        (m.JobEnded(JobOutcome.CLOSED), m.Outcome.CLOSED),
        (m.JobEnded(JobOutcome.FAILED), m.Outcome.FAILED),
        (TERM, m.Outcome.SIGNALLED),
        (m.Requested(m.RequestKind.LEAVE, "why not", "somebody"), m.Outcome.SIGNALLED),
    ],
)
def test_what_ends_the_run_meanwhile(event, outcome):
    state, done = play(*UP, m.WorkFailed(), m.StopSucceeded(), event)
    assert (state.phase, done[-1]) == (m.Phase.DONE, m.Finish(outcome))


EVENTS = [
    *(m.NodeHealthy(), m.NodeUnhealthy(), m.RoundFormed(), m.StartSucceeded(), m.WorkFailed()),
    *(m.NodesChanged(), m.NodesChanged(is_loss=True), m.PeersFailed(), m.StopSucceeded()),
    m.WorkSucceeded(),
]


@given(st.lists(st.sampled_from(EVENTS), max_size=40))
def test_no_round_follows_a_failure_unchecked(events):
    state = m.State(has_checks=True)
    is_known = False  # whether the node is known to be healthy
    for event in [m.Begin(), *events]:
        before = state
        state, actions = step(state, event)
        running = before.phase in (m.Phase.RUNNING, m.Phase.CLEARING, m.Phase.WAITING)
        harmful = (m.WorkFailed, m.PeersFailed)
        if running and (isinstance(event, harmful) or getattr(event, "is_loss", False)):
            is_known = is_known and state == before
        if isinstance(event, m.NodeHealthy) and before.phase is m.Phase.CHECKING:
            is_known = True
        if m.Join() in actions:
            assert is_known


# --- health checks of an agent --------------------------------------------------------------------


class Checks:
    """Answers as it is told: a verdict, or None if it never does; then what comes of it."""

    timeout = 5.0

    def __init__(self, *verdicts, meanwhile=lambda: None):
        self.verdicts, self.asked, self.meanwhile = list(verdicts), [], meanwhile
        self.verdict_now = None

    def begin(self, wake, *, is_restart):
        self.asked.append(is_restart)
        self.verdict_now = self.verdicts.pop(0)
        wake()

    def remaining(self):
        if self.verdict_now is not None:
            return 0.0
        self.meanwhile()
        return 600.0

    def verdict(self):
        return self.verdict_now


class Agent(PretendAgent):
    """The pretended one, with checks."""

    def __init__(self, handler, checks, *scripts, **options):
        self.checks = checks
        super().__init__(handler, *scripts, health_checks=checks, **options)


def test_a_node_that_is_not_healthy_never_joins():
    handler = FakeRendezvous()
    joined = []
    and_then(handler, "next_rendezvous", lambda: joined.append(1))
    agent = Agent(handler, Checks("node a is not healthy: disk"), [SUCCEEDED])
    with pytest.raises(NodeExcludedError, match=r"^node a is not healthy: disk$"):
        agent.run()
    assert (joined, agent.calls) == ([], ["shutdown SIGTERM"])


def test_checks_run_again_after_a_failure():
    checks = Checks("", "", "it is ill")
    agent = Agent(FakeRendezvous(), checks, [FAILED], [FAILED], max_restarts=5)
    with pytest.raises(NodeExcludedError, match="it is ill"):
        agent.run()
    assert checks.asked == [False, True, True]
    assert agent.started() == [(0, 0), (1, 1)]
    assert agent.result_of_workers.failures == FAILED.failures  # for the report


@pytest.fixture
def job():
    with FakeJobRendezvous(max_restarts=1) as handler:
        yield handler


def test_an_excluded_node_leaves_with_the_reason(job):
    agent = Agent(job, Checks("", "it is ill"), [lambda: job.fail_elsewhere(FAILED.failures)])
    with pytest.raises(NodeExcludedError):
        agent.run()
    assert job.farewells == ["!it is ill"]
    assert job.reported == []


def test_a_node_that_has_not_joined_does_not_leave(job):
    with pytest.raises(NodeExcludedError):
        Agent(job, Checks("it is ill")).run()
    assert job.farewells == []


def test_the_end_of_the_job_ends_the_wait_for_checks(job):
    checks = Checks("", None, meanwhile=lambda: job.conclude("succeeded"))
    agent = Agent(job, checks, [FAILED])
    with pytest.raises(RendezvousClosedError, match="ended without this node"):
        agent.run()


@pytest.mark.parametrize("verdicts", [[None], ["", None]])
def test_a_signal_ends_the_wait_for_checks(verdicts, job):
    checks = Checks(*verdicts, meanwhile=lambda: send(signal.SIGTERM))
    with pytest.raises(SignalException, match="SIGTERM received"):
        Agent(job, checks, [FAILED]).run()


def test_the_job_waits_longer_for_a_node_with_checks():
    prepared = []

    class Rendezvous(FakeRendezvous):
        def prepare(self, node):
            prepared.append(node.stop_timeout)

    for checks in (None, Checks()):
        Agent(Rendezvous(), checks)
    assert prepared[1] == prepared[0] + Checks.timeout


# --- shutting the rendezvous down, and signals meanwhile ------------------------------------------


POLICY = StopSignalPolicy([signal.SIGTERM])


class Slow(FakeJobRendezvous):
    """Shuts down when it is told to leave."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.begun = threading.Event()
        self.left = threading.Event()

    def shutdown(self):
        self.calls.append("shutdown")
        self.begun.set()
        assert self.left.wait(30)
        return super().shutdown()

    def leave(self):
        self.calls.append("leave")
        self.left.set()
        return True

    def stop_when_begun(self):
        assert self.begun.wait(30)
        send(signal.SIGTERM)


def test_a_stop_signal_makes_it_leave(caplog):
    with Slow() as handler:
        with meanwhile(handler.stop_when_begun):
            assert shut_down(handler, POLICY)
        assert handler.calls == ["shutdown", "leave"]
    assert "SIGTERM received; this node leaves the job" in caplog.text
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_signal_that_belongs_to_the_request_for_the_end_does_not_make_it_leave(caplog):
    """A wrapper has forwarded Ctrl-C, and the agent's run has ended meanwhile."""
    was_asked = threading.Event()

    class Policy(StopSignalPolicy):
        def action(self, signum):
            was_asked.set()
            return super().action(signum)

    with Slow() as handler:

        def forward():
            assert handler.begun.wait(30)
            send(signal.SIGINT)
            assert was_asked.wait(30)
            handler.left.set()

        with meanwhile(forward):
            # The first one came just now, however busy this machine is.
            assert shut_down(handler, Policy([signal.SIGINT]), math.inf)
        assert handler.calls == ["shutdown"]
    assert "SIGINT" not in caplog.text


def test_a_later_signal_makes_it_leave():
    with Slow() as handler:
        with meanwhile(handler.stop_when_begun):
            assert shut_down(handler, POLICY, time.monotonic() - 1000.0)
        assert handler.calls == ["shutdown", "leave"]


@pytest.mark.parametrize("has_thread", [True, False])
def test_without_a_signal_it_has_its_time(monkeypatch, has_thread):
    def refuse(*_):
        raise ThreadStartError("no more threads")

    if not has_thread:
        monkeypatch.setattr("plaunch.agent.rounds.BackgroundCall", refuse)
    with Slow() as handler:
        handler.left.set()
        assert shut_down(handler, POLICY)
        assert handler.calls == ["shutdown"]


def test_what_it_raises_is_raised():
    class Broken(Slow):
        def shutdown(self):
            if self.left.is_set():
                return True
            raise OSError("the store is gone")

    with Broken() as handler:
        with pytest.raises(OSError, match="the store is gone"):
            shut_down(handler, POLICY)
        handler.left.set()


def test_a_handler_that_never_waits_is_shut_down_without_a_thread():
    handler = FakeRendezvous()
    shut_down(handler, POLICY)
    assert handler.shut_down


def test_a_signal_of_a_second_run_does_not_end_the_process_by_itself(monkeypatch):
    """After a run in plaunch's own process, a handler for the last words stands for the default."""
    monkeypatch.setenv("PLAUNCH_LAUNCHER", str(os.getpid()))
    monkeypatch.setattr("plaunch.agent.signals.raise_priority", lambda: False)
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGUSR1)}
    others = set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}
    before |= {signum: signal.getsignal(signum) for signum in others}
    wake_up = WakeUp()
    try:
        with SignalInbox(POLICY, wake_up):
            pass
        with SignalInbox(POLICY, wake_up) as inbox:
            send(signal.SIGUSR1)
            assert [received.signum for received in inbox.take()] == [signal.SIGUSR1]
    finally:
        wake_up.close()
        for signum, handler in before.items():
            if handler is not None:
                signal.signal(signum, handler)


def test_after_leaving_no_thread_of_the_rendezvous_runs():
    class Lingering(Slow):
        def leave(self):
            threading.Timer(0.2, self.left.set).start()
            self.calls.append("leave")
            return True

    with Lingering() as handler:
        with meanwhile(handler.stop_when_begun):
            shut_down(handler, POLICY)
        assert not any(thread.name == "plaunch-shutdown" for thread in threading.enumerate())
