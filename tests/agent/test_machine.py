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
from plaunch.rendezvous import JobOutcome

TERM = m.StopRequested(signal.SIGTERM)
INTERRUPT = m.StopRequested(signal.SIGINT, at=1.0)  # a second after the other one
STARTED, STOPPED = m.StartSucceeded(), m.StopSucceeded()
UP = [m.Begin(), m.RoundFormed(), STARTED]
DONE = [m.WorkSucceeded(), STOPPED]  # with all that they left behind
FAILED = [m.WorkFailed(), STOPPED]
REPORT_ERROR = m.ReportFailure(is_final=True)
AGAIN = [m.RoundFormed(), STARTED]
LOST_PEERS = m.PeersUnreachable()
MEMBERSHIP, AFTER_FAILURE = m.RestartReason.MEMBERSHIP, m.RestartReason.FAILURE
SUCCESS, FAILURE, CLOSED = m.Outcome.SUCCEEDED, m.Outcome.FAILED, m.Outcome.CLOSED
JOB_SUCCEEDED, JOB_FAILED = m.JobEnded(JobOutcome.SUCCEEDED), m.JobEnded(JobOutcome.FAILED)
JOB_CLOSED = m.JobEnded(JobOutcome.CLOSED)
SIGNALLED, ERROR, LEFT = m.Outcome.SIGNALLED, m.Outcome.ERROR, m.Outcome.LEFT

# What an agent does: the first round, and the wait for the other nodes.
BEGUN = [m.Join(), m.StartWorkers()]
WAIT = [m.ClearUp(), m.WaitForPeers()]


def stop(why):
    """The workers are stopped and the reason is reported; a signal reaches them before that."""
    actions = [m.ReportDecision(why), m.StopWorkers()]
    return actions[::-1] if why is SIGNALLED else actions


def end(outcome):
    """The run ends without a stop, and the reason is reported."""
    return [m.ReportDecision(outcome), m.Finish(outcome)]


def stop_and_end(outcome):
    return [*stop(outcome), m.Finish(outcome)]


# Own workers have failed: that is reported, and the workers are stopped.
FAILS = [m.ReportFailure(), *stop(AFTER_FAILURE)]


def play(events):
    """Run a history; return the final state and all actions in order."""
    state, done = m.State(), []
    for event in events:
        state, actions = step(state, event)
        done.extend(actions)
    return state, done


def job_round(attempt=0, number=None):
    return m.RoundFormed(attempt=attempt, round=number)


JOB_UP = [m.Begin(), job_round(), STARTED]
JOB_AGAIN = [job_round(1), STARTED]
JOB_CLEARS = [*JOB_UP, m.WorkSucceeded()]  # what they left behind is being ended

# name: (events, actions after the start, (attempt, round, worker state, outcome))
HISTORIES = {
    "all succeed": (
        [*UP, *DONE, m.PeersFinished()],
        [*WAIT, m.Finish(SUCCESS)],
        (0, 0, WorkerState.SUCCEEDED, SUCCESS),
    ),
    "membership change costs no attempt": (
        [*UP, m.NodesChanged(), STOPPED, *AGAIN],
        [*stop(MEMBERSHIP), *BEGUN],
        (0, 1, WorkerState.HEALTHY, None),
    ),
    "membership change before the round is part of it": (
        [m.Begin(), m.NodesChanged(), *AGAIN],
        [],
        (0, 0, WorkerState.HEALTHY, None),
    ),
    "stop while joining": (
        [m.Begin(), INTERRUPT],
        end(SIGNALLED),
        (0, -1, WorkerState.INIT, SIGNALLED),
    ),
    "stop before anything": (
        [TERM, m.Begin()],
        end(SIGNALLED),
        (0, -1, WorkerState.INIT, SIGNALLED),
    ),
    "stop while starting": (
        [m.Begin(), m.RoundFormed(), TERM, STARTED, STOPPED],
        stop_and_end(SIGNALLED),
        (0, 0, WorkerState.STOPPED, SIGNALLED),
    ),
    "stop while running passes the signal on": (
        [*UP, INTERRUPT, STOPPED],
        stop_and_end(SIGNALLED),
        (0, 0, WorkerState.STOPPED, SIGNALLED),
    ),
    "stop while waiting for others keeps the success": (
        [*UP, *DONE, TERM],
        [*WAIT, *end(SUCCESS)],
        (0, 0, WorkerState.SUCCEEDED, SUCCESS),
    ),
    "round fails": (
        [m.Begin(), m.RoundFailed()],
        [m.Finish(ERROR)],
        (0, -1, WorkerState.INIT, ERROR),
    ),
    "node is not needed": (
        [m.Begin(), m.RoundFailed(graceful=True)],
        [m.Finish(LEFT)],
        (0, -1, WorkerState.INIT, LEFT),
    ),
    "what was left behind cannot be ended": (
        [*UP, m.WorkSucceeded(), m.StopFailed()],
        [m.ClearUp(), m.Finish(ERROR)],
        (0, 0, WorkerState.UNHEALTHY, ERROR),
    ),
    "a node arrives while it is cleared up": (
        [*UP, m.WorkSucceeded(), m.NodesChanged(), STOPPED, m.RoundFormed()],
        [m.ClearUp(), m.ReportDecision(MEMBERSHIP), *BEGUN],
        (0, 1, WorkerState.STOPPED, None),
    ),
    "a failure is reported, and the job decides": (
        [*JOB_UP, *FAILED, *JOB_AGAIN],
        [*FAILS, *BEGUN],
        (1, 1, WorkerState.HEALTHY, None),
    ),
    "a failure elsewhere stops and joins": (
        [*JOB_UP, m.PeersFailed(), STOPPED, *JOB_AGAIN],
        [*stop(AFTER_FAILURE), *BEGUN],
        (1, 1, WorkerState.HEALTHY, None),
    ),
    "own failures during the stop for another's are not reported": (
        [*JOB_UP, m.PeersFailed(), *FAILED],
        [*stop(AFTER_FAILURE), m.Join()],
        (0, 0, WorkerState.STOPPED, AFTER_FAILURE),
    ),
    "the attempt is the job's even for a newcomer": (
        [m.Begin(), job_round(2), STARTED],
        [],
        (2, 0, WorkerState.HEALTHY, None),
    ),
    "the round is the job's where it counts them, even for a newcomer": (
        [m.Begin(), job_round(1, 4), STARTED, m.NodesChanged(), STOPPED, job_round(1, 7), STARTED],
        [*stop(MEMBERSHIP), *BEGUN],
        (1, 7, WorkerState.HEALTHY, None),
    ),
    "a membership change keeps the attempt": (
        [*JOB_UP, m.NodesChanged(), STOPPED, job_round(0), STARTED],
        [*stop(MEMBERSHIP), *BEGUN],
        (0, 1, WorkerState.HEALTHY, None),
    ),
    "no restart is left": (
        [*JOB_UP, *FAILED, JOB_FAILED],
        [*FAILS, m.Join(), *end(FAILURE)],
        (0, 0, WorkerState.FAILED, FAILURE),
    ),
    "the job fails while this node runs": (
        [*JOB_UP, JOB_FAILED, STOPPED],
        stop_and_end(FAILURE),
        (0, 0, WorkerState.FAILED, FAILURE),
    ),
    "the job fails while this node stops": (
        [*JOB_UP, m.NodesChanged(), JOB_FAILED, STOPPED],
        [*stop(MEMBERSHIP), *end(FAILURE)],
        (0, 0, WorkerState.FAILED, FAILURE),
    ),
    "the job fails while this node waits": (
        [*JOB_UP, *DONE, JOB_FAILED, STOPPED],
        [*WAIT, *stop_and_end(FAILURE)],
        (0, 0, WorkerState.FAILED, FAILURE),
    ),
    "the job succeeds": (
        [*JOB_UP, *DONE, JOB_SUCCEEDED],
        [*WAIT, m.Finish(SUCCESS)],
        (0, 0, WorkerState.SUCCEEDED, SUCCESS),
    ),
    "the job succeeds without this node": (
        [*JOB_UP, JOB_SUCCEEDED, STOPPED],
        stop_and_end(CLOSED),
        (0, 0, WorkerState.STOPPED, CLOSED),
    ),
    "the job had succeeded before this node came": (
        [m.Begin(), JOB_SUCCEEDED],
        end(CLOSED),
        (0, -1, WorkerState.INIT, CLOSED),
    ),
    "a newcomer is seen just before the job succeeds": (
        [*JOB_UP, *DONE, m.NodesChanged(), STOPPED, JOB_SUCCEEDED],
        [*WAIT, *stop(MEMBERSHIP), m.Join(), *end(SUCCESS)],
        (0, 0, WorkerState.SUCCEEDED, SUCCESS),
    ),
    "an earlier round's success does not count": (
        [*JOB_UP, *DONE, m.PeersFailed(), STOPPED, *JOB_AGAIN, JOB_SUCCEEDED, STOPPED],
        [*WAIT, *stop(AFTER_FAILURE), *BEGUN, *stop_and_end(CLOSED)],
        (1, 1, WorkerState.STOPPED, CLOSED),
    ),
    "the job is closed while this node waits": (
        [*JOB_UP, *DONE, JOB_CLOSED, STOPPED],
        [*WAIT, *stop_and_end(CLOSED)],
        (0, 0, WorkerState.SUCCEEDED, CLOSED),
    ),
    "the others take too long": (
        [*JOB_UP, *DONE, m.PeersFinished()],
        [*WAIT, m.Finish(SUCCESS)],
        (0, 0, WorkerState.SUCCEEDED, SUCCESS),
    ),
    "unreachable while running": (
        [*JOB_UP, LOST_PEERS, STOPPED],
        stop_and_end(ERROR),
        (0, 0, WorkerState.STOPPED, ERROR),
    ),
    "unreachable while stopping for another round": (
        [*JOB_UP, m.PeersFailed(), LOST_PEERS, STOPPED],
        [*stop(AFTER_FAILURE), *end(ERROR)],
        (0, 0, WorkerState.STOPPED, ERROR),
    ),
    "unreachable after a stop signal: the signal is the cause": (
        [*JOB_UP, TERM, LOST_PEERS, JOB_FAILED, STOPPED],
        stop_and_end(SIGNALLED),
        (0, 0, WorkerState.STOPPED, SIGNALLED),
    ),
    "unreachable while it is cleared up": (
        [*JOB_CLEARS, LOST_PEERS, STOPPED],
        [m.ClearUp(), *end(ERROR)],
        (0, 0, WorkerState.SUCCEEDED, ERROR),
    ),
    "workers of another node fail while it is cleared up": (
        [*JOB_CLEARS, m.PeersFailed(), STOPPED, *JOB_AGAIN],
        [m.ClearUp(), m.ReportDecision(AFTER_FAILURE), *BEGUN],
        (1, 1, WorkerState.HEALTHY, None),
    ),
    "the job fails while it is cleared up": (
        [*JOB_CLEARS, JOB_FAILED, STOPPED],
        [m.ClearUp(), *end(FAILURE)],
        (0, 0, WorkerState.FAILED, FAILURE),
    ),
    **{
        f"a stop while it is cleared up, {then}": (
            [*JOB_CLEARS, TERM, *events, STOPPED],
            [m.ClearUp(), m.ReportDecision(SUCCESS), m.WaitForPeers(), m.Finish(SUCCESS)],
            (0, 0, WorkerState.SUCCEEDED, SUCCESS),
        )
        for then, events in {
            "and the success is reported": [],
            "and then a node comes: it ends with its success": [m.NodesChanged()],
            "and then workers of another fail: it ends with its success": [m.PeersFailed()],
            "and then the others are lost: it ends with its success": [LOST_PEERS],
        }.items()
    },
    "the agent itself fails: that is reported, and the stop is like any other": (
        [*JOB_UP, m.AgentFailed(), INTERRUPT, STOPPED],
        [REPORT_ERROR, m.StopWorkers(), m.Escalate(), m.Finish(ERROR)],
        (0, 0, WorkerState.FAILED, ERROR),
    ),
    "unreachable while waiting": (
        [*JOB_UP, *DONE, LOST_PEERS, STOPPED],
        [*WAIT, *stop_and_end(ERROR)],
        (0, 0, WorkerState.SUCCEEDED, ERROR),
    ),
    "workers cannot be started: that is reported": (
        [m.Begin(), job_round(), m.StartFailed(), STOPPED],
        [REPORT_ERROR, m.StopWorkers(), m.Finish(ERROR)],
        (0, 0, WorkerState.FAILED, ERROR),
    ),
    "workers cannot be started again: the failure is the cause": (
        [*JOB_UP, *FAILED, job_round(1), m.StartFailed(), STOPPED],
        [*FAILS, *BEGUN, REPORT_ERROR, m.StopWorkers(), m.Finish(FAILURE)],
        (1, 1, WorkerState.FAILED, FAILURE),
    ),
    "workers cannot be started in a round that follows no failure": (
        [*JOB_UP, *FAILED, *JOB_AGAIN, m.NodesChanged(), STOPPED, job_round(1), m.StartFailed()],
        [*FAILS, *BEGUN, *stop(MEMBERSHIP), *BEGUN, REPORT_ERROR, m.StopWorkers()],
        (1, 2, WorkerState.FAILED, ERROR),
    ),
    "stop during a restart": (
        [*JOB_UP, m.WorkFailed(), TERM, STOPPED],
        [*FAILS, *end(SIGNALLED)],
        (0, 0, WorkerState.STOPPED, SIGNALLED),
    ),
    "stop after the last failure: the failure is the cause": (
        [*JOB_UP, m.WorkFailed(), JOB_FAILED, TERM, STOPPED],
        [*FAILS, *end(FAILURE)],
        (0, 0, WorkerState.FAILED, FAILURE),
    ),
    "closed while running": (
        [*JOB_UP, JOB_CLOSED, STOPPED],
        stop_and_end(CLOSED),
        (0, 0, WorkerState.STOPPED, CLOSED),
    ),
    "closed during a restart": (
        [*JOB_UP, m.WorkFailed(), JOB_CLOSED, STOPPED],
        [*FAILS, *end(CLOSED)],
        (0, 0, WorkerState.STOPPED, CLOSED),
    ),
    "the job succeeds while it is cleared up": (
        [*JOB_CLEARS, JOB_SUCCEEDED, STOPPED],
        [m.ClearUp(), m.WaitForPeers(), m.Finish(SUCCESS)],
        (0, 0, WorkerState.SUCCEEDED, SUCCESS),
    ),
    "a worker cannot be ended: no second generation": (
        [*JOB_UP, m.WorkFailed(), m.StopFailed()],
        [*FAILS, m.Finish(ERROR)],
        (0, 0, WorkerState.UNHEALTHY, ERROR),
    ),
}


def check(events, actions, outcome):
    state, done = play(events)
    begun = BEGUN if outcome[1] >= 0 else BEGUN[:1]  # without a round no worker starts
    assert done == [*(begun if events[0] == m.Begin() else []), *actions]
    assert (state.attempt, state.round, state.workers, state.then) == outcome


@pytest.mark.parametrize("name", HISTORIES)
def test_history(name):
    check(*HISTORIES[name])


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
    "Ctrl-\\ twice": (["QUIT 0", "QUIT 0.4"], [0.4]),
    "Ctrl-C, then Ctrl-\\": (["INT 0", "QUIT 0.4"], [0.4]),
    "Ctrl-C that a wrapper forwards": (["INT 0", "INT 0.003", "INT 0.01", "INT 0.19"], []),
    "Ctrl-C that a wrapper forwards, twice": (["INT 0", "INT 0.01", "INT 0.4"], [0.4]),
    "Ctrl-\\ that a wrapper forwards": (["QUIT 0", "QUIT 0.003", "QUIT 0.19"], []),
    "Ctrl-\\ that a wrapper forwards as SIGINT": (["QUIT 0", "INT 0.01"], []),
    "a supervisor: SIGTERM, SIGINT": (["TERM 0", "INT 0.01"], []),
    "kill, then Ctrl-C": (["TERM 0", "INT 0.5"], [0.5]),
    "kill, and again for want of patience": (["TERM 0", "TERM 2.1"], [2.1]),
    "kill, again and again": (["TERM 0", "TERM 1", "TERM 1.9", "TERM 3"], [3]),
    "Ctrl-C, then kill": (["INT 0", "TERM 0.5", "TERM 2.5"], [2.5]),
    "Ctrl-C after a failure": (["failure", "INT 0.5"], [0.5]),
    "Ctrl-\\ after a failure": (["failure", "QUIT 0.5"], [0.5]),
    "kill after a failure": (["failure", "TERM 0.5"], []),
    "kill twice after a failure": (["failure", "TERM 5", "TERM 6.5", "TERM 7.5"], [7.5]),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_which_signals_skip_the_grace(name):
    sequence, expected = SEQUENCES[name]
    state, _ = play(UP)
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

ASK_STOP = m.Requested(RequestKind.STOP, "no progress", "the watch")
ASK_RESTART = m.Requested(RequestKind.RESTART, "no progress", "the watch")
ASK_LEAVE = m.Requested(RequestKind.LEAVE, "no progress", "the watch")
REQUEST = m.RestartReason.REQUEST

# name: (events, what follows from a request for an end, and from one for a restart)
PHASES = {
    "before it has begun": ([], end(SIGNALLED), []),
    "while the nodes meet": ([m.Begin()], end(SIGNALLED), []),
    "while the nodes meet after a failure": (
        [*UP, *FAILED],
        end(SIGNALLED),
        [m.SkipDelay(ASK_RESTART)],
    ),
    "while workers start": (UP[:2], stop(SIGNALLED), stop(REQUEST)),
    "while they run": (UP, stop(SIGNALLED), stop(REQUEST)),
    "while they stop for another round": (
        [*UP, m.NodesChanged()],
        [m.ReportDecision(SIGNALLED)],
        [],
    ),
    "while they stop for a restart": ([*UP, ASK_RESTART], [m.ReportDecision(SIGNALLED)], []),
    "while they stop for the end": ([*UP, TERM], [], []),
    "while what they left behind is ended": (
        [*UP, m.WorkSucceeded()],
        [m.ReportDecision(SUCCESS)],
        [m.ReportDecision(REQUEST)],
    ),
    "while workers of other nodes run": ([*UP, *DONE], end(SUCCESS), stop(REQUEST)),
    "after the end": ([*UP, *DONE, m.PeersFinished()], [], []),
}


@pytest.mark.parametrize("name", PHASES)
def test_what_a_request_does(name):
    events, end, restart = PHASES[name]
    state, _ = play(events)
    for request in (ASK_STOP, ASK_LEAVE):
        after, actions = step(state, request)
        assert [*actions] == end
        if not actions and name != "while they stop for the end":
            assert after == state
    after, actions = step(state, ASK_RESTART)
    assert [*actions] == restart
    if m.ReportDecision(REQUEST) in actions:
        assert after.request is ASK_RESTART
    else:
        assert after == state


def test_a_requested_restart_is_another_round_and_no_attempt():
    again = [ASK_RESTART, STOPPED, m.RoundFormed(), STARTED]
    state, actions = play([*UP, *again, *again])
    assert (state.attempt, state.round, state.workers) == (0, 2, WorkerState.HEALTHY)
    assert not state.is_restart  # a failed start is not the end of a failure
    assert state.request is None
    assert actions.count(m.StartWorkers()) == 3


def test_a_failed_start_after_a_requested_restart_is_an_error():
    state, _ = play([*UP, ASK_RESTART, STOPPED, m.RoundFormed(), m.StartFailed()])
    assert step(state, STOPPED)[1] == (m.Finish(ERROR),)


def test_the_first_one_to_ask_for_the_end_is_its_cause():
    state, _ = play([*UP, ASK_RESTART, ASK_LEAVE, ASK_STOP, TERM])
    assert state.request is ASK_LEAVE
    state, _ = play([*UP, TERM, ASK_STOP])
    assert state.request is None
    assert state.is_asked_to_end


@pytest.mark.parametrize("request_", [ASK_STOP, ASK_LEAVE])
def test_a_node_that_ends_the_job_after_its_success_has_succeeded(request_):
    ended = JOB_CLOSED
    state, actions = play([*UP, m.WorkSucceeded(), request_, ended, STOPPED])
    assert actions[-1] == m.Finish(SUCCESS)
    assert state.workers is WorkerState.SUCCEEDED


def test_ctrl_c_after_a_request_skips_the_grace():
    state, _ = play([*UP, ASK_STOP])
    assert m.Escalate() in step(state, INTERRUPT)[1]
    assert m.Escalate() not in step(state, TERM)[1]


# --- a stop after an exception of a worker that has not exited ------------------------------------


HELD = m.StopAfterFailure(m.StopRequested(signal.SIGINT, at=1.0))
FORWARDED = m.StopRequested(signal.SIGINT, at=1.1)  # by a wrapper that has got the same key
SECOND = m.StopRequested(signal.SIGINT, at=3.0)
ENDED_ELSEWHERE = m.Requested(RequestKind.STOP, "enough", "", "node-b")

# phase: the events from the stop on that lead to it
HELD_IN = {
    m.Phase.STOPPING: [],
    m.Phase.CHECKING: [STOPPED],
    m.Phase.JOINING: [STOPPED, m.NodeHealthy()],
}
# What ends the wait for the decision of the job: (events, outcome, or None if the phase has no
# such event), by phase.
ENDS_OF_WAIT = {
    "the job has failed": (JOB_FAILED, FAILURE, FAILURE, FAILURE),
    "the job has ended without this node": (JOB_CLOSED, CLOSED, CLOSED, CLOSED),
    "its end is requested elsewhere": (ENDED_ELSEWHERE, SIGNALLED, SIGNALLED, SIGNALLED),
    "the job does not decide in time": (m.DecisionOverdue(), SIGNALLED, SIGNALLED, SIGNALLED),
    "the job continues": (m.RoundFormed(attempt=1), None, None, SIGNALLED),
    "the round fails": (m.RoundFailed(), None, None, ERROR),
    "the store is lost": (LOST_PEERS, ERROR, ERROR, None),
    "this node is unhealthy": (m.NodeUnhealthy(), None, ERROR, None),
    "a worker survives": (m.StopFailed(), ERROR, None, None),
}
WAITS = [
    pytest.param(phase, event, outcome, id=f"{name} while {phase.value}")
    for name, (event, *outcomes) in ENDS_OF_WAIT.items()
    for phase, outcome in zip(HELD_IN, outcomes, strict=True)
    if outcome is not None
]


def play_held(phase, *events):
    """A worker raises and does not exit; then Ctrl-C. Return the state and the actions after it."""
    state = m.State(has_checks=True)
    for event in [m.Begin(), m.NodeHealthy(), *UP[1:], m.WorkFailed()]:
        state, _ = step(state, event)
    done = []
    for event in [HELD, *HELD_IN[phase], *events]:
        state, actions = step(state, event)
        done.extend(actions)
        if state.phase is m.Phase.STOPPING and state.then in (SIGNALLED, FAILURE, CLOSED, ERROR):
            state, actions = step(state, STOPPED)
            done.extend(actions)
    return state, done


@pytest.mark.parametrize("more", [[], [FORWARDED], [TERM]], ids=["", "forwarded", "SIGTERM"])
@pytest.mark.parametrize(("phase", "event", "outcome"), WAITS)
def test_a_stop_after_an_exception_is_never_lost(phase, event, outcome, more):
    state, actions = play_held(phase, *more)
    assert (state.phase, state.then) == (phase, AFTER_FAILURE)
    assert state.is_asked_to_end
    state, actions = play_held(phase, *more, event)
    assert actions[-1] == m.Finish(outcome)
    assert (state.asked_by, state.asked_at) == (signal.SIGINT, 1.0)
    assert m.StartWorkers() not in actions
    assert m.Escalate() not in actions


@pytest.mark.parametrize(("phase", "event", "outcome"), WAITS)
def test_a_second_key_skips_the_grace_or_ends_the_wait(phase, event, outcome):
    state, actions = play_held(phase, SECOND, event)
    is_stopping = phase is m.Phase.STOPPING
    assert actions[-1] == m.Finish(outcome if is_stopping else SIGNALLED)
    assert actions.count(m.Escalate()) == is_stopping
    assert (state.asked_by, state.asked_at) == (signal.SIGINT, 1.0)


def test_a_stop_after_an_exception_does_not_wait_for_a_job_that_may_restart():
    state = m.State(max_restarts=1)
    for event in [*UP, m.WorkFailed()]:
        state, _ = step(state, event)
    state, actions = step(state, HELD)
    assert actions == (m.ReportDecision(SIGNALLED),)
    assert step(state, STOPPED)[1] == (m.Finish(SIGNALLED),)


@pytest.mark.parametrize("held", [m.StopAfterFailure(ASK_STOP), m.StopAfterFailure(ASK_LEAVE)])
def test_a_request_after_an_exception_is_recorded(held):
    state, actions = play([*UP, m.WorkFailed(), held, STOPPED, JOB_FAILED])
    assert actions[-1] == m.Finish(FAILURE)
    assert state.request is held.stop


def test_a_stop_after_an_error_of_the_agent_leaves_workers_their_grace():
    state, actions = play([*UP, m.AgentFailed(), HELD, FORWARDED])
    assert state.asked_by is signal.SIGINT
    assert m.Escalate() not in actions
    assert step(state, SECOND)[1] == (m.Escalate(),)


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
    TERM,
    INTERRUPT,
    ASK_STOP,
    ASK_RESTART,
    ASK_LEAVE,
    HELD,
    m.DecisionOverdue(),
    STOPPED,
    m.StopFailed(),
    m.PeersFinished(),
    m.PeersFailed(),
    m.PeersUnreachable(),
    JOB_SUCCEEDED,
    JOB_FAILED,
    JOB_CLOSED,
    m.NodeHealthy(),
    m.NodeUnhealthy(),
]
STOPS = (m.Phase.STOPPING, m.Phase.CLEARING)
histories = st.lists(st.sampled_from(EVENTS), max_size=40)


@given(histories, st.booleans())
def test_every_end_reports_what_the_workers_did(events, has_checks):
    """Success needs workers that succeeded in the last round; no failure is reported twice."""
    state = m.State(has_checks=has_checks)
    reports = 0
    succeeded = False
    for event in [m.Begin(), m.NodeHealthy(), *UP[1:], *events]:
        before = state
        state, actions = step(state, event)
        if isinstance(event, m.RoundFormed) and before.phase is m.Phase.JOINING:
            reports, succeeded = 0, False
        if isinstance(event, m.WorkSucceeded) and before.phase is m.Phase.RUNNING:
            succeeded = True
        reports += sum(isinstance(action, m.ReportFailure) for action in actions)
        assert reports <= 1
        if m.Finish(SUCCESS) in actions:
            assert succeeded
            assert state.workers is WorkerState.SUCCEEDED
        if m.Finish(FAILURE) in actions:
            assert state.workers is WorkerState.FAILED


@given(histories, st.booleans())
def test_rounds_never_count_down(events, has_checks):
    state = m.State(has_checks=has_checks)
    for event in events:
        before = state
        state, actions = step(state, event)
        assert state.round - before.round in (0, 1)
        assert (state.phase is m.Phase.DONE) == isinstance(state.then, m.Outcome) or (
            state.phase in (m.Phase.STOPPING, m.Phase.CLEARING)
        )
        finishes = [action for action in actions if isinstance(action, m.Finish)]
        assert bool(finishes) == (before.phase is not m.Phase.DONE and state.phase is m.Phase.DONE)
        if finishes:
            assert finishes == [actions[-1]]
            assert finishes[0].outcome is state.then


@given(histories)
def test_no_workers_are_started_over_living_ones(events):
    """Between two starts there is always a completed stop."""
    state = m.State()
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
            if isinstance(action, m.Finish) and action.outcome is not ERROR:
                assert not alive or action.outcome is SUCCESS


class Workers:
    """Answers actions the way a real world would, so that every run comes to an end."""

    def answer(self, action):
        return {
            m.Join: m.RoundFormed(),
            m.StartWorkers: STARTED,
            m.StopWorkers: STOPPED,
            m.ClearUp: STOPPED,
            m.WaitForPeers: m.PeersFinished(),
        }.get(type(action))


@given(st.lists(st.sampled_from([m.WorkFailed(), m.NodesChanged()]), max_size=10))
def test_every_run_ends_once_the_world_lets_it(disturbances):
    """Whatever disturbs it, an agent whose workers succeed at last has succeeded or failed."""
    state, actions = step(m.State(), m.Begin())
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
    assert state.then in (SUCCESS, FAILURE)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"then": m.RestartReason.FAILURE}, "failure"),
        ({"then": m.Outcome.FAILED}, "failure"),
        ({"then": m.RestartReason.MEMBERSHIP}, "membership"),
        ({"then": m.RestartReason.REQUEST}, "request"),
        ({"then": m.Outcome.SIGNALLED, "asked_by": signal.SIGTERM}, "request"),
        ({"then": m.RestartReason.FAILURE, "asked_by": signal.SIGINT}, "request"),
        ({"then": m.Outcome.CLOSED}, "end"),
        ({"then": m.Outcome.ERROR}, "end"),
    ],
)
def test_why_workers_are_stopped(changes, cause):
    assert m.State(**changes).stop_cause == cause
