"""The state machine, driven by named histories and by random ones."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plaunch.agent import machine as m
from plaunch.agent.worker import WorkerState

TERM = m.StopRequested(signal.SIGTERM)
INTERRUPT = m.StopRequested(signal.SIGINT)
STARTED = m.WorkersStartedEvent()
UP = [m.Begin(), m.RoundFormed(), STARTED]


def play(events, max_restarts=0):
    """Run a history; return the final state and all actions in order."""
    state = m.State(max_restarts=max_restarts)
    done = []
    for event in events:
        state, actions = m.step(state, event)
        done.extend(actions)
    return state, done


# name: (restarts, events, actions, attempt, round, worker state, outcome)
HISTORIES = {
    "all succeed": (
        0,
        [*UP, m.WorkersSucceeded(), m.PeersFinished()],
        [m.Join(), m.StartWorkers(), m.WaitForPeers(), m.Finish(m.Outcome.SUCCEEDED)],
        (0, 0, WorkerState.SUCCEEDED, m.Outcome.SUCCEEDED),
    ),
    "failure without restarts": (
        0,
        [*UP, m.WorkersFailed(), m.WorkersStopped()],
        [m.Join(), m.StartWorkers(), m.StopWorkers(), m.Finish(m.Outcome.FAILED)],
        (0, 0, WorkerState.FAILED, m.Outcome.FAILED),
    ),
    "failure, restart, success": (
        1,
        [
            *UP,
            m.WorkersFailed(),
            m.WorkersStopped(),
            m.RoundFormed(),
            STARTED,
            m.WorkersSucceeded(),
            m.PeersFinished(),
        ],
        [
            m.Join(),
            m.StartWorkers(),
            m.Report(m.Again.RESTART),
            m.StopWorkers(),
            m.Join(),
            m.StartWorkers(),
            m.WaitForPeers(),
            m.Finish(m.Outcome.SUCCEEDED),
        ],
        (1, 1, WorkerState.SUCCEEDED, m.Outcome.SUCCEEDED),
    ),
    "one failure more than restarts": (
        1,
        [
            *UP,
            m.WorkersFailed(),
            m.WorkersStopped(),
            m.RoundFormed(),
            STARTED,
            m.WorkersFailed(),
            m.WorkersStopped(),
        ],
        [
            m.Join(),
            m.StartWorkers(),
            m.Report(m.Again.RESTART),
            m.StopWorkers(),
            m.Join(),
            m.StartWorkers(),
            m.StopWorkers(),
            m.Finish(m.Outcome.FAILED),
        ],
        (1, 1, WorkerState.FAILED, m.Outcome.FAILED),
    ),
    "membership change costs no attempt": (
        0,
        [*UP, m.MembershipChanged(), m.WorkersStopped(), m.RoundFormed(), STARTED],
        [
            m.Join(),
            m.StartWorkers(),
            m.Report(m.Again.MEMBERSHIP),
            m.StopWorkers(),
            m.Join(),
            m.StartWorkers(),
        ],
        (0, 1, WorkerState.HEALTHY, None),
    ),
    "membership change before the round is part of it": (
        0,
        [m.Begin(), m.MembershipChanged(), m.RoundFormed(), STARTED],
        [m.Join(), m.StartWorkers()],
        (0, 0, WorkerState.HEALTHY, None),
    ),
    "closed while running": (
        3,
        [*UP, m.RendezvousClosed(), m.WorkersStopped()],
        [
            m.Join(),
            m.StartWorkers(),
            m.Report(m.Outcome.CLOSED),
            m.StopWorkers(),
            m.Finish(m.Outcome.CLOSED),
        ],
        (0, 0, WorkerState.STOPPED, m.Outcome.CLOSED),
    ),
    "closed during a restart": (
        3,
        [*UP, m.WorkersFailed(), m.RendezvousClosed(), m.WorkersStopped()],
        [
            m.Join(),
            m.StartWorkers(),
            m.Report(m.Again.RESTART),
            m.StopWorkers(),
            m.Report(m.Outcome.CLOSED),
            m.Finish(m.Outcome.CLOSED),
        ],
        (0, 0, WorkerState.STOPPED, m.Outcome.CLOSED),
    ),
    "closed after the last failure: the failure is the cause": (
        0,
        [*UP, m.WorkersFailed(), m.RendezvousClosed(), m.WorkersStopped()],
        [m.Join(), m.StartWorkers(), m.StopWorkers(), m.Finish(m.Outcome.FAILED)],
        (0, 0, WorkerState.FAILED, m.Outcome.FAILED),
    ),
    "stop while joining": (
        3,
        [m.Begin(), INTERRUPT],
        [m.Join(), m.Report(m.Outcome.SIGNALLED), m.Finish(m.Outcome.SIGNALLED)],
        (0, -1, WorkerState.INIT, m.Outcome.SIGNALLED),
    ),
    "stop before anything": (
        0,
        [TERM, m.Begin()],
        [m.Report(m.Outcome.SIGNALLED), m.Finish(m.Outcome.SIGNALLED)],
        (0, -1, WorkerState.INIT, m.Outcome.SIGNALLED),
    ),
    "stop while starting": (
        0,
        [m.Begin(), m.RoundFormed(), TERM, STARTED, m.WorkersStopped()],
        [
            m.Join(),
            m.StartWorkers(),
            m.Report(m.Outcome.SIGNALLED),
            m.StopWorkers(signal.SIGTERM),
            m.Finish(m.Outcome.SIGNALLED),
        ],
        (0, 0, WorkerState.STOPPED, m.Outcome.SIGNALLED),
    ),
    "stop while running passes the signal on": (
        3,
        [*UP, INTERRUPT, m.WorkersStopped()],
        [
            m.Join(),
            m.StartWorkers(),
            m.Report(m.Outcome.SIGNALLED),
            m.StopWorkers(signal.SIGINT),
            m.Finish(m.Outcome.SIGNALLED),
        ],
        (0, 0, WorkerState.STOPPED, m.Outcome.SIGNALLED),
    ),
    "stop during a restart": (
        3,
        [*UP, m.WorkersFailed(), TERM, m.WorkersStopped()],
        [
            m.Join(),
            m.StartWorkers(),
            m.Report(m.Again.RESTART),
            m.StopWorkers(),
            m.Report(m.Outcome.SIGNALLED),
            m.Finish(m.Outcome.SIGNALLED),
        ],
        (0, 0, WorkerState.STOPPED, m.Outcome.SIGNALLED),
    ),
    "stop after the last failure: the failure is the cause": (
        0,
        [*UP, m.WorkersFailed(), TERM, m.WorkersStopped()],
        [m.Join(), m.StartWorkers(), m.StopWorkers(), m.Finish(m.Outcome.FAILED)],
        (0, 0, WorkerState.FAILED, m.Outcome.FAILED),
    ),
    "stop while waiting for others keeps the success": (
        0,
        [*UP, m.WorkersSucceeded(), TERM],
        [m.Join(), m.StartWorkers(), m.WaitForPeers(), m.Finish(m.Outcome.SUCCEEDED)],
        (0, 0, WorkerState.SUCCEEDED, m.Outcome.SUCCEEDED),
    ),
    "round fails": (
        3,
        [m.Begin(), m.RoundFailed()],
        [m.Join(), m.Finish(m.Outcome.ERROR)],
        (0, -1, WorkerState.INIT, m.Outcome.ERROR),
    ),
    "node is not needed": (
        3,
        [m.Begin(), m.RoundFailed(graceful=True)],
        [m.Join(), m.Finish(m.Outcome.LEFT)],
        (0, -1, WorkerState.INIT, m.Outcome.LEFT),
    ),
    "workers cannot be started": (
        3,
        [m.Begin(), m.RoundFormed(), m.StartFailed(), m.WorkersStopped()],
        [m.Join(), m.StartWorkers(), m.StopWorkers(), m.Finish(m.Outcome.ERROR)],
        (0, 0, WorkerState.FAILED, m.Outcome.ERROR),
    ),
    "a worker cannot be ended: no second generation": (
        3,
        [*UP, m.WorkersFailed(), m.StopFailed()],
        [
            m.Join(),
            m.StartWorkers(),
            m.Report(m.Again.RESTART),
            m.StopWorkers(),
            m.Finish(m.Outcome.ERROR),
        ],
        (0, 0, WorkerState.UNHEALTHY, m.Outcome.ERROR),
    ),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_history(name):
    max_restarts, events, actions, (attempt, round_, workers, then) = HISTORIES[name]
    state, done = play(events, max_restarts)
    assert done == actions
    assert (state.attempt, state.round, state.workers, state.then) == (
        attempt,
        round_,
        workers,
        then,
    )


def test_nothing_happens_after_the_end():
    state, _ = play([*UP, m.WorkersSucceeded(), m.PeersFinished()])
    for event in EVENTS:
        assert m.step(state, event) == (state, ())


EVENTS = [
    m.Begin(),
    m.RoundFormed(),
    m.RoundFailed(),
    m.RoundFailed(graceful=True),
    STARTED,
    m.StartFailed(),
    m.WorkersFailed(),
    m.WorkersSucceeded(),
    m.MembershipChanged(),
    m.RendezvousClosed(),
    TERM,
    INTERRUPT,
    m.WorkersStopped(),
    m.StopFailed(),
    m.PeersFinished(),
]
histories = st.lists(st.sampled_from(EVENTS), max_size=40)


@given(histories, st.integers(0, 3))
def test_counters_never_lie(events, max_restarts):
    """Attempts stay within the budget, and each needs a round; nothing ever counts down."""
    state = m.State(max_restarts=max_restarts)
    for event in events:
        before = state
        state, actions = m.step(state, event)
        assert before.attempt <= state.attempt <= max_restarts
        assert state.round - before.round in (0, 1)
        assert state.attempt <= max(state.round, 0) + 1
        assert (state.phase is m.Phase.DONE) == isinstance(state.then, m.Outcome) or (
            state.phase is m.Phase.STOPPING
        )
        finishes = [action for action in actions if isinstance(action, m.Finish)]
        assert bool(finishes) == (before.phase is not m.Phase.DONE and state.phase is m.Phase.DONE)
        if finishes:
            assert finishes == [actions[-1]]
            assert finishes[0].outcome is state.then


@given(histories, st.integers(0, 3))
def test_no_workers_are_started_over_living_ones(events, max_restarts):
    """Between two starts there is always a completed stop."""
    state = m.State(max_restarts=max_restarts)
    alive = False
    for event in events:
        before = state
        state, actions = m.step(state, event)
        if isinstance(event, m.WorkersStopped) and before.phase is m.Phase.STOPPING:
            alive = False
        for action in actions:
            if isinstance(action, m.StartWorkers):
                assert not alive
                alive = True
            if isinstance(action, m.Finish) and action.outcome is not m.Outcome.ERROR:
                assert not alive or action.outcome is m.Outcome.SUCCEEDED


class Workers:
    """Answers actions the way a real world would, so that every run comes to an end."""

    def answer(self, action):
        return {
            m.Join: m.RoundFormed(),
            m.StartWorkers: STARTED,
            m.StopWorkers: m.WorkersStopped(),
            m.WaitForPeers: m.PeersFinished(),
        }.get(type(action))


@given(st.lists(st.sampled_from([m.WorkersFailed(), m.MembershipChanged()]), max_size=10))
def test_every_run_ends_once_the_world_lets_it(disturbances):
    """Whatever disturbs it, an agent whose workers succeed at last has succeeded or failed."""
    state, actions = m.step(m.State(max_restarts=2), m.Begin())
    pending = list(actions)
    disturbances = list(disturbances)
    for _ in range(100):
        if pending:
            event = Workers().answer(pending.pop(0))
            if event is None:
                continue
        elif state.phase is m.Phase.RUNNING:
            event = disturbances.pop(0) if disturbances else m.WorkersSucceeded()
        else:
            break
        state, actions = m.step(state, event)
        pending.extend(actions)
    assert state.phase is m.Phase.DONE
    assert state.then in (m.Outcome.SUCCEEDED, m.Outcome.FAILED)
