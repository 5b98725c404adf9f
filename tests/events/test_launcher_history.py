"""The history of a launcher, folded from its events."""

from __future__ import annotations

import pytest
from plaunch_events import LauncherHistory

from helpers.event_streams import Stream


@pytest.fixture
def history():
    return LauncherHistory(max_runs=3)


@pytest.fixture
def stream(history):
    return Stream(history.note)


def test_a_round_has_the_workers_and_their_states(history, stream):
    stream.begin()
    stream.form(10)
    assert [worker.state for worker in history.round.workers.values()] == ["running"] * 2
    stream.fail(20)
    workers = history.round.workers
    assert [workers[rank].state for rank in range(2)] == ["stopped", "failed"]
    assert (workers[1].began, workers[1].ended, workers[1].exit_code) == (12.0, 20.0, -9)
    assert (workers[1].changed, workers[1].signal_name) == (1020.0, "SIGKILL")
    stream.form(30, attempt=1, round=1)
    assert [worker.pid for worker in history.round.workers.values()] == [100, 101]


def test_the_first_failure_comes_first_and_outlives_the_round(history, stream):
    stream.begin()
    stream.form(10)
    stream.tell(20, "failure", global_rank=3, is_first=False)
    stream.tell(21, "failure", global_rank=1, is_first=True)
    stream.tell(22, "failure", global_rank=2, is_first=False)
    assert [*history.round.failures] == [1, 3, 2]
    failed = history.round
    stream.form(30, attempt=1, round=1)
    assert history.round.failures == {}
    assert history.failed_round is failed


def test_attempts_that_start_workers_again_are_counted(history, stream):
    stream.begin()
    counts = []
    for at, attempt in enumerate((0, 0, 1, 1, 1)):
        stream.form(10 * at, attempt=attempt, round=at)
        counts.append((history.attempt, history.repeat))
    assert counts == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]


def test_only_the_last_runs_are_kept(history, stream):
    stream.begin()
    stream.form(10)
    stream.form(20, round=1)
    assert [run.pid for run in history.runs] == [1, 100, 101]


def test_the_exit_of_an_unknown_process_is_ignored(history, stream):
    stream.begin()
    stream.form(10)
    stream.tell(20, "worker.exited", local_rank=0, worker_pid=77, exit_code=1)
    stream.tell(21, "worker.exited", local_rank=9, worker_pid=1, exit_code=1)
    assert [worker.state for worker in history.round.workers.values()] == ["running"] * 2


def test_the_end_is_a_phase(history, stream):
    stream.begin()
    assert (history.phase, history.phase_began.name) == ("rendezvous", "plaunch.rendezvous.begun")
    end = stream.tell(30, "launcher.finished", outcome="closed", exit_code=0)
    assert (history.phase, history.end, history.last) == ("finished", end, end)
    assert history.first.name == "plaunch.launcher.started"
