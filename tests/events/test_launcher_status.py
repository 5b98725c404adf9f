"""The status of a launcher, from its events."""

from __future__ import annotations

import json
import os
import pathlib
import re

import pytest
from plaunch.agent import Progress
from plaunch_events import PHASES, LauncherStatus, LaunchPhase, TimeAccount

from helpers.event_streams import Stream

DOCS = pathlib.Path(__file__).parents[2] / "docs"


@pytest.fixture
def status():
    return LauncherStatus("job", "trainer")


@pytest.fixture
def stream(status):
    return Stream(status.note)


def described_keys(status, **asked):
    described = status.describe(None, 0.0)
    return {key: described[key] for key in asked}


def check(status, **wanted):
    assert described_keys(status, **wanted) == wanted


def test_the_end_is_a_phase_of_its_own():
    assert PHASES == (*(phase.value for phase in LaunchPhase), "finished")


def test_before_the_first_event(status):
    check(
        status,
        schema=1,
        run_id="job",
        role="trainer",
        agent_pid=os.getpid(),
        state="INIT",
        phase="starting",
        round=None,
        attempt=0,
        ranks=None,
        world_size=None,
        workers=[],
        last_event=None,
        failure=None,
    )


def test_the_progress_of_workers(status, stream):
    stream.begin()
    stream.form(10)
    rank = status.describe(None, 0.0)["workers"][0]["global_rank"]
    progress = {rank: Progress(30, 100, 0.5)}
    first, *others = status.describe(None, 0.0, progress)["workers"]
    keys = ("step", "total_steps", "steps_per_second", "seconds_left")
    assert [first[key] for key in keys] == [30, 100, 0.5, 140.0]
    assert others
    assert not any(key in other for other in others for key in keys)
    first, *_ = status.describe(None, 0.0, {rank: Progress(30)})["workers"]
    assert [first[key] for key in keys] == [30, None, None, None]


def test_waiting_in_rendezvous(status, stream):
    stream.begin(at=4)
    check(
        status,
        phase="rendezvous",
        since=1004.0,
        round=None,
        group_rank=None,
        min_nodes=1,
        max_nodes=2,
        max_restarts=3,
        last_event={"name": "plaunch.rendezvous.begun", "timestamp": 1004.0},
    )
    assert status.describe("1 more node", 0.0)["waiting_for"] == "1 more node"


def test_waiting_for_a_delayed_restart(status, stream):
    stream.begin()
    stream.form(10)
    stream.fail(20)
    stream.tell(24, "restart.delayed", seconds=30.0)
    check(status, phase="pausing", since=1024.0)
    # Late events of the previous round do not change the phase.
    stream.end(25, 0, -15, stopped=True)
    check(status, phase="pausing")
    assert status.history.account.seconds_until(54.0)["waiting"] == 10 + 30
    stream.tell(54, "rendezvous.begun")
    check(status, phase="rendezvous")


def test_training(status, stream):
    stream.begin()
    stream.form(10)
    check(
        status,
        phase="training",
        since=1012.0,
        state="HEALTHY",
        round=0,
        ranks="0-1",
        world_size=4,
        group_world_size=2,
        group_rank=0,
        master_port=29500,
    )
    assert status.describe(None, 0.0)["workers"][1] == {
        "local_rank": 1,
        "global_rank": 1,
        "pid": 1,
        "state": "running",
        "exit_code": None,
        "since": 1012.0,
    }


def test_a_failure_a_restart_and_the_end(status, stream):
    stream.begin()
    stream.form(10)
    stream.fail(20)
    check(status, phase="stopping", since=1020.0, state="STOPPED")
    check(status, stop={"step": "signalled", "signal_name": "SIGTERM", "seconds": 0.0})
    ends = [
        (worker["state"], worker["exit_code"]) for worker in status.describe(None, 0)["workers"]
    ]
    assert ends == [("stopped", -15), ("failed", -9)]
    first = status.describe(None, 0)["failure"]
    assert (first["global_rank"], first["signal_name"], first["attempt"]) == (1, "SIGKILL", 0)
    stream.tell(24, "rendezvous.begun")
    assert [worker["state"] for worker in status.describe(None, 0)["workers"]] == [
        "stopped",
        "failed",
    ]
    stream.form(30, attempt=1, round=1)
    check(status, phase="training", attempt=1, round=1, failure=first, stop=None)
    assert [worker["pid"] for worker in status.describe(None, 0)["workers"]] == [100, 101]
    for rank in range(2):
        stream.end(40, rank, 0)
    stream.tell(41, "state.changed", old="HEALTHY", new="SUCCEEDED")
    check(status, phase="lingering", since=1041.0)
    stream.tell(50, "launcher.finished", outcome="succeeded", exit_code=0, reason="secret")
    check(status, phase="finished", since=1050.0, end={"outcome": "succeeded", "exit_code": 0})


def test_a_later_failure_is_not_the_first_one(status, stream):
    stream.begin()
    stream.form(1)
    stream.fail(5)
    stream.tell(6, "failure", global_rank=7, is_first=False)
    assert status.describe(None, 0)["failure"]["global_rank"] == 1
    stream.form(10, attempt=1, round=1)
    stream.tell(16, "failure", global_rank=7, is_first=False)
    assert status.describe(None, 0)["failure"]["global_rank"] == 7
    stream.tell(17, "failure", global_rank=3, is_first=True)
    assert status.describe(None, 0)["failure"]["global_rank"] == 3


def test_times_continue_between_events():
    account, status = TimeAccount(), LauncherStatus("job", "trainer")
    stream = Stream(account.note, status.note)
    stream.begin()
    stream.form(10)
    assert status.history.account.seconds_until(100.0) == {
        **account.seconds,
        "training": 88.0,
        "total": 100.0,
    }
    stream.fail(110)
    stream.tell(114, "rendezvous.begun")
    spent = status.history.account.seconds_until(120.0)
    assert spent["waiting"] == 16.0
    assert sum(seconds for name, seconds in spent.items() if name != "total") == spent["total"]
    stream.tell(130, "launcher.finished", outcome="failed", exit_code=1)
    assert status.history.account.seconds_until(1e9) == account.seconds


def test_every_key_is_documented(status, stream):
    lines = (DOCS / "metrics.md").read_text().partition("## /status")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", lines, re.MULTILINE)
    documented = {key for row in rows for key in re.findall("`([a-z_]+)`", row)}
    assert set(status.describe(None, 0.0)) == documented
    for phase in PHASES:
        assert f"`{phase}`" in lines


def test_it_is_json_and_has_no_secrets(status, stream):
    stream.begin()
    stream.form(10)
    stream.fail(20)
    stream.tell(30, "launcher.finished", outcome="failed", exit_code=137, reason="secret")
    text = json.dumps(status.describe("x", 1.0))
    assert "secret" not in text
    assert json.loads(text)["alive"] is False
