"""Jobs with random events in random order: arrivals, deaths, suspensions, failures."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from plaunch.errors import NodeExcludedError, RendezvousClosedError
from plaunch.rendezvous.api import ChangeKind
from plaunch.restarts import Decision, RestartAction
from plaunch_membership.failures import JobFailure
from plaunch_membership.state import JobPhase

from .conftest import Simulation

ACCIDENTS = ("arrive", "kill", "pause", "go on", "leave", "fail", "succeed", "forget", "nothing")
STEPS = st.lists(
    st.tuples(st.sampled_from(ACCIDENTS), st.integers(0, 7), st.integers(0, 120)), max_size=25
)
CALM = 200.0  # seconds without faults, after which every node must be settled
STABLE = 20.0  # seconds for which nodes that are settled must stay so; losses are found in four


class Excluding:
    """Restarts and excludes one host after the other, while restarts are left."""

    def __init__(self, hosts):
        self._hosts = hosts

    def decide(self, failure, history):
        if len(history) >= len(self._hosts) or failure.attempt >= 1:
            return None
        host = self._hosts[len(history)]
        return Decision(
            RestartAction.RESTART, "again", without=(host,) if host else (), costs=False
        )


def check_rounds(job):
    """Check that all nodes see the same rounds, of one leader each, without duplicate ranks."""
    rounds = defaultdict(list)
    for node in job.nodes:
        for incarnation, place in node.places:
            rounds[incarnation, place.round].append(place)
    for places in rounds.values():
        ranks = [place.rank for place in places]
        assert len(ranks) == len(set(ranks))
        same = {(p.nodes, p.attempt, p.master_addr, p.master_port, p.reason) for p in places}
        assert len(same) == 1
        assert all(0 <= place.rank < place.nodes <= job.max_nodes for place in places)
    formed = [state.round for state in job.states if state.event.kind == "formed"]
    assert formed == sorted(set(formed))
    attempts = [state.attempt for state in job.states]
    assert attempts == sorted(attempts)
    assert all(attempt <= job.max_restarts for attempt in attempts)


def is_settled(job, node):
    """Whether a living node has a place or the verdict, or waits for something that will happen."""
    state = node.state
    if node.error is not None or node.has_ended or node.membership.news.verdict is not None:
        return True
    if state is None:
        return False
    if node.place is not None and node.membership.is_member(state):
        return state.phase is JobPhase.RUNNING
    # A node that knows the verdict does not join a job that starts again in an emptied store.
    living = sum(
        not other.has_ended and other.error is None and other.membership.news.verdict is None
        for other in job.living
    )
    if state.phase is JobPhase.RUNNING:
        return state.world.nodes == job.max_nodes or node.membership.part.wants_round
    return state.phase is JobPhase.FORMING and living < job.min_nodes


def become_settled(job):
    """Whether all living nodes are settled, and stay so, in time."""
    end, since = job.now + CALM, job.now
    while job.now < end and job.now - since < STABLE:
        job.run(1.0)
        if not all(is_settled(job, node) for node in job.living):
            since = job.now
    return job.now - since >= STABLE


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=STEPS,
    seed=st.integers(0, 1 << 32),
    shape=st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(0, 3)),
    repeats=st.integers(0, 10),
    excluded=st.lists(st.sampled_from(("", "h0", "h2", "h4")), max_size=3),
)
@example(  # the node was looking for the job again and got a place in the old incarnation meanwhile
    steps=[
        ("nothing", 4, 54),
        ("pause", 1, 61),
        ("forget", 3, 25),
        ("fail", 4, 92),
        ("succeed", 3, 51),
        ("pause", 6, 66),
        ("nothing", 5, 28),
    ],
    seed=10157185,
    shape=(1, 1, 1),
    repeats=6,
    excluded=[],
)
@example(  # the store was emptied while two nodes were joining, and both got the same ticket
    steps=[("go on", 0, 21), ("arrive", 0, 19), ("forget", 0, 0)],
    seed=0,
    shape=(1, 2, 0),
    repeats=0,
    excluded=[],
)
def test_nodes_agree_and_settle_after_random_events(steps, seed, shape, repeats, excluded):
    min_nodes, more, max_restarts = shape
    order = random.Random(seed)
    job = Simulation(
        order.randrange, min_nodes=min_nodes, max_nodes=min_nodes + more, max_restarts=max_restarts
    )
    job.repeat = lambda: order.randrange(100) < repeats
    job.restart_policy = Excluding(excluded)
    for _ in range(min_nodes):
        job.add(is_alone=False)
    for accident, which, tenths in steps:
        node = job.nodes[which % len(job.nodes)]
        if accident == "arrive" and len(job.nodes) < 8:
            job.add(is_alone=False)
        elif accident == "kill":
            job.kill(node)
        elif accident == "pause":
            node.is_paused = True
        elif accident == "go on":
            node.is_paused = False
        elif accident == "leave" and not node.is_dead:
            node.agent.leave("was stopped")
        elif accident == "fail" and node.place is not None:
            node.agent.report([JobFailure(0, 1.0, "it failed")], is_final=False)
            node.want_round()
        elif accident == "succeed" and node.place is not None:
            node.agent.succeed()
        elif accident == "forget":
            job.board.wipe()
        job.run(tenths / 10)
        check_rounds(job)
    for node in job.nodes:
        node.is_paused = False
    assert become_settled(job), job.describe()
    check_rounds(job)
    assert all(
        isinstance(node.error, (type(None), RendezvousClosedError, NodeExcludedError))
        or "Graceful" in type(node.error).__name__
        for node in job.nodes
    ), job.describe()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 1 << 32),
    signaled=st.sets(st.integers(0, 4), min_size=1),
    apart=st.integers(0, 12),
    does_repeat=st.booleans(),
)
def test_a_signal_reaches_each_node_once_in_any_order(seed, signaled, apart, does_repeat):
    """A scheduler signals some launchers; the others get a notice and send none."""
    order = random.Random(seed)
    job = Simulation(order.randrange, min_nodes=5, max_nodes=5)
    nodes = job.gather(5)
    if does_repeat:
        job.repeat = lambda: order.random() < 0.3
    sent = Counter()

    def heard(node):
        return sum(change.kind is ChangeKind.NOTICE for change in node.received)

    for wave in (1, 2):
        for number in order.sample(sorted(signaled), len(signaled)):
            node = nodes[number]
            if heard(node) + sent[node.name] < wave:  # as an agent does within a second
                sent[node.name] += 1
                node.agent.send_notice(10)
            for _ in range(apart):
                job.step()
        job.run(5.0)
        assert [heard(node) + sent[node.name] for node in nodes] == [wave] * 5
