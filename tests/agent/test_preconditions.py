"""Health checks of a node before it joins; each test sets their results."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plaunch.agent import RunResult, WorkerState
from plaunch.agent import states as m
from plaunch.agent.machine import step
from plaunch.errors import NodeExcludedError, RendezvousClosedError, SignalException
from plaunch.process.failure import ProcessFailure
from plaunch.testing import FakeJobRendezvous, FakeRendezvous

from helpers.agents import SUCCEEDED, PretendAgent, and_then
from helpers.signals import send

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


# --- the table ------------------------------------------------------------------------------------


def test_a_node_joins_once_it_is_healthy():
    state, done = play(m.Begin())
    assert (state.phase, done) == (m.Phase.CHECKING, [m.CheckHealth()])
    state, actions = step(state, m.NodeHealthy())
    assert (state.phase, actions) == (m.Phase.JOINING, (m.Join(),))


def test_nothing_is_asked_without_checks():
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
        (m.JobEnded(m.Outcome.CLOSED), m.Outcome.CLOSED),
        (m.JobEnded(m.Outcome.FAILED), m.Outcome.FAILED),
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


# --- the agent ------------------------------------------------------------------------------------


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


def test_it_is_asked_again_after_a_failure():
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


def test_others_hear_why_a_node_goes(job):
    agent = Agent(job, Checks("", "it is ill"), [lambda: job.fail_elsewhere(FAILED.failures)])
    with pytest.raises(NodeExcludedError):
        agent.run()
    assert job.farewells == ["!it is ill"]
    assert job.reported == []


def test_nobody_hears_of_a_node_that_never_was_there(job):
    with pytest.raises(NodeExcludedError):
        Agent(job, Checks("it is ill")).run()
    assert job.farewells == []


def test_the_end_of_the_job_is_heard_while_checks_are_awaited(job):
    checks = Checks("", None, meanwhile=lambda: job.conclude("succeeded"))
    agent = Agent(job, checks, [FAILED])
    with pytest.raises(RendezvousClosedError, match="ended without this node"):
        agent.run()


@pytest.mark.parametrize("verdicts", [[None], ["", None]])
def test_a_signal_is_heard_while_checks_are_awaited(verdicts, job):
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
