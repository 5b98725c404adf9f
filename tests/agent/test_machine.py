"""The state machine, driven by named histories and by random ones."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plaunch.agent import RequestKind
from plaunch.agent import states as m
from plaunch.agent.machine import step
from plaunch.agent.worker import WorkerState

TERM = m.StopRequested(signal.SIGTERM)
INTERRUPT = m.StopRequested(signal.SIGINT)
STARTED = m.StartSucceeded()
UP = [m.Begin(), m.RoundFormed(), STARTED]
DONE = [m.WorkSucceeded(), m.StopSucceeded()]  # with all that they left behind
WAIT = [m.ClearUp(), m.WaitForPeers()]


def play(events, max_restarts=0, *, is_job_wide=False):
    """Run a history; return the final state and all actions in order."""
    state = m.State(max_restarts=max_restarts, is_job_wide=is_job_wide)
    done = []
    for event in events:
        state, actions = step(state, event)
        done.extend(actions)
    return state, done


# name: (restarts, events, actions, attempt, round, worker state, outcome)
HISTORIES = {
    "all succeed": (
        0,
        [*UP, *DONE, m.PeersFinished()],
        [m.Join(), m.StartWorkers(), *WAIT, m.Finish(m.Outcome.SUCCEEDED)],
        (0, 0, WorkerState.SUCCEEDED, m.Outcome.SUCCEEDED),
    ),
    "failure without restarts": (
        0,
        [*UP, m.WorkFailed(), m.StopSucceeded()],
        [m.Join(), m.StartWorkers(), m.StopWorkers(), m.Finish(m.Outcome.FAILED)],
        (0, 0, WorkerState.FAILED, m.Outcome.FAILED),
    ),
    "failure, restart, success": (
        1,
        [
            *UP,
            m.WorkFailed(),
            m.StopSucceeded(),
            m.RoundFormed(),
            STARTED,
            *DONE,
            m.PeersFinished(),
        ],
        [
            m.Join(),
            m.StartWorkers(),
            m.Report(m.Again.RESTART),
            m.StopWorkers(),
            m.Join(),
            m.StartWorkers(),
            *WAIT,
            m.Finish(m.Outcome.SUCCEEDED),
        ],
        (1, 1, WorkerState.SUCCEEDED, m.Outcome.SUCCEEDED),
    ),
    "one failure more than restarts": (
        1,
        [
            *UP,
            m.WorkFailed(),
            m.StopSucceeded(),
            m.RoundFormed(),
            STARTED,
            m.WorkFailed(),
            m.StopSucceeded(),
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
        [*UP, m.NodesChanged(), m.StopSucceeded(), m.RoundFormed(), STARTED],
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
        [m.Begin(), m.NodesChanged(), m.RoundFormed(), STARTED],
        [m.Join(), m.StartWorkers()],
        (0, 0, WorkerState.HEALTHY, None),
    ),
    "closed while running": (
        3,
        [*UP, m.RendezvousClosed(), m.StopSucceeded()],
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
        [*UP, m.WorkFailed(), m.RendezvousClosed(), m.StopSucceeded()],
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
        [*UP, m.WorkFailed(), m.RendezvousClosed(), m.StopSucceeded()],
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
        [m.Begin(), m.RoundFormed(), TERM, STARTED, m.StopSucceeded()],
        [
            m.Join(),
            m.StartWorkers(),
            m.Report(m.Outcome.SIGNALLED),
            m.StopWorkers(),
            m.Finish(m.Outcome.SIGNALLED),
        ],
        (0, 0, WorkerState.STOPPED, m.Outcome.SIGNALLED),
    ),
    "stop while running passes the signal on": (
        3,
        [*UP, INTERRUPT, m.StopSucceeded()],
        [
            m.Join(),
            m.StartWorkers(),
            m.Report(m.Outcome.SIGNALLED),
            m.StopWorkers(),
            m.Finish(m.Outcome.SIGNALLED),
        ],
        (0, 0, WorkerState.STOPPED, m.Outcome.SIGNALLED),
    ),
    "stop during a restart": (
        3,
        [*UP, m.WorkFailed(), TERM, m.StopSucceeded()],
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
        [*UP, m.WorkFailed(), TERM, m.StopSucceeded()],
        [m.Join(), m.StartWorkers(), m.StopWorkers(), m.Finish(m.Outcome.FAILED)],
        (0, 0, WorkerState.FAILED, m.Outcome.FAILED),
    ),
    "stop while waiting for others keeps the success": (
        0,
        [*UP, *DONE, TERM],
        [
            m.Join(),
            m.StartWorkers(),
            *WAIT,
            m.Report(m.Outcome.SUCCEEDED),
            m.Finish(m.Outcome.SUCCEEDED),
        ],
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
        [m.Begin(), m.RoundFormed(), m.StartFailed(), m.StopSucceeded()],
        [m.Join(), m.StartWorkers(), m.StopWorkers(), m.Finish(m.Outcome.ERROR)],
        (0, 0, WorkerState.FAILED, m.Outcome.ERROR),
    ),
    "workers cannot be started again: the failure is the cause": (
        3,
        [
            *UP,
            m.WorkFailed(),
            m.StopSucceeded(),
            m.RoundFormed(),
            m.StartFailed(),
            m.StopSucceeded(),
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
    "workers cannot be started in a round that follows no failure": (
        3,
        [
            *UP,
            m.WorkFailed(),
            m.StopSucceeded(),
            m.RoundFormed(),
            STARTED,
            m.NodesChanged(),
            m.StopSucceeded(),
            m.RoundFormed(),
            m.StartFailed(),
            m.StopSucceeded(),
        ],
        [
            m.Join(),
            m.StartWorkers(),
            m.Report(m.Again.RESTART),
            m.StopWorkers(),
            m.Join(),
            m.StartWorkers(),
            m.Report(m.Again.MEMBERSHIP),
            m.StopWorkers(),
            m.Join(),
            m.StartWorkers(),
            m.StopWorkers(),
            m.Finish(m.Outcome.ERROR),
        ],
        (1, 2, WorkerState.FAILED, m.Outcome.ERROR),
    ),
    "the agent itself fails: the workers are stopped as in any other stop": (
        3,
        [*UP, m.AgentFailed(), INTERRUPT, m.StopSucceeded()],
        [
            m.Join(),
            m.StartWorkers(),
            m.StopWorkers(),
            m.Escalate(),
            m.Finish(m.Outcome.ERROR),
        ],
        (0, 0, WorkerState.FAILED, m.Outcome.ERROR),
    ),
    "a stop while it is cleared up keeps the success, and waits for nobody": (
        0,
        [*UP, m.WorkSucceeded(), TERM, INTERRUPT, m.StopSucceeded()],
        [
            m.Join(),
            m.StartWorkers(),
            m.ClearUp(),
            m.Report(m.Outcome.SUCCEEDED),
            m.Escalate(),
            m.Finish(m.Outcome.SUCCEEDED),
        ],
        (0, 0, WorkerState.SUCCEEDED, m.Outcome.SUCCEEDED),
    ),
    "what was left behind cannot be ended": (
        0,
        [*UP, m.WorkSucceeded(), m.StopFailed()],
        [m.Join(), m.StartWorkers(), m.ClearUp(), m.Finish(m.Outcome.ERROR)],
        (0, 0, WorkerState.UNHEALTHY, m.Outcome.ERROR),
    ),
    "closed while it is cleared up": (
        0,
        [*UP, m.WorkSucceeded(), m.RendezvousClosed(), m.StopSucceeded()],
        [m.Join(), m.StartWorkers(), m.ClearUp(), m.Finish(m.Outcome.SUCCEEDED)],
        (0, 0, WorkerState.SUCCEEDED, m.Outcome.SUCCEEDED),
    ),
    "a node arrives while it is cleared up": (
        0,
        [*UP, m.WorkSucceeded(), m.NodesChanged(), m.StopSucceeded(), m.RoundFormed()],
        [
            m.Join(),
            m.StartWorkers(),
            m.ClearUp(),
            m.Report(m.Again.MEMBERSHIP),
            m.Join(),
            m.StartWorkers(),
        ],
        (0, 1, WorkerState.STOPPED, None),
    ),
    "a worker cannot be ended: no second generation": (
        3,
        [*UP, m.WorkFailed(), m.StopFailed()],
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


def job_round(attempt=0, number=None):
    return m.RoundFormed(attempt=attempt, round=number)


JOB_UP = [m.Begin(), job_round(), STARTED]
BEGUN = [m.Join(), m.StartWorkers()]
LOST_PEERS = m.PeersUnreachable()
SUCCESS, FAILURE, CLOSED = m.Outcome.SUCCEEDED, m.Outcome.FAILED, m.Outcome.CLOSED

# name: (events, actions after the start, attempt, round, worker state, outcome)
JOB_HISTORIES = {
    "a failure is told, and the job decides, whatever the budget": (
        [*JOB_UP, m.WorkFailed(), m.StopSucceeded(), job_round(1), STARTED],
        [
            m.TellFailure(),
            m.Report(m.Again.DECISION),
            m.StopWorkers(),
            m.Join(),
            m.StartWorkers(),
        ],
        (1, 1, WorkerState.HEALTHY, None),
    ),
    "a failure elsewhere stops and joins": (
        [*JOB_UP, m.PeersFailed(), m.StopSucceeded(), job_round(1), STARTED],
        [m.Report(m.Again.DECISION), m.StopWorkers(), m.Join(), m.StartWorkers()],
        (1, 1, WorkerState.HEALTHY, None),
    ),
    "own failures during the stop for another's are not told": (
        [*JOB_UP, m.PeersFailed(), m.WorkFailed(), m.StopSucceeded()],
        [m.Report(m.Again.DECISION), m.StopWorkers(), m.Join()],
        (0, 0, WorkerState.STOPPED, m.Again.DECISION),
    ),
    "the attempt is the job's even for a newcomer": (
        [m.Begin(), job_round(2), STARTED],
        [],
        (2, 0, WorkerState.HEALTHY, None),
    ),
    "the round is the job's where it counts them, even for a newcomer": (
        [
            m.Begin(),
            job_round(1, 4),
            STARTED,
            m.NodesChanged(),
            m.StopSucceeded(),
            job_round(1, 7),
            STARTED,
        ],
        [m.Report(m.Again.MEMBERSHIP), m.StopWorkers(), m.Join(), m.StartWorkers()],
        (1, 7, WorkerState.HEALTHY, None),
    ),
    "a membership change keeps the attempt": (
        [*JOB_UP, m.NodesChanged(), m.StopSucceeded(), job_round(0), STARTED],
        [m.Report(m.Again.MEMBERSHIP), m.StopWorkers(), m.Join(), m.StartWorkers()],
        (0, 1, WorkerState.HEALTHY, None),
    ),
    "no restart is left": (
        [*JOB_UP, m.WorkFailed(), m.StopSucceeded(), m.JobEnded(FAILURE)],
        [
            m.TellFailure(),
            m.Report(m.Again.DECISION),
            m.StopWorkers(),
            m.Join(),
            m.Report(FAILURE),
            m.Finish(FAILURE),
        ],
        (0, 0, WorkerState.FAILED, FAILURE),
    ),
    "the job fails while this node runs": (
        [*JOB_UP, m.JobEnded(FAILURE), m.StopSucceeded()],
        [m.Report(FAILURE), m.StopWorkers(), m.Finish(FAILURE)],
        (0, 0, WorkerState.FAILED, FAILURE),
    ),
    "the job fails while this node stops": (
        [*JOB_UP, m.NodesChanged(), m.JobEnded(FAILURE), m.StopSucceeded()],
        [
            m.Report(m.Again.MEMBERSHIP),
            m.StopWorkers(),
            m.Report(FAILURE),
            m.Finish(FAILURE),
        ],
        (0, 0, WorkerState.FAILED, FAILURE),
    ),
    "the job fails while this node waits": (
        [*JOB_UP, *DONE, m.JobEnded(FAILURE), m.StopSucceeded()],
        [*WAIT, m.Report(FAILURE), m.StopWorkers(), m.Finish(FAILURE)],
        (0, 0, WorkerState.FAILED, FAILURE),
    ),
    "the job succeeds": (
        [*JOB_UP, *DONE, m.JobEnded(SUCCESS)],
        [*WAIT, m.Finish(SUCCESS)],
        (0, 0, WorkerState.SUCCEEDED, SUCCESS),
    ),
    "the job succeeds without this node": (
        [*JOB_UP, m.JobEnded(SUCCESS), m.StopSucceeded()],
        [m.Report(CLOSED), m.StopWorkers(), m.Finish(CLOSED)],
        (0, 0, WorkerState.STOPPED, CLOSED),
    ),
    "the job had succeeded before this node came": (
        [m.Begin(), m.JobEnded(SUCCESS)],
        [m.Report(CLOSED), m.Finish(CLOSED)],
        (0, -1, WorkerState.INIT, CLOSED),
    ),
    "a newcomer is seen just before the job succeeds": (
        [
            *JOB_UP,
            *DONE,
            m.NodesChanged(),
            m.StopSucceeded(),
            m.JobEnded(SUCCESS),
        ],
        [
            *WAIT,
            m.Report(m.Again.MEMBERSHIP),
            m.StopWorkers(),
            m.Join(),
            m.Report(SUCCESS),
            m.Finish(SUCCESS),
        ],
        (0, 0, WorkerState.SUCCEEDED, SUCCESS),
    ),
    "an earlier round's success does not count": (
        [
            *JOB_UP,
            *DONE,
            m.PeersFailed(),
            m.StopSucceeded(),
            job_round(1),
            STARTED,
            m.JobEnded(SUCCESS),
            m.StopSucceeded(),
        ],
        [
            *WAIT,
            m.Report(m.Again.DECISION),
            m.StopWorkers(),
            m.Join(),
            m.StartWorkers(),
            m.Report(CLOSED),
            m.StopWorkers(),
            m.Finish(CLOSED),
        ],
        (1, 1, WorkerState.STOPPED, CLOSED),
    ),
    "somebody closes the job while this node waits": (
        [*JOB_UP, *DONE, m.JobEnded(CLOSED), m.StopSucceeded()],
        [*WAIT, m.Report(CLOSED), m.StopWorkers(), m.Finish(CLOSED)],
        (0, 0, WorkerState.SUCCEEDED, CLOSED),
    ),
    "the others take too long": (
        [*JOB_UP, *DONE, m.PeersFinished()],
        [*WAIT, m.Finish(SUCCESS)],
        (0, 0, WorkerState.SUCCEEDED, SUCCESS),
    ),
    "unreachable while running": (
        [*JOB_UP, LOST_PEERS, m.StopSucceeded()],
        [m.Report(m.Outcome.ERROR), m.StopWorkers(), m.Finish(m.Outcome.ERROR)],
        (0, 0, WorkerState.STOPPED, m.Outcome.ERROR),
    ),
    "unreachable while stopping for another round": (
        [*JOB_UP, m.PeersFailed(), LOST_PEERS, m.StopSucceeded()],
        [
            m.Report(m.Again.DECISION),
            m.StopWorkers(),
            m.Report(m.Outcome.ERROR),
            m.Finish(m.Outcome.ERROR),
        ],
        (0, 0, WorkerState.STOPPED, m.Outcome.ERROR),
    ),
    "unreachable after a stop signal: the signal is the cause": (
        [*JOB_UP, TERM, LOST_PEERS, m.JobEnded(FAILURE), m.StopSucceeded()],
        [
            m.Report(m.Outcome.SIGNALLED),
            m.StopWorkers(),
            m.Finish(m.Outcome.SIGNALLED),
        ],
        (0, 0, WorkerState.STOPPED, m.Outcome.SIGNALLED),
    ),
    "unreachable while it is cleared up": (
        [*JOB_UP, m.WorkSucceeded(), LOST_PEERS, m.StopSucceeded()],
        [m.ClearUp(), m.Report(m.Outcome.ERROR), m.Finish(m.Outcome.ERROR)],
        (0, 0, WorkerState.SUCCEEDED, m.Outcome.ERROR),
    ),
    "workers of another node fail while it is cleared up": (
        [*JOB_UP, m.WorkSucceeded(), m.PeersFailed(), m.StopSucceeded(), job_round(1), STARTED],
        [m.ClearUp(), m.Report(m.Again.DECISION), m.Join(), m.StartWorkers()],
        (1, 1, WorkerState.HEALTHY, None),
    ),
    "the job fails while it is cleared up": (
        [*JOB_UP, m.WorkSucceeded(), m.JobEnded(FAILURE), m.StopSucceeded()],
        [m.ClearUp(), m.Report(FAILURE), m.Finish(FAILURE)],
        (0, 0, WorkerState.FAILED, FAILURE),
    ),
    "a stop while it is cleared up: the job hears of the success": (
        [*JOB_UP, m.WorkSucceeded(), TERM, m.StopSucceeded()],
        [m.ClearUp(), m.Report(SUCCESS), m.WaitForPeers(), m.Finish(SUCCESS)],
        (0, 0, WorkerState.SUCCEEDED, SUCCESS),
    ),
    **{
        f"a stop while it is cleared up, and then {name}: it ends with its success": (
            [*JOB_UP, m.WorkSucceeded(), TERM, event, m.StopSucceeded()],
            [m.ClearUp(), m.Report(SUCCESS), m.WaitForPeers(), m.Finish(SUCCESS)],
            (0, 0, WorkerState.SUCCEEDED, SUCCESS),
        )
        for name, event in {
            "a node comes": m.NodesChanged(),
            "workers of another fail": m.PeersFailed(),
            "the others are lost": LOST_PEERS,
        }.items()
    },
    "the agent itself fails: the job hears of it": (
        [*JOB_UP, m.AgentFailed(), m.StopSucceeded()],
        [m.TellFailure(is_final=True), m.StopWorkers(), m.Finish(m.Outcome.ERROR)],
        (0, 0, WorkerState.FAILED, m.Outcome.ERROR),
    ),
    "unreachable while waiting": (
        [*JOB_UP, *DONE, LOST_PEERS, m.StopSucceeded()],
        [
            *WAIT,
            m.Report(m.Outcome.ERROR),
            m.StopWorkers(),
            m.Finish(m.Outcome.ERROR),
        ],
        (0, 0, WorkerState.SUCCEEDED, m.Outcome.ERROR),
    ),
    "workers cannot be started: the job hears of it": (
        [m.Begin(), job_round(), m.StartFailed(), m.StopSucceeded()],
        [m.TellFailure(is_final=True), m.StopWorkers(), m.Finish(m.Outcome.ERROR)],
        (0, 0, WorkerState.FAILED, m.Outcome.ERROR),
    ),
}


@pytest.mark.parametrize("name", JOB_HISTORIES)
def test_history_where_the_job_decides(name):
    events, actions, (attempt, round_, workers, then) = JOB_HISTORIES[name]
    state, done = play(events, is_job_wide=True)
    begun = BEGUN if round_ >= 0 else BEGUN[:1]
    assert done == [*begun, *actions]
    assert (state.attempt, state.round, state.workers, state.then) == (
        attempt,
        round_,
        workers,
        then,
    )


# name: (signals in a stop that a signal began or a failure (None), with the seconds since it began;
# the seconds after which the grace is skipped)
SEQUENCES = {
    "Slurm's time limit: SIGTERM, SIGCONT, SIGTERM": (["TERM 0", "TERM 0.01"], []),
    "Kubernetes: SIGTERM, then SIGKILL": (["TERM 0"], []),
    "systemd with SendSIGHUP: SIGTERM, SIGHUP": (["TERM 0", "HUP 0.001"], []),
    "timeout: each signal to the child, then to its group": (["TERM 0", "TERM 0.001"], []),
    "timeout -s INT": (["INT 0", "INT 0.0001"], []),
    "Ctrl-C": (["INT 0"], []),
    "Ctrl-C twice": (["INT 0", "INT 0.4"], [0.4]),
    "Ctrl-C three times": (["INT 0", "INT 0.4", "INT 0.6"], [0.4, 0.6]),
    "Ctrl-\\": (["QUIT 0"], []),
    "Ctrl-\\ twice": (["QUIT 0", "QUIT 0.01"], [0.01]),
    "Ctrl-C, then Ctrl-\\": (["INT 0", "QUIT 0.01"], [0.01]),
    "kill, then Ctrl-C": (["TERM 0", "INT 0.5"], [0.5]),
    "kill, and again for want of patience": (["TERM 0", "TERM 2.1"], [2.1]),
    "kill, again and again": (["TERM 0", "TERM 1", "TERM 1.9", "TERM 3"], [3]),
    "Ctrl-C, then kill": (["INT 0", "TERM 0.5", "TERM 2.5"], [2.5]),
    "Ctrl-C after a failure": (["failure", "INT 0.5"], [0.5]),
    "Ctrl-\\ after a failure": (["failure", "QUIT 0.5"], [0.5]),
    "kill after a failure": (["failure", "TERM 0.5"], []),
    "kill twice after a failure": (["failure", "TERM 5", "TERM 6.5", "TERM 7.5"], [7.5]),
}


@pytest.mark.parametrize("is_job_wide", [False, True])
@pytest.mark.parametrize("name", SEQUENCES)
def test_which_signals_skip_the_grace(name, is_job_wide):
    sequence, expected = SEQUENCES[name]
    state, _ = play([*UP], is_job_wide=is_job_wide)
    escalated = []
    for word in sequence:
        if word == "failure":
            event, at = m.WorkFailed(), None
        else:
            signum, at = word.split()
            event = m.StopRequested(signal.Signals["SIG" + signum], 100 + float(at))
        state, actions = step(state, event)
        if m.Escalate() in actions:
            escalated.append(float(at))
        assert m.StopWorkers() not in actions or word == sequence[0]
    assert escalated == expected


# --- requests from outside ------------------------------------------------------------------------

STOP = m.Requested(RequestKind.STOP, "no progress", "the watch")
RESTART = m.Requested(RequestKind.RESTART, "no progress", "the watch")
LEAVE = m.Requested(RequestKind.LEAVE, "no progress", "the watch")
SUCCEEDED, SIGNALLED = m.Outcome.SUCCEEDED, m.Outcome.SIGNALLED
NOTHING = ()

# name: (events, what follows from a request for an end, and for a restart; and for a restart where
# the rendezvous knows the whole job)
PHASES = {
    "before it has begun": ([], (m.Report(SIGNALLED), m.Finish(SIGNALLED)), NOTHING, NOTHING),
    "while the nodes meet": (
        [m.Begin()],
        (m.Report(SIGNALLED), m.Finish(SIGNALLED)),
        *(NOTHING, NOTHING),
    ),
    "while workers start": (
        [m.Begin(), m.RoundFormed()],
        (m.Report(SIGNALLED), m.StopWorkers()),
        *[(m.Report(m.Again.REQUEST), m.StopWorkers())] * 2,
    ),
    "while they run": (
        UP,
        (m.Report(SIGNALLED), m.StopWorkers()),
        *[(m.Report(m.Again.REQUEST), m.StopWorkers())] * 2,
    ),
    "while they stop for another round": (
        [*UP, m.NodesChanged()],
        (m.Report(SIGNALLED),),
        *(NOTHING, NOTHING),
    ),
    "while they stop for a restart": ([*UP, RESTART], (m.Report(SIGNALLED),), NOTHING, NOTHING),
    "while they stop for good": ([*UP, TERM], NOTHING, NOTHING, NOTHING),
    "while what they left behind is ended": (
        [*UP, m.WorkSucceeded()],
        (m.Report(SUCCEEDED),),
        NOTHING,
        (m.Report(m.Again.REQUEST),),
    ),
    "while other nodes are at work": (
        [*UP, *DONE],
        (m.Report(SUCCEEDED), m.Finish(SUCCEEDED)),
        NOTHING,
        (m.Report(m.Again.REQUEST), m.StopWorkers()),
    ),
    "after the end": ([*UP, *DONE, m.PeersFinished()], NOTHING, NOTHING, NOTHING),
}


@pytest.mark.parametrize("is_job_wide", [False, True])
@pytest.mark.parametrize("name", PHASES)
def test_what_a_request_does(name, is_job_wide):
    events, end, restart, restart_of_job = PHASES[name]
    state, _ = play(events, is_job_wide=is_job_wide)
    for request in (STOP, LEAVE):
        after, actions = step(state, request)
        assert actions == end
        if not actions and name != "while they stop for good":
            assert after == state
    after, actions = step(state, RESTART)
    assert actions == (restart_of_job if is_job_wide else restart)
    if not actions:
        assert after == state
    else:
        assert after.request is RESTART


@pytest.mark.parametrize("is_job_wide", [False, True])
def test_a_restart_that_was_asked_for_is_another_round_and_no_attempt(is_job_wide):
    again = [RESTART, m.StopSucceeded(), m.RoundFormed(), STARTED]
    state, actions = play([*UP, *again, *again], is_job_wide=is_job_wide)
    assert (state.attempt, state.round, state.workers) == (0, 2, WorkerState.HEALTHY)
    assert not state.is_restart  # a failed start is no end of a failure
    assert state.request is None
    assert actions.count(m.StartWorkers()) == 3


def test_a_failed_start_after_a_restart_that_was_asked_for_is_an_error():
    state, _ = play([*UP, RESTART, m.StopSucceeded(), m.RoundFormed(), m.StartFailed()])
    assert step(state, m.StopSucceeded())[1] == (m.Finish(m.Outcome.ERROR),)


def test_the_first_one_to_ask_for_the_end_is_its_cause():
    state, _ = play([*UP, RESTART, LEAVE, STOP, TERM])
    assert state.request is LEAVE
    state, _ = play([*UP, TERM, STOP])
    assert state.request is None
    assert state.is_asked_to_end


@pytest.mark.parametrize("request_", [STOP, LEAVE])
def test_who_has_ended_the_job_after_its_own_success_keeps_that(request_):
    ended = m.JobEnded(m.Outcome.CLOSED)
    state, actions = play(
        [*UP, m.WorkSucceeded(), request_, ended, m.StopSucceeded()], is_job_wide=True
    )
    assert actions[-1] == m.Finish(SUCCEEDED)
    assert state.workers is WorkerState.SUCCEEDED


def test_ctrl_c_after_a_request_skips_the_grace():
    state, _ = play([*UP, STOP])
    assert m.Escalate() in step(state, INTERRUPT)[1]
    assert m.Escalate() not in step(state, TERM)[1]


def test_a_failure_that_no_restart_can_help_is_the_end():
    state, actions = play([*UP, m.WorkFailed(is_final=True), m.StopSucceeded()], max_restarts=3)
    assert actions[-1] == m.Finish(m.Outcome.FAILED)
    assert state.attempt == 0


def test_nothing_happens_after_the_end():
    state, _ = play([*UP, *DONE, m.PeersFinished()])
    for event in EVENTS:
        assert step(state, event) == (state, ())


EVENTS = [
    m.Begin(),
    m.RoundFormed(),
    m.RoundFailed(),
    m.RoundFailed(graceful=True),
    STARTED,
    m.StartFailed(),
    m.AgentFailed(),
    m.WorkFailed(),
    m.WorkSucceeded(),
    m.NodesChanged(),
    m.RendezvousClosed(),
    TERM,
    INTERRUPT,
    STOP,
    RESTART,
    LEAVE,
    m.StopSucceeded(),
    m.StopFailed(),
    m.PeersFinished(),
    m.PeersFailed(),
    m.PeersUnreachable(),
    m.JobEnded(m.Outcome.SUCCEEDED),
    m.JobEnded(m.Outcome.FAILED),
    m.JobEnded(m.Outcome.CLOSED),
]
STOPS = (m.Phase.STOPPING, m.Phase.CLEARING)
histories = st.lists(st.sampled_from(EVENTS), max_size=40)


@given(histories, st.booleans())
def test_every_end_tells_what_the_workers_did(events, is_job_wide):
    """Success needs workers that succeeded in the last round, and a failure is never told twice."""
    state = m.State(max_restarts=1, is_job_wide=is_job_wide)
    told = 0
    succeeded = False
    for event in [*UP, *events]:
        before = state
        state, actions = step(state, event)
        if isinstance(event, m.RoundFormed) and before.phase is m.Phase.JOINING:
            told, succeeded = 0, False
        if isinstance(event, m.WorkSucceeded) and before.phase is m.Phase.RUNNING:
            succeeded = True
        told += sum(isinstance(action, m.TellFailure) for action in actions)
        assert told <= is_job_wide
        if m.Finish(m.Outcome.SUCCEEDED) in actions:
            assert succeeded
            assert state.workers is WorkerState.SUCCEEDED
        if m.Finish(m.Outcome.FAILED) in actions:
            assert state.workers is WorkerState.FAILED


@given(histories, st.integers(0, 3))
def test_counters_never_lie(events, max_restarts):
    """Attempts stay within the budget, and each needs a round; nothing ever counts down."""
    state = m.State(max_restarts=max_restarts)
    for event in events:
        before = state
        state, actions = step(state, event)
        assert before.attempt <= state.attempt <= max_restarts
        assert state.round - before.round in (0, 1)
        assert state.attempt <= max(state.round, 0) + 1
        assert (state.phase is m.Phase.DONE) == isinstance(state.then, m.Outcome) or (
            state.phase in (m.Phase.STOPPING, m.Phase.CLEARING)
        )
        finishes = [action for action in actions if isinstance(action, m.Finish)]
        assert bool(finishes) == (before.phase is not m.Phase.DONE and state.phase is m.Phase.DONE)
        if finishes:
            assert finishes == [actions[-1]]
            assert finishes[0].outcome is state.then


@given(histories, st.integers(0, 3), st.booleans())
def test_no_workers_are_started_over_living_ones(events, max_restarts, is_job_wide):
    """Between two starts there is always a completed stop."""
    state = m.State(max_restarts=max_restarts, is_job_wide=is_job_wide)
    alive = False
    for event in events:
        before = state
        state, actions = step(state, event)
        if isinstance(event, m.StopSucceeded) and before.phase in STOPS:
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
            m.StopWorkers: m.StopSucceeded(),
            m.ClearUp: m.StopSucceeded(),
            m.WaitForPeers: m.PeersFinished(),
        }.get(type(action))


@given(st.lists(st.sampled_from([m.WorkFailed(), m.NodesChanged()]), max_size=10))
def test_every_run_ends_once_the_world_lets_it(disturbances):
    """Whatever disturbs it, an agent whose workers succeed at last has succeeded or failed."""
    state, actions = step(m.State(max_restarts=2), m.Begin())
    pending = list(actions)
    disturbances = list(disturbances)
    for _ in range(100):
        if pending:
            event = Workers().answer(pending.pop(0))
            if event is None:
                continue
        elif state.phase is m.Phase.RUNNING:
            event = disturbances.pop(0) if disturbances else m.WorkSucceeded()
        else:
            break
        state, actions = step(state, event)
        pending.extend(actions)
    assert state.phase is m.Phase.DONE
    assert state.then in (m.Outcome.SUCCEEDED, m.Outcome.FAILED)
