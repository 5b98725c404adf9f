"""Restart policies of agents that decide alone."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest
from plaunch.agent import RestartDelayed, RunResult, WorkerState, own_restarts
from plaunch.agent import states as m
from plaunch.agent.machine import step
from plaunch.agent.own_restarts import OwnRestarts
from plaunch.errors import SignalException
from plaunch.plugin import PluginContext
from plaunch.process import ProcessFailure
from plaunch.testing.rendezvous import FakeRendezvous
from plaunch_restarts.standard import StandardRestartPolicy

from helpers.agents import UP, Node
from helpers.clock import Clock
from helpers.policies import Policy, restart, stop
from helpers.signals import send
from helpers.waiting import wait_until

FAILS_TWICE = UP + "up()\nsys.exit(3 if round_ < 2 else 0)\n"
RUNNING = [m.Begin(), m.RoundFormed(), m.StartSucceeded()]


STOP = stop("it is hopeless")


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path, FakeRendezvous())


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(own_restarts, "time", SimpleNamespace(monotonic=clock))
    return clock


def play(*events, **options):
    state, done = m.State(max_restarts=0, **options), []
    for event in events:
        state, actions = step(state, event)
        done.extend(actions)
    return state, done


def test_it_decides_and_the_budget_does_not(node, caplog):
    policy = Policy(restart(reason="why not"), restart(reason="for luck"))
    result = node.run(FAILS_TWICE, nproc=1, max_restarts=0, restart_policy=policy)
    assert result.state is WorkerState.SUCCEEDED
    assert node.starts() == ["0.0.0", "1.1.0", "2.2.0"]
    assert "failed with exit code 3; restart (why not)" in caplog.text
    (first, before), (second, history) = policy.asked
    assert (first.rank, first.exitcode, first.attempt, before) == (0, 3, 0, ())
    assert 0 < first.started < 60
    assert (second.attempt, [one.decision.reason for one in history]) == (1, ["why not"])


def test_it_may_end_the_job_and_says_why(node):
    result = node.run(FAILS_TWICE, nproc=1, max_restarts=9, restart_policy=Policy(STOP))
    assert result.state is WorkerState.FAILED
    assert node.starts() == ["0.0.0"]
    assert result.no_restart == "it is hopeless"


def test_the_budget_decides_if_it_does_not(node):
    result = node.run(FAILS_TWICE, nproc=1, max_restarts=1, restart_policy=Policy(None, None))
    assert result.state is WorkerState.FAILED
    assert node.starts() == ["0.0.0", "1.1.0"]


def test_a_pause_comes_before_the_next_round():
    failed = m.WorkFailed(decision=restart(reason="later", delay=7.0))
    state, done = play(*RUNNING, failed, m.StopSucceeded())
    assert state.phase is m.Phase.PAUSING
    assert done[2:] == [m.Report(m.Again.RESTART, "later"), m.StopWorkers(), m.Pause(7.0)]
    state, actions = step(state, m.PauseEnded())
    assert (state.phase, state.pause, actions) == (m.Phase.JOINING, 0.0, (m.Join(),))


def run_on(clock, gaps, max_restarts, **options):
    """Let a job fail after each of these times of work; the pauses before its restarts, seconds."""
    settings = {"max_restarts": max_restarts}
    context = PluginContext("job", "default", "node", settings=settings, options=options)
    restarts, pauses = OwnRestarts(StandardRestartPolicy(context)), []
    state, _ = play(*RUNNING)
    for gap in gaps:
        restarts.begin_work()
        clock.now += gap
        failure = ProcessFailure(0, 4242, 17, "")
        failure.timestamp = clock()
        result = RunResult(WorkerState.FAILED, failures={0: failure})
        state, _ = step(state, m.WorkFailed(decision=restarts.decide(result, state.attempt)))
        state, actions = step(state, m.StopSucceeded())
        if state.phase is m.Phase.DONE:
            break
        pauses.append(sum(action.seconds for action in actions if isinstance(action, m.Pause)))
        clock.now += pauses[-1]
        for event in ([m.PauseEnded()] if pauses[-1] else []) + RUNNING[1:]:
            state, _ = step(state, event)
        assert state.phase is m.Phase.RUNNING
    return pauses


HOUR = 3600.0


@pytest.mark.parametrize(
    ("gaps", "options", "restarts"),
    [
        ([HOUR] * 100, {"restart_window": "59m"}, 100),
        ([HOUR] * 100, {"restart_window": "61m"}, 1),
        ([HOUR] * 100, {}, 1),
        ([HOUR, 60.0, 60.0], {"restart_window": "59m"}, 1),
    ],
)
def test_a_window_over_hours_of_work(clock, gaps, options, restarts):
    assert len(run_on(clock, gaps, 1, **options)) == restarts


def test_delays_over_hours_of_work(clock):
    delays = {"restart_delay": "1s:60s", "crash_loop": "off"}
    pauses = run_on(clock, [5.0] * 9, 9, **delays)
    assert pauses[0] == 0.0
    assert pauses[1:] == sorted(pauses[1:])
    assert 1.0 <= pauses[1] < 2.0
    assert 45.0 <= pauses[-1] <= 60.0
    # Those out of the window count no more.
    assert run_on(clock, [HOUR] * 9, 9, restart_window="59m", **delays) == [0.0] * 9


def test_a_crash_loop_is_one_of_short_lives(clock):
    assert len(run_on(clock, [29.0] * 9, 9)) == 2
    assert len(run_on(clock, [31.0] * 9, 9)) == 9


def test_a_service_that_fails_for_years_keeps_the_latest_failures():
    policy = Policy(*[restart()] * 1002)
    restarts = OwnRestarts(policy)
    for attempt in range(1002):
        failures = {0: ProcessFailure(0, 4242, 17, "")}
        restarts.decide(RunResult(WorkerState.FAILED, failures=failures), attempt)
    _, history = policy.asked[-1]
    assert [history[0].failure.attempt, history[-1].failure.attempt] == [1, 1000]


def test_a_request_for_a_restart_ends_the_pause():
    failed = m.WorkFailed(decision=restart(delay=7.0))
    ask = m.Requested(m.RequestKind.RESTART, "now", "somebody")
    state, done = play(*RUNNING, failed, m.StopSucceeded(), ask)
    assert (state.phase, done[-1]) == (m.Phase.JOINING, m.Join())


def test_a_failure_that_no_restart_can_help_is_final():
    state, _ = play(*RUNNING, m.WorkFailed(is_final=True, decision=restart()))
    assert state.then is m.Outcome.FAILED


def test_a_stop_signal_ends_the_pause(node, caplog):
    policy = Policy(restart(delay=600.0))
    with pytest.raises(SignalException):
        node.run(
            FAILS_TWICE,
            lambda: (
                wait_until(lambda: "after 600 s" in caplog.text, "the pause"),
                send(signal.SIGTERM),
            ),
            nproc=1,
            after=["0.0.0"],
            restart_policy=policy,
        )
    assert node.starts() == ["0.0.0"]


def test_a_pause_passes(node):
    policy = Policy(restart(delay=0.2), restart())
    assert node.run(FAILS_TWICE, nproc=1, restart_policy=policy).state is WorkerState.SUCCEEDED
    (told,) = node.told.of(RestartDelayed)
    assert (told.seconds, told.group.state) == (0.2, WorkerState.STOPPED)
