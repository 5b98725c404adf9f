"""The messages of an agent, and its output while it waits."""

from __future__ import annotations

import logging
import signal

import pytest
from plaunch.agent import RunResult, WorkerState
from plaunch.agent.messages import (
    StopReason,
    WaitReporter,
    describe_decision,
    describe_failures,
    describe_round,
    stop_reason_of,
)
from plaunch.agent.states import Outcome, Phase, RestartReason, State
from plaunch.errors import ExitCode, RendezvousTimeoutError
from plaunch.process.failure import ProcessFailure
from plaunch.rendezvous import JobRound, RendezvousStoreInfo, WorldRanks

from helpers.clock import Clock, utc  # noqa: F401 - a fixture
from helpers.faults import raising

pytestmark = pytest.mark.usefixtures("utc")


def failed(*exitcodes, reply_of=None, **more):
    failures = {}
    for rank, exitcode in enumerate(exitcodes):
        data = {"message": "RuntimeError: closed by peer"} if rank == reply_of else {}
        failures[rank] = ProcessFailure(
            rank, 100 + rank, exitcode, "", error_file_data=data, timestamp=10.0 + rank / 10, **more
        )
    return RunResult(WorkerState.FAILED, failures=failures)


def test_a_success_that_a_signal_ends_is_described_and_one_that_the_job_ends_is_not():
    asked = State(asked_by=signal.SIGTERM, has_succeeded=True)
    text = describe_decision(Outcome.SUCCEEDED, asked, StopReason())
    assert text.startswith("SIGTERM received; the workers of this node have succeeded")
    text = describe_decision(
        Outcome.SUCCEEDED, State(has_succeeded=True), StopReason.of("all are done")
    )
    assert "SIGTERM" not in text
    assert "all are done" in text


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (failed(17), "failed: exit code 17"),
        (failed(-9), "failed: killed by SIGKILL (signal 9)"),
        (failed(-45), "failed: killed by signal 45"),
        (failed(1, 1, 1), "failed: exit code 1 (and 2 more)"),
        # It had reported its exception, and was then ended while it was still about to exit.
        (failed(-15, reply_of=0), "failed: RuntimeError: closed by peer"),
    ],
)
def test_a_failure_is_described_by_its_first_worker(result, text):
    host = result.failures[0].host
    assert describe_failures(result) == f"rank 0 on {host} (pid 100) {text}"


def test_a_worker_that_only_lost_a_peer_is_not_the_first():
    assert describe_failures(failed(-15, -9, reply_of=0)).startswith("rank 1 ")
    assert describe_failures(failed()) == "the workers failed"


def test_a_failure_names_the_users_line_and_what_sent_a_signal():
    lines = [
        "Traceback (most recent call last):",
        '  File "/home/me/train.py", line 39, in step',
        "ValueError: bad shape",
    ]
    text = describe_failures(failed(1, last_lines=lines))
    assert text.endswith(" failed: ValueError: bad shape (train.py:39)")
    reason = "plaunchctl signal USR1 by uid 1000"
    assert reason in describe_failures(failed(-10, reason=reason))


FULL = ("disk full; free 3 GB", "restart 2 of 3")  # what happened, and what was decided


def formed(attempt, reason, decision=""):
    where = RendezvousStoreInfo("127.0.0.1", 29500)
    why = {"reason": reason, "decision": decision}
    return JobRound(None, 0, 2, where, attempt=attempt, ranks=WorldRanks(0, 2, 0, 2), **why)


@pytest.mark.parametrize(
    ("attempt", "why", "then", "round_", "text"),
    [
        (2, FULL, RestartReason.FAILURE, 0, "disk full; free 3 GB; restart 2 of 3"),
        (2, FULL, RestartReason.MEMBERSHIP, 0, "disk full; free 3 GB; restart 2 of 3"),
        (2, ("", ""), RestartReason.FAILURE, 0, "restart 2 of 3"),
        # Workers here had failed, but only because their peers were gone.
        (1, ("node b was lost", ""), RestartReason.FAILURE, 0, "node b was lost"),
        (1, ("node b was lost", ""), RestartReason.MEMBERSHIP, 0, ""),  # was logged as a change
        (2, FULL, None, -1, ""),  # before this node came
    ],
)
def test_a_round_of_a_job_is_explained_if_there_is_news(attempt, why, then, round_, text):
    state = State(max_restarts=3, attempt=1, round=round_, then=then)
    assert describe_round(formed(attempt, *why), state) == text


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (StopReason.of("disk full; free 3 GB"), "restart 2 of 3"),
        (StopReason.of("rank 1 lost a peer", "disk full; free 3 GB"), "restart 2 of 3"),
        (StopReason("waiting for the next round", has_next_round=True), "restart 2 of 3"),
        (StopReason.of("disk full"), "disk full; free 3 GB; restart 2 of 3"),
        (StopReason.of("disk full; free 3 GB; now"), "disk full; free 3 GB; restart 2 of 3"),
    ],
)
def test_a_failure_that_was_logged_is_not_repeated_with_the_decision(told, text):
    state = State(max_restarts=3, attempt=1, round=0, then=RestartReason.FAILURE)
    assert describe_round(formed(2, *FULL), state, told) == text


def test_a_failure_of_several_workers_is_recognized_in_the_words_of_the_job():
    result = failed(1, 1)
    reason = stop_reason_of(result)
    assert reason.text.endswith(" (and 1 more)")
    state = State(max_restarts=3, attempt=1, round=0, then=RestartReason.FAILURE)
    for cause in reason.facts:
        assert describe_round(formed(2, cause, "restart 2 of 3"), state, reason) == "restart 2 of 3"


def test_a_lost_node_that_was_named_while_this_one_waited_is_not_named_again():
    state = State(max_restarts=3, attempt=1, round=0, then=RestartReason.FAILURE)
    lost = "node b (index 1) was lost: no heartbeat for 5.0 s"
    told = StopReason.of("rank 0 lost a peer", lost)
    assert describe_round(formed(1, lost), state, told) == ""
    assert describe_round(formed(1, lost), state, StopReason.of("rank 0 lost a peer")) == lost


@pytest.mark.parametrize(
    ("then", "has_succeeded", "text"),
    [
        (RestartReason.FAILURE, False, "so; all workers are stopped"),
        (RestartReason.FAILURE, True, "so"),
        (RestartReason.MEMBERSHIP, False, "so; all workers are stopped, and a new round begins"),
        (RestartReason.MEMBERSHIP, True, "so; a new round begins"),
        (Outcome.ERROR, False, "so; all workers are stopped"),
        (Outcome.FAILED, False, "the job ended: so; all workers are stopped"),
        (Outcome.CLOSED, True, "the job ended: so"),
        (Outcome.SIGNALLED, False, "SIGTERM received; the workers are stopped"),
    ],
)
def test_decisions(then, has_succeeded, text):
    assert describe_decision(then, State(has_succeeded=has_succeeded), StopReason.of("so")) == text


def test_the_end_of_a_failed_job_leaves_the_cause_to_the_report():
    done = State(phase=Phase.DONE, then=Outcome.FAILED)
    assert describe_decision(Outcome.FAILED, done, StopReason.of("so")) == ""
    stopping = State(phase=Phase.STOPPING, then=Outcome.FAILED)
    failed = StopReason.of("disk full; free 3 GB")
    logged = StopReason("disk full; free 3 GB; all workers are stopped", failed.facts)
    assert describe_decision(Outcome.FAILED, stopping, failed, logged) == ""
    other = describe_decision(Outcome.FAILED, stopping, StopReason.of("disk full"), logged)
    assert other == "the job ended: disk full; all workers are stopped"


def test_a_signal_while_no_worker_runs_stops_none():
    state = State(phase=Phase.DONE, then=Outcome.SIGNALLED, asked_by=signal.SIGINT)
    text = describe_decision(Outcome.SIGNALLED, state, StopReason())
    assert text == "SIGINT received; no worker is running"


# --- output while a round is not complete, and its timeout ----------------------------------------


class Handler:
    words = "2 nodes; 1 came: a"

    def get_backend(self):
        return "other"

    def describe_wait(self):
        return self.words


@pytest.fixture
def clock():
    return Clock(1000.0)


def waiting(clock, **settings):
    made = WaitReporter(clock=clock, wall_clock=lambda: 3600.0, **settings)
    made.begin()
    return made


def test_a_backend_that_fails_to_describe_its_wait_does_not_end_the_job(clock, caplog):
    caplog.set_level(logging.INFO, "plaunch")
    handler = Handler()
    handler.describe_wait = raising(KeyError("nodes"))
    assert said(waiting(clock), clock, 4, handler) == [3]
    assert "the rendezvous, which cannot say for what (KeyError: 'nodes')" in caplog.text


def said(made, clock, seconds, handler=None):
    """The times at which something is said, looking whenever it asks to be."""
    until, times = clock.now + seconds, []
    while clock.now + made.pause() <= until:
        clock.now += made.pause()
        assert made.report(handler or Handler()) is None
        times.append(clock.now - 1000.0)
    clock.now = until
    return times


def test_plain_lines_become_rarer(clock, caplog):
    caplog.set_level(logging.INFO, "plaunch")
    made = waiting(clock)
    assert said(made, clock, 300.0) == [3.0, 9.0, 21.0, 45.0, 93.0, 153.0, 213.0, 273.0]
    assert caplog.messages[1] == (
        "waiting for 2 nodes; 1 came: a (since 01:00:00, for 9 s; Ctrl-C ends it)"
    )


def test_a_short_wait_is_not_worth_a_word(clock, caplog):
    caplog.set_level(logging.INFO, "plaunch")
    made = waiting(clock)
    assert said(made, clock, 2.9) == []
    made.end()
    made.begin()
    assert said(made, clock, 2.9) == []
    assert caplog.messages == []


def test_a_live_line_is_replaced_every_second_and_taken_away(clock, caplog):
    shown = []
    made = waiting(clock, show=lambda *line: shown.append(line))
    assert said(made, clock, 6.0) == [3.0, 4.0, 5.0, 6.0]
    made.end()
    text = "waiting for 2 nodes; 1 came: a"
    lines = [(text, f" ({seconds} s; Ctrl-C ends it)") for seconds in (3, 4, 5, 6)]
    assert shown == [*lines, ("", "")]
    assert caplog.messages == []


def test_an_early_report_logs_nothing(clock, caplog):
    caplog.set_level(logging.INFO, "plaunch")
    made = waiting(clock)
    for _ in range(5):
        assert made.report(Handler()) is None
    assert caplog.messages == []


def test_a_handler_of_torchrun_has_no_words(clock, caplog):
    caplog.set_level(logging.INFO, "plaunch")

    class Plain:
        def get_backend(self):
            return "bridged"

    said(waiting(clock), clock, 3.0, Plain())
    assert "waiting for the rendezvous backend 'bridged'" in caplog.text


def test_the_first_start_has_a_bound(clock):
    shown = []
    made = waiting(clock, start_timeout=5.0, show=lambda text, _: shown.append(text))
    assert said(made, clock, 4.9) == [3.0, 4.0]
    assert made.pause() == pytest.approx(0.1)
    clock.now += made.pause()
    error = made.report(Handler())
    assert isinstance(error, RendezvousTimeoutError)
    assert error.exit_code == ExitCode.RENDEZVOUS_TIMEOUT
    assert "within 5 s (--start-timeout); it was waiting for 2 nodes; 1 came: a" in str(error)
    assert shown[-1] == ""


def test_the_bound_counts_from_the_begin_of_the_launch(clock):
    made = waiting(clock, start_timeout=5.0)
    clock.now += 2.0
    made.begin()
    clock.now += 3.0
    assert made.report(Handler()) is not None


def test_a_later_round_may_take_longer(clock):
    made = waiting(clock, start_timeout=5.0)
    made.end()
    made.workers_started()
    made.begin()
    clock.now += 100.0
    assert made.report(Handler()) is None
