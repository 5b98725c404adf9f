"""What the agent says when it changes its course."""

from __future__ import annotations

import signal

import pytest
from plaunch.agent import RunResult, WorkerState
from plaunch.agent.messages import describe_round, describe_turn
from plaunch.agent.states import Again, Outcome, Phase, State
from plaunch.process.failures.failure import ProcessFailure
from plaunch.rendezvous import JobRound, RendezvousInfo, RendezvousStoreInfo, WorldRanks


def failed(*exitcodes, reply_of=None):
    failures = {}
    for rank, exitcode in enumerate(exitcodes):
        failures[rank] = ProcessFailure(rank, 100 + rank, exitcode, "")
        failures[rank].timestamp = 10.0 + rank / 10
    if reply_of is not None:
        failures[reply_of].message = "RuntimeError: closed by peer"
        failures[reply_of].error_file_data = {"message": failures[reply_of].message}
    return RunResult(WorkerState.FAILED, failures=failures)


def say(then, result=None, reason="", *, decision="", pause=0.0):
    state = State(max_restarts=3, attempt=1, pause=pause)
    return describe_turn(then, state, result or failed(), reason, decision)


def test_a_success_that_a_signal_ends_says_so_and_one_that_the_job_ends_does_not():
    asked = State(max_restarts=0, asked_by=signal.SIGTERM, has_succeeded=True)
    text = describe_turn(Outcome.SUCCEEDED, asked, failed(), "")
    assert text.startswith("SIGTERM received; the workers of this node have succeeded")
    joining = State(max_restarts=0, is_job_wide=True, has_succeeded=True)
    text = describe_turn(Outcome.SUCCEEDED, joining, failed(), "all are done")
    assert "SIGTERM" not in text
    assert "all are done" in text


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        ("", "restart 2 of 3, after 1.22 s"),
        ("restart 2 of 3, after 1.22 s", "restart 2 of 3, after 1.22 s"),
        ("a device is broken", "restart (a device is broken)"),
    ],
)
def test_a_delay_is_named_once(decision, text):
    said = say(Again.RESTART, failed(17), decision=decision, pause=1.2214)
    assert said == f"rank 0 (pid 100) failed with exit code 17; {text}"


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (failed(17), "rank 0 (pid 100) failed with exit code 17"),
        (failed(-9), "rank 0 (pid 100) was killed by SIGKILL"),
        (failed(-45), "rank 0 (pid 100) was killed by signal 45"),
        (failed(1, 1, 1), "rank 0 (pid 100) failed with exit code 1 (and 2 more)"),
        # It had reported its exception, and was then ended while it was still about to exit.
        (failed(-15, reply_of=0), "rank 0 (pid 100) failed: RuntimeError: closed by peer"),
        # Rank 0 only said that its peer was gone.
        (failed(-15, -9, reply_of=0), "rank 1 (pid 101) was killed by SIGKILL (and 1 more)"),
        (failed(), "the workers failed"),
    ],
)
def test_a_restart_names_the_first_failure_and_the_budget(result, text):
    assert say(Again.RESTART, result) == f"{text}; restart 2 of 3"


def test_a_restart_names_the_users_line_and_who_sent_a_signal():
    result = failed(1)
    result.failures[0].last_lines = [
        "Traceback (most recent call last):",
        '  File "/home/me/train.py", line 39, in step',
        "ValueError: bad shape",
    ]
    text = "rank 0 (pid 100) failed: ValueError: bad shape (train.py:39); restart 2 of 3"
    assert say(Again.RESTART, result) == text
    result = failed(-10)
    result.failures[0].reason = "plaunchctl signal USR1 by uid 1000"
    assert say(Again.RESTART, result) == (
        "rank 0 (pid 100) was killed by SIGUSR1: plaunchctl signal USR1 by uid 1000; restart 2 of 3"
    )


def formed(attempt, reason):
    where = RendezvousStoreInfo("127.0.0.1", 29500)
    return JobRound(None, 0, 2, where, attempt=attempt, ranks=WorldRanks(0, 2, 0, 2), reason=reason)


@pytest.mark.parametrize(
    ("attempt", "reason", "then", "round_", "text"),
    [
        (2, "rank 3 failed; restart 2 of 3", Again.DECISION, 0, "rank 3 failed; restart 2 of 3"),
        (2, "", Again.DECISION, 0, "restart 2 of 3"),
        (2, "rank 3 failed; restart 2 of 3", Again.MEMBERSHIP, 0, "rank 3 failed; restart 2 of 3"),
        # Workers here had failed, but only because their peers were gone.
        (1, "node b was lost", Again.DECISION, 0, "node b was lost"),
        (1, "node b was lost", Again.MEMBERSHIP, 0, ""),  # was told as a change
        (2, "rank 3 failed; restart 2 of 3", None, -1, ""),  # before this node came
    ],
)
def test_a_round_of_a_job_is_explained_if_there_is_news(attempt, reason, then, round_, text):
    state = State(max_restarts=3, attempt=1, round=round_, is_job_wide=True, then=then)
    assert describe_round(formed(attempt, reason), state) == text


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ("rank 3 failed; all workers are stopped", "restart 2 of 3"),
        ("rank 3 failed (and 1 more); all workers are stopped", "restart 2 of 3"),
        ("rank 1 failed; all workers are stopped", "rank 3 failed; restart 2 of 3"),
        ("rank 1 lost a peer; all workers are stopped; rank 3 failed", "restart 2 of 3"),
    ],
)
def test_a_failure_that_was_told_is_not_told_with_the_decision(told, text):
    state = State(max_restarts=3, attempt=1, round=0, is_job_wide=True, then=Again.DECISION)
    assert describe_round(formed(2, "rank 3 failed; restart 2 of 3"), state, told) == text


def test_a_lost_node_that_was_named_while_this_one_waited_is_not_named_again():
    state = State(max_restarts=3, attempt=1, round=0, is_job_wide=True, then=Again.DECISION)
    lost = "node b (index 1) was lost: no heartbeat for 5.0 s"
    told = f"rank 0 lost a peer; all workers are stopped; {lost}"
    assert describe_round(formed(1, lost), state, told) == ""
    assert describe_round(formed(1, lost), state, "rank 0 lost a peer") == lost


def test_rounds_of_other_handlers_have_no_reason():
    info = RendezvousInfo(None, 0, 1, RendezvousStoreInfo("127.0.0.1", 29500))
    assert describe_round(info, State(max_restarts=3, round=0)) == ""


@pytest.mark.parametrize(
    ("then", "has_succeeded", "text"),
    [
        (Again.DECISION, False, "so; all workers are stopped"),
        (Again.DECISION, True, "so"),
        (Again.MEMBERSHIP, False, "so; all workers are stopped, and a new round begins"),
        (Again.MEMBERSHIP, True, "so; a new round begins"),
        (Outcome.ERROR, False, "so; all workers are stopped"),
        (Outcome.FAILED, False, "the job ended: so; all workers are stopped"),
        (Outcome.CLOSED, True, "the job ended: so"),
        (Outcome.SIGNALLED, False, "SIGTERM received; the workers are stopped"),
    ],
)
def test_turns_of_a_job(then, has_succeeded, text):
    state = State(max_restarts=3, is_job_wide=True, has_succeeded=has_succeeded, then=then)
    assert describe_turn(then, state, failed(), "so") == text


def test_the_end_of_a_failed_job_leaves_the_cause_to_the_report():
    state = State(max_restarts=3, is_job_wide=True, phase=Phase.DONE, then=Outcome.FAILED)
    assert describe_turn(Outcome.FAILED, state, failed(), "so") == ""


def test_a_signal_while_no_worker_runs_stops_none():
    state = State(max_restarts=0, phase=Phase.DONE, then=Outcome.SIGNALLED, asked_by=signal.SIGINT)
    text = describe_turn(Outcome.SIGNALLED, state, failed(), "")
    assert text == "SIGINT received; no worker is running"


def test_other_turns():
    assert say(Again.MEMBERSHIP) == "the nodes of the job have changed; a new round begins"
    assert say(Outcome.SIGNALLED) == "SIGTERM received; the workers are stopped"
    assert say(Outcome.CLOSED, reason="done") == "the rendezvous was closed: done"
