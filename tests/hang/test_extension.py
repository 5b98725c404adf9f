"""The watch of one node: what it looks at, says and asks for; with a clock and looks of a test."""

from __future__ import annotations

import logging
import re
import time

import pytest
from plaunch.agent import WorkerInfo, WorkerState
from plaunch.errors import UsageError
from plaunch.plugin import PluginContext
from plaunch.process import Held
from plaunch_hang import extension as module
from plaunch_hang.plugin import Hangs

from helpers.groups import make_group
from helpers.hangs import Node


@pytest.fixture
def make():
    nodes = []

    def call(**options):
        nodes.append(Node(**options))
        return nodes[-1]

    yield call
    for node in nodes:
        node.close()


LINES = ["1 rank: 5 load_batch (train.py:6)", "2 ranks: 4, 6 step (train.py:10)"]


def test_a_hang_is_told_with_all_places(make):
    node = make()
    node.look(30)
    assert node.control.said == ["no worker of the job has moved for 1m40s:", *LINES]
    assert not node.control.reported


def test_a_rank_that_has_ended_early_is_named(make):
    node = make()
    node.control.succeeded = {7: time.time() - 12}
    node.look(30)
    assert re.fullmatch(r"rank 7 had ended with exit code 0, 1\d s before", node.control.said[-1])


def test_whole_stacks_are_kept(make, tmp_path):
    node = make(log_dir=str(tmp_path))
    node.look(30)
    (folder,) = tmp_path.iterdir()
    assert node.control.said[-1] == f"whole stacks: {folder}"
    assert "no worker of the job" in (folder / "summary.txt").read_text()
    assert "load_batch (/home/me/train.py:6)" in (folder / "rank_5.txt").read_text()


def test_stacks_that_cannot_be_kept_are_said_all_the_same(make, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    node = make(log_dir=str(tmp_path / "file"))
    node.look(30)
    assert node.control.said[1:] == LINES
    assert "the stacks are kept in no file" in caplog.text


def test_a_worker_that_is_held_is_told_and_nothing_else_follows(make):
    node = make(action="stop")
    node.control.holds[5] = Held("suspended", time.time(), node.control.pids[5])
    node.look(42)
    title, *lines = node.control.said
    assert re.fullmatch(
        r"rank 5 on gpu-7 is suspended since [\d:]{8}; no time counts for "
        r"--hang-timeout meanwhile, and --on-hang=stop does not act:",
        title,
    )
    since = title.partition(" is ")[2].partition(";")[0]
    assert lines == [f"{LINES[0]}, {since}", LINES[1]]
    assert not node.control.reported
    node.control.holds.clear()
    node.look(30)
    assert len(node.control.reported) == 1


@pytest.mark.parametrize(("action", "is_final"), [("restart", False), ("stop", True)])
def test_a_hang_is_a_failure(make, action, is_final):
    node = make(action=action)
    node.look(30)
    text = f"no worker of the job has moved for 1m40s (--hang-timeout): {LINES[0]}\n{LINES[1]}"
    assert node.control.reported == [(5, text, is_final)]
    assert node.control.said == ([] if is_final else LINES[1:])


def test_stragglers_are_told(make):
    node = make()
    for number in range(21):
        node.looks.places[4] = number
        node.look()
    title = "ranks 5-6 have not moved for 1m40s, others have:"
    places = [LINES[0], "1 rank: 6 step (train.py:10)"]
    assert node.control.said == [title, *places]
    node.looks.places[5] = node.looks.places[4] = "x"
    node.look()
    assert node.control.said[3:] == ["rank 5 moves again"]
    node.looks.places[6] = node.looks.places[4] = "y"
    node.look()
    assert node.control.said[4:] == ["rank 6 moves again"]


@pytest.mark.parametrize("state", [WorkerState.INIT, WorkerState.STOPPED, WorkerState.SUCCEEDED])
def test_only_workers_that_are_at_work_are_looked_at(make, state):
    node = make()
    node.control.state = state
    node.look(30)
    assert node.looks.seen[-1] == ({}, {}, {})
    assert not node.control.said


def test_heartbeats_reach_the_looks(make):
    node = make(timeout=None)
    variable = node.extension.environment(WorkerInfo(1, 5, 0, 1, 1))["PLAUNCH_HEARTBEATS"]
    path, _, offset = variable.rpartition("@")
    node.look()
    assert node.pause == 10.0  # nothing is learned yet
    beat = b"".join(n.to_bytes(8, "little") for n in (1, 12, 0, 0, 20 * 10**9, 0))
    with open(path, "r+b", buffering=0) as file:
        file.seek(int(offset))
        file.write(beat)
    node.look()
    _, beats, timeouts = node.looks.seen[-1]
    assert (beats[5].number, timeouts) == (12, {4: 1800.0, 5: 100.0, 6: 1800.0})
    assert node.pause == 5.0


def test_a_reason_for_coarse_looks_is_said_once(make):
    node = make()
    node.looks.reasons = {4: "not allowed", 5: "not allowed"}
    node.look(3)
    (said,) = node.control.said
    assert said.endswith("system calls and output, which is coarser: not allowed")


def test_without_py_spy_that_is_said_at_the_start(make, monkeypatch):
    def find():
        raise FileNotFoundError("py-spy is not installed")

    monkeypatch.setattr(module, "find_py_spy", find)
    node = make()
    node.extension.start(node.control)
    assert node.control.said[0].endswith("which is coarser: py-spy is not installed")


def test_a_fault_of_the_watch_ends_it_alone(make, caplog):
    node = make(timeout=1.0)
    del node.looks.places
    with caplog.at_level(logging.ERROR):
        node.extension.start(node.control)
        node.extension._thread.join(60)
    assert "hangs are not looked for any more" in caplog.text


def test_it_has_no_thread_while_the_process_forks(make):
    node = make(timeout=1.0)
    node.extension.start(node.control)
    first = node.extension._thread
    node.extension.release()
    assert node.extension._thread is first
    node.extension.rest()
    assert not first.is_alive()
    node.extension.release()
    assert node.extension._thread.is_alive()


# --- the plugin -----------------------------------------------------------------------------------


def extensions(**options):
    return Hangs().plaunch_extensions(PluginContext("job", "role", "gpu-7", options=options))


def test_nothing_is_watched_without_a_time_out():
    plugin = Hangs()
    assert plugin.plaunch_extensions(PluginContext("job", "role", "gpu-7")) == []
    assert plugin.plaunch_worker_env(WorkerInfo(0, 0, 0, 1, 1)) == {}
    plugin.plaunch_after_rendezvous(make_group())


@pytest.mark.parametrize("timeout", ["auto", 5, "10m"])
def test_it_may_be_given_in_code(timeout):
    (found,) = extensions(hang_timeout=timeout)
    found.stop(None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_hang": "stop"}, "--on-hang=stop needs --hang-timeout"),
        (
            {"hang_timeout": 5, "on_hang": "cry"},
            "on_hang is 'cry'; give one of warn, restart, stop",
        ),
        ({"hang_timeout": "soon"}, "hang_timeout: 'soon' is not a duration"),
    ],
)
def test_what_cannot_be_used(options, message):
    with pytest.raises(UsageError, match=message):
        extensions(**options)


def test_workers_learn_where_their_heartbeats_go():
    plugin = Hangs()
    context = PluginContext("job", "role", "gpu-7", options={"hang_timeout": 5})
    (found,) = plugin.plaunch_extensions(context)
    plugin.plaunch_after_rendezvous(make_group())
    variables = plugin.plaunch_worker_env(WorkerInfo(1, 1, 1, 2, 2))
    assert list(variables) == ["PLAUNCH_HEARTBEATS"]
    assert variables["PLAUNCH_HEARTBEATS"].endswith("@256")
    found.stop(None)
