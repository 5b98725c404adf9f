"""What the agent says when it changes its course."""

from __future__ import annotations

import signal

import pytest
from plaunch.agent import RunResult, WorkerState
from plaunch.agent.machine import Again, Outcome, State
from plaunch.agent.narration import describe_turn
from plaunch.process.failures import ProcessFailure


def failed(*exitcodes, reply_of=None):
    failures = {}
    for rank, exitcode in enumerate(exitcodes):
        failures[rank] = ProcessFailure(rank, 100 + rank, exitcode, "")
        failures[rank].timestamp = 10.0 + rank / 10
    if reply_of is not None:
        failures[reply_of].error_file_data = {"message": "RuntimeError: closed by peer"}
    return RunResult(WorkerState.FAILED, failures=failures)


def say(then, result=None, reason=""):
    state = State(max_restarts=3, attempt=1)
    return describe_turn(then, state, result or failed(), signal.SIGTERM, reason)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (failed(17), "rank 0 (pid 100) failed with exit code 17"),
        (failed(-9), "rank 0 (pid 100) was killed by SIGKILL"),
        (failed(1, 1, 1), "rank 0 (pid 100) failed with exit code 1 (and 2 more)"),
        # It had reported its exception, and was then ended while it was still about to exit.
        (failed(-15, reply_of=0), "rank 0 (pid 100) raised an exception"),
        # Rank 0 only said that its peer was gone.
        (failed(-15, -9, reply_of=0), "rank 1 (pid 101) was killed by SIGKILL (and 1 more)"),
        (failed(), "the workers failed"),
    ],
)
def test_a_restart_names_the_first_failure_and_the_budget(result, text):
    assert say(Again.RESTART, result) == f"{text}; all workers are restarted (restart 2 of 3)"


def test_other_turns():
    assert say(Again.MEMBERSHIP) == "the nodes of the job have changed; a new round begins"
    assert say(Outcome.SIGNALLED) == "SIGTERM received; the workers are stopped"
    assert say(Outcome.CLOSED, reason="done") == "the rendezvous was closed: done"
