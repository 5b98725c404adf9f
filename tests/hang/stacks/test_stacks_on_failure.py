"""The plugin behind `--stacks-on-failure`."""

from __future__ import annotations

import pytest
from plaunch.agent import WorkerInfo
from plaunch.plugin import PluginContext
from plaunch_hang.stacks import (
    KernelState,
    ProcessStacks,
    StackFrame,
    StackGroup,
    ThreadStack,
    dump_groups,
    load_groups,
)
from plaunch_hang.stacks.files import log_stacks
from plaunch_hang.stacks.plugin import TAKE_TIMEOUT, Stacks

from helpers.clock import Clock
from helpers.groups import make_group
from helpers.logs_specs import WithFolder

WORKERS = tuple(WorkerInfo(rank, rank, rank, 3, 3, pid=100 + rank) for rank in range(3))
GROUP = make_group(workers=WORKERS)
MAIN = ThreadStack("MainThread", 1, (StackFrame("load_batch", "train.py", 6),), is_main=True)
LIVES = ProcessStacks(1, threads=(MAIN,), kernel=KernelState("S"))
ENDED = ProcessStacks(1, reason="it has ended", kernel=KernelState("Z"))


class Control:
    """The published texts of the other nodes, one set after the other."""

    def __init__(self, *texts):
        self.texts = list(texts)
        self.published_here = []

    def publish(self, name, text):
        self.published_here.append(text)

    def published(self, name, timeout):
        return self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]


def plugin(take, *texts, **options):
    clock = Clock()

    def sleep(seconds):
        clock.now += seconds

    stacks = Stacks(take, clock, sleep)
    context = PluginContext("job", "trainer", "node7", options=options)
    extensions = stacks.plaunch_extensions(context)
    for extension in extensions:
        extension.start(Control(*texts))
    return stacks, extensions


def test_running_workers_are_logged(caplog):
    asked = []

    def take(pids, *, timeout):
        asked.append((dict(pids), timeout))
        return {0: LIVES, 1: ENDED, 2: LIVES}

    stacks, (extension,) = plugin(take, None, stacks_on_failure=True)
    stacks.plaunch_before_stop(GROUP, "failure")
    extension.stop(None)
    assert asked == [({0: 100, 1: 101, 2: 102}, TAKE_TIMEOUT)]
    assert "  2 ranks: 0, 2 load_batch (train.py:6)" in caplog.messages


def test_without_running_workers_nothing_is_logged(caplog):
    stacks, (extension,) = plugin(lambda pids, timeout: {1: ENDED}, None, stacks_on_failure=True)
    stacks.plaunch_before_stop(GROUP, "failure")
    extension.stop(None)
    assert caplog.messages == []


# --- several nodes --------------------------------------------------------------------------------

NODES = make_group(workers=WORKERS, group_world_size=2, round=3)
OTHER = dump_groups([StackGroup({"node8": (3, 4)}, (StackFrame("all_reduce", "x.py", 1),))])


def fail(stacks, extension, group=NODES):
    stacks.plaunch_before_stop(group, "failure")
    stacks.plaunch_before_rendezvous()
    extension.stop(None)


def test_the_node_of_the_failure_shows_the_whole_job(caplog):
    """It waits for the others, and ignores their groups of an earlier failure."""
    own = {"node7": "3 " + dump_groups([])}
    texts = [{**own, "node8": f"2 {OTHER}"}, {**own, "node8": f"3 {OTHER}"}]
    stacks, (extension,) = plugin(
        lambda pids, timeout: {0: LIVES, 1: ENDED, 2: LIVES}, *texts, stacks_on_failure=True
    )
    fail(stacks, extension)
    assert [line for line in caplog.messages if line.startswith("  ")] == [
        "  2 ranks: 0, 2 (node7) load_batch (train.py:6)",
        "  2 ranks: 3-4 (node8) all_reduce (x.py:1)",
    ]


@pytest.mark.parametrize("texts", [None, {}, {"node7": "3 nonsense"}, {"node8": "2 of old"}])
def test_a_node_without_others_shows_its_own_workers(texts, caplog):
    stacks, (extension,) = plugin(
        lambda pids, timeout: {0: LIVES, 1: ENDED}, texts, stacks_on_failure=True
    )
    fail(stacks, extension)
    assert "  1 rank: 0 load_batch (train.py:6)" in caplog.messages


def test_other_nodes_publish_their_groups_and_log_nothing(caplog):
    stacks, (extension,) = plugin(lambda pids, timeout: {0: LIVES}, {}, stacks_on_failure=True)
    fail(stacks, extension)
    assert caplog.messages == []
    (text,) = extension._control.published_here
    number, _, groups = text.partition(" ")
    assert number == "3"
    assert [item.all_ranks for item in load_groups(groups)] == [(0,)]
    assert len(text) <= 16384


# --- other stops ----------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", ["request", "membership", "end"])
def test_other_stops_are_not_delayed(cause):
    reads = []
    stacks, _ = plugin(lambda *args: reads.append(args), None, stacks_on_failure=True)
    stacks.plaunch_before_stop(GROUP, cause)
    assert reads == []


@pytest.mark.parametrize("options", [{}, {"stacks_on_failure": False}])
def test_it_is_off_by_default(options):
    reads = []
    stacks, extensions = plugin(lambda *args: reads.append(args), None, **options)
    assert extensions == []
    stacks.plaunch_before_stop(GROUP, "failure")
    assert reads == []


# --- folders of complete stacks -------------------------------------------------------------------


def test_each_occasion_has_a_folder(tmp_path):
    specs = WithFolder(str(tmp_path))
    for _ in range(2):
        log_stacks({0: LIVES}, "here:", host="a", attempt=3, occasion="failure", logs_specs=specs)
    assert sorted(path.name for path in (tmp_path / "stacks").iterdir()) == [
        "attempt_3-1-failure",
        "attempt_3-2-failure",
    ]


def test_a_folder_that_cannot_be_written_is_logged(tmp_path, caplog):
    (tmp_path / "stacks").write_text("no folder")
    specs = WithFolder(str(tmp_path))
    log_stacks({0: LIVES}, "here:", host="a", attempt=0, occasion="failure", logs_specs=specs)
    assert "  1 rank: 0 load_batch (train.py:6)" in caplog.messages
    assert "whole stacks are not kept: " in caplog.messages[-1]
