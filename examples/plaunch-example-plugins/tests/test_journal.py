from __future__ import annotations

import pytest
from plaunch.agent import GroupInfo, RunResult, WorkerExit, WorkerInfo, WorkerState
from plaunch_example_plugins.journal import Journal

WORKERS = tuple(WorkerInfo(rank, rank, rank, 2, 2) for rank in range(2))


def group(attempt=0):
    return GroupInfo(
        run_id="job",
        role="default",
        state=WorkerState.HEALTHY,
        attempt=attempt,
        round=attempt,
        max_restarts=3,
        group_rank=0,
        group_world_size=1,
        master_addr="127.0.0.1",
        master_port=29500,
        workers=WORKERS,
    )


def test_workers_get_the_first_failure_of_the_previous_attempt(monkeypatch):
    monkeypatch.delenv("JOURNAL", raising=False)
    journal = Journal()
    assert journal.plaunch_worker_env() == {"LAST_FAILURE": ""}
    journal.plaunch_workers_started(group())
    journal.plaunch_worker_exited(WorkerExit(WORKERS[1], -9, stopped=False))
    journal.plaunch_worker_exited(WorkerExit(WORKERS[0], 1, stopped=False))
    assert journal.plaunch_worker_env() == {"LAST_FAILURE": "rank 1: SIGKILL"}
    journal.plaunch_workers_started(group(attempt=1))
    journal.plaunch_worker_exited(WorkerExit(WORKERS[0], 3, stopped=False))
    assert journal.plaunch_worker_env() == {"LAST_FAILURE": "rank 0: exit code 3"}


@pytest.mark.parametrize(("exitcode", "stopped"), [(0, False), (-15, True)])
def test_success_and_a_stopped_worker_are_not_failures(exitcode, stopped):
    journal = Journal()
    journal.plaunch_worker_exited(WorkerExit(WORKERS[0], exitcode, stopped=stopped))
    assert journal.plaunch_worker_env() == {"LAST_FAILURE": ""}


def test_the_journal_has_starts_restarts_and_the_end(tmp_path, monkeypatch):
    path = tmp_path / "journal.txt"
    monkeypatch.setenv("JOURNAL", str(path))
    journal = Journal()
    journal.plaunch_workers_started(group())
    journal.plaunch_worker_exited(WorkerExit(WORKERS[1], -9, stopped=False))
    journal.plaunch_workers_started(group(attempt=1))
    journal.plaunch_agent_finished(group(attempt=1), RunResult(WorkerState.SUCCEEDED))
    stories = [line.split(" ", 1)[1] for line in path.read_text().splitlines()]
    assert stories == [
        "job attempt 0, round 0: ranks 0, 1",
        "job attempt 1, round 1: ranks 0, 1 after rank 1: SIGKILL",
        "job finished: succeeded",
    ]


def test_a_stopped_job_is_recorded_as_stopped(tmp_path, monkeypatch):
    path = tmp_path / "journal.txt"
    monkeypatch.setenv("JOURNAL", str(path))
    Journal().plaunch_agent_finished(group(), None)
    assert path.read_text().endswith(" job finished: stopped\n")
