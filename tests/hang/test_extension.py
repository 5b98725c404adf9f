"""The watch of one node, with a fake clock and fake samples."""

from __future__ import annotations

import logging
import re
import threading
import time

import pytest
from plaunch.agent import WorkerInfo, WorkerState
from plaunch.errors import UsageError
from plaunch.plugin import PluginContext
from plaunch.process import Held
from plaunch_hang.options import exit_rules
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


def test_a_hang_is_logged_with_all_stacks(make):
    node = make()
    node.sample(30)
    assert node.control.said == ["no worker of the job has moved for 1m40s:", *LINES]
    assert not node.control.reported


def test_a_rank_that_ended_early_is_named(make):
    node = make()
    node.control.succeeded = {7: time.time() - 12}
    node.sample(30)
    assert re.fullmatch(r"rank 7 had ended with exit code 0, 1\d s before", node.control.said[-1])


def test_whole_stacks_are_kept(make, tmp_path):
    node = make(log_dir=str(tmp_path))
    node.sample(30)
    (folder,) = tmp_path.iterdir()
    assert node.control.said[-1] == f"whole stacks: {folder}"
    assert "no worker of the job" in (folder / "summary.txt").read_text()
    assert "load_batch (/home/me/train.py:6)" in (folder / "rank_5.txt").read_text()


def test_stacks_that_cannot_be_written_are_logged_anyway(make, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    node = make(log_dir=str(tmp_path / "file"))
    node.sample(30)
    assert node.control.said[1:] == LINES
    assert "the stacks cannot be written to a file" in caplog.text


def test_a_held_worker_is_logged_and_causes_no_action(make):
    node = make(action="stop")
    node.control.holds[5] = Held("suspended", time.time(), node.control.pids[5])
    node.sample(42)
    title, *lines = node.control.said
    assert re.fullmatch(
        r"rank 5 on gpu-7 is suspended since [\d:]{8}; --hang-timeout is paused "
        r"meanwhile, and --on-hang=stop does not act:",
        title,
    )
    since = title.partition(" is ")[2].partition(";")[0]
    assert lines == [f"{LINES[0]}, {since}", LINES[1]]
    assert not node.control.reported
    node.control.holds.clear()
    node.sample(30)
    assert len(node.control.reported) == 1


def test_a_worker_in_a_debugger_is_held(make):
    node = make(action="stop")
    node.sampler.holds[5] = "at a prompt of pdb"
    node.sample(60)
    title, *lines = node.control.said
    assert re.match(r"rank 5 on gpu-7 is at a prompt of pdb since [\d:]{8}; --hang-t", title)
    assert re.fullmatch(rf"{re.escape(LINES[0])}, at a prompt of pdb since [\d:]{{8}}", lines[0])
    assert not node.control.reported
    ((rank, held),) = node.control.noted_holds.items()
    assert (rank, held.how, held.pid) == (5, "at a prompt of pdb", node.control.pids[5])
    node.sampler.holds.clear()
    node.sample(30)
    assert node.control.noted_holds == {}
    assert len(node.control.reported) == 1


@pytest.mark.parametrize(("action", "is_final"), [("restart", False), ("stop", True)])
def test_a_hang_is_a_failure(make, action, is_final):
    node = make(action=action)
    node.sample(30)
    text = f"no worker of the job has moved for 1m40s (--hang-timeout): {LINES[0]}\n{LINES[1]}"
    assert node.control.reported == [(5, text, is_final)]
    assert node.control.said == ([] if is_final else LINES[1:])


def test_stragglers_are_logged(make):
    node = make()
    for number in range(21):
        node.sampler.places[4] = number
        node.sample()
    title = "ranks 5-6 have not moved for 1m40s, others have:"
    places = [LINES[0], "1 rank: 6 step (train.py:10)"]
    assert node.control.said == [title, *places]
    node.sampler.places[5] = node.sampler.places[4] = "x"
    node.sample()
    assert node.control.said[3:] == ["rank 5 moves again"]
    node.sampler.places[6] = node.sampler.places[4] = "y"
    node.sample()
    assert node.control.said[4:] == ["rank 6 moves again"]


@pytest.mark.parametrize("state", [WorkerState.INIT, WorkerState.STOPPED, WorkerState.SUCCEEDED])
def test_only_running_workers_are_sampled(make, state):
    node = make()
    node.control.state = state
    node.sample(30)
    assert node.sampler.seen[-1] == ({}, {}, {})
    assert not node.control.said


def test_heartbeats_are_passed_to_the_sampler(make):
    node = make(timeout=None)
    variable = node.extension.environment(WorkerInfo(1, 5, 0, 1, 1))["PLAUNCH_HEARTBEATS"]
    path, _, offset = variable.rpartition("@")
    node.sample()
    assert node.pause == 10.0  # nothing is learned yet
    beat = b"".join(n.to_bytes(8, "little") for n in (1, 12, 0, 0, 20 * 10**9, 0))
    with open(path, "r+b", buffering=0) as file:
        file.seek(int(offset))
        file.write(beat)
    node.sample()
    _, beats, timeouts = node.sampler.seen[-1]
    assert (beats[5].number, timeouts) == (12, {4: 1800.0, 5: 100.0, 6: 1800.0})
    assert node.pause == 5.0


def test_a_reason_for_imprecise_samples_is_logged_once(make):
    node = make()
    node.sampler.reasons = {4: "not allowed", 5: "not allowed"}
    node.sample(3)
    (said,) = node.control.said
    assert said.endswith("system calls and output, which is less precise: not allowed")


def test_missing_py_spy_is_logged_at_the_start(make):
    def find():
        raise FileNotFoundError("py-spy is not installed")

    node = make(find_py_spy=find)
    node.extension.start(node.control)
    assert node.control.said[0].endswith("which is less precise: py-spy is not installed")


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "plaunch-hang"]


def test_an_error_of_the_watch_does_not_affect_the_launch(make, caplog):
    node = make(timeout=1.0)
    del node.sampler.places
    with caplog.at_level(logging.ERROR):
        node.extension.start(node.control)
        (thread,) = threads()
        thread.join(60)
    assert "the detection of hangs failed, and is switched off" in caplog.text


def test_it_has_no_thread_while_the_process_forks(make):
    node = make(timeout=1.0)
    node.extension.start(node.control)
    (first,) = threads()
    node.extension.release()
    assert threads() == [first]
    node.extension.rest()
    assert threads() == []
    node.extension.release()
    assert len(threads()) == 1


# --- the plugin -----------------------------------------------------------------------------------


def extensions(**options):
    return Hangs().plaunch_extensions(PluginContext("job", "role", "gpu-7", options=options))


def test_nothing_is_watched_without_a_timeout():
    plugin = Hangs()
    assert plugin.plaunch_extensions(PluginContext("job", "role", "gpu-7")) == []
    assert plugin.plaunch_worker_env(WorkerInfo(0, 0, 0, 1, 1)) == {}
    plugin.plaunch_after_rendezvous(make_group())


@pytest.mark.parametrize(("timeout", "seconds"), [("auto", 1800.0), (5, 5.0), ("10m", 600.0)])
def test_a_timeout_given_in_code(timeout, seconds):
    (found,) = extensions(hang_timeout=timeout)
    assert found._longest == seconds


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
def test_invalid_options(options, message):
    with pytest.raises(UsageError, match=message):
        extensions(**options)


@pytest.mark.parametrize(
    ("options", "timeout"),
    [
        ({}, None),
        ({"hang_timeout": 5}, None),
        ({"hang_timeout": 5, "on_hang": "warn"}, None),
        ({"hang_timeout": 5, "on_hang": "restart"}, 30.0),
        ({"hang_timeout": 5, "on_hang": "stop"}, 30.0),
        ({"exception_timeout": 2.5}, 2.5),
        ({"exception_timeout": "2m", "hang_timeout": 5, "on_hang": "stop"}, 120.0),
    ],
)
def test_what_a_launch_does_about_workers_that_do_not_exit(options, timeout):
    assert exit_rules(options).exception_timeout == timeout


@pytest.mark.parametrize("given", ["soon", 0, "-1", "inf"])
def test_an_invalid_exception_timeout(given):
    with pytest.raises(UsageError, match="exception_timeout: "):
        exit_rules({"exception_timeout": given})


def test_workers_get_the_variable_for_heartbeats():
    plugin = Hangs()
    context = PluginContext("job", "role", "gpu-7", options={"hang_timeout": 5})
    (found,) = plugin.plaunch_extensions(context)
    plugin.plaunch_after_rendezvous(make_group())
    variables = plugin.plaunch_worker_env(WorkerInfo(1, 1, 1, 2, 2))
    assert list(variables) == ["PLAUNCH_HEARTBEATS"]
    assert variables["PLAUNCH_HEARTBEATS"].endswith("@256")
    found.stop(None)
