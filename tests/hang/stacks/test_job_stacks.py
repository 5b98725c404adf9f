"""Stacks of a whole job on request, with nodes in this process."""

from __future__ import annotations

import threading

import pytest
from plaunch.agent import Snapshot, WorkerState
from plaunch.plugin import PluginContext
from plaunch_hang.stacks import (
    JobStacks,
    JobView,
    KernelState,
    ProcessStacks,
    StackFrame,
    StackGroup,
    ThreadStack,
)
from plaunch_hang.stacks.job_stacks import ANSWER_TIMEOUT
from plaunch_hang.stacks.records import NodeAnswer, dump_answer, load_answer

from helpers.calls import Call
from helpers.clock import Clock
from helpers.logs_specs import WithFolder
from helpers.waiting import wait_until


def at(function):
    main = ThreadStack("MainThread", 1, (StackFrame(function, "train.py", 6),), is_main=True)
    return ProcessStacks(1, threads=(main,), kernel=KernelState("S"))


ENDED = ProcessStacks(1, reason="it has ended", kernel=KernelState("Z"))


class Job:
    """Nodes that receive broadcasts at once, unless they are unreachable."""

    def __init__(self, knows_all=True):
        self.knows_all = knows_all
        self.clock = Clock()
        self.nodes = {}
        self.texts = {}
        self.has_store = True

    def add(self, host, seen, *, is_unreachable=False, **settings):
        node = Node(self, host, seen, is_unreachable, settings)
        self.nodes[host] = node
        return node


class Node:
    """The control of one node."""

    def __init__(self, job, host, seen, is_unreachable, settings):
        self.job, self.host, self.is_unreachable = job, host, is_unreachable
        self.seen = seen
        self.reads = 0
        self.reader = None  # reads instead of `take`
        context = PluginContext("job", "trainer", host, settings=settings)
        self.stacks = JobStacks(context, self, take=self.take, clock=job.clock, sleep=self.sleep)

    def sleep(self, seconds):
        self.job.clock.now += seconds

    def take(self, pids, *, timeout):
        if self.reader is not None:
            return self.reader(pids, timeout)
        assert set(pids) == set(self.seen)
        assert timeout <= ANSWER_TIMEOUT
        self.reads += 1
        return self.seen

    def snapshot(self):
        pids = {rank: 100 + rank for rank in self.seen}
        return Snapshot(WorkerState.HEALTHY, 0, 2, tuple(pids), pids)

    def held(self):
        return {}

    def broadcast(self, name, text):
        for node in self.job.nodes.values() if self.job.knows_all else ():
            if not node.is_unreachable:
                node.stacks.answer_call(text)

    def publish(self, name, text):
        self.job.texts[f"{self.host}~1"] = text

    def published(self, name, timeout, *, all_nodes):
        assert all_nodes
        if not self.job.knows_all:
            return None
        if not self.job.has_store:
            return {}
        return {f"{host}~1": self.job.texts.get(f"{host}~1", "") for host in self.job.nodes}


def places(groups):
    return [(item.all_ranks, item.frames[0].function) for item in groups]


def test_any_node_returns_the_stacks_of_all_workers():
    job = Job()
    job.add("a", {0: at("all_reduce"), 1: at("all_reduce")})
    job.add("b", {2: at("load_batch"), 3: at("all_reduce"), 4: ENDED})
    for host in ("a", "b", "a"):
        view = job.nodes[host].stacks.ask()
        assert places(view.groups) == [((2,), "load_batch"), ((0, 1, 3), "all_reduce")]
        assert (view.silent, view.is_job_wide, view.has_store) == ((), True, True)
    # Each node read its stacks once, and the request was answered without a wait.
    assert [node.reads for node in job.nodes.values()] == [3, 3]
    assert job.clock.now == Clock().now


def test_answers_to_old_calls_are_ignored():
    job = Job()
    job.add("a", {0: at("step")})
    other = job.add("b", {1: at("before")})
    job.nodes["a"].stacks.ask()
    other.is_unreachable = True
    view = job.nodes["a"].stacks.ask()
    assert places(view.groups) == [((0,), "step")]
    assert view.silent == ("b",)
    assert job.clock.now - Clock().now < ANSWER_TIMEOUT + 0.5


def test_invalid_answers_are_ignored():
    job = Job()
    job.add("a", {0: at("step")})
    other = job.add("b", {1: at("step")})
    other.publish = lambda name, text: job.texts.update({"b~1": "no answer"})
    assert job.nodes["a"].stacks.ask().silent == ("b",)


@pytest.mark.parametrize(("knows_all", "has_store"), [(False, True), (True, False)])
def test_a_node_without_others_shows_its_own_workers(knows_all, has_store):
    job = Job(knows_all)
    job.has_store = has_store
    job.add("a", {0: at("step")})
    view = job.nodes["a"].stacks.ask()
    assert places(view.groups) == [((0,), "step")]
    assert (view.is_job_wide, view.has_store) == (knows_all, has_store)


def test_simultaneous_requests_share_one_result():
    job = Job()
    node = job.add("a", {0: at("step")})
    reads, may_return = threading.Event(), threading.Event()

    def take(pids, timeout):
        reads.set()
        assert may_return.wait(30)
        return {0: at("step")}

    node.reader = take
    first = Call(node.stacks.ask)
    assert reads.wait(30)
    reads.clear()
    second = Call(node.stacks.ask)
    another = Call(node.stacks.answer_call, "of another node")
    wait_until(lambda: "of another node" in node.stacks._query.calls, "its answer")
    may_return.set()
    assert first.get() == second.get()
    another.get()
    assert not reads.is_set()
    # A node that called meanwhile is answered too.
    assert "of another node" in load_answer(job.texts["a~1"]).calls


def test_rest_waits_for_a_running_request():
    """After a fork, locks of that thread would never be released."""
    node = Job().add("a", {0: at("step")})
    reads, may_return = threading.Event(), threading.Event()

    def take(pids, timeout):
        reads.set()
        assert may_return.wait(30)
        return {0: at("step")}

    node.reader = take
    node.stacks.rest(30)  # there is none
    asking = Call(node.stacks.ask)
    assert reads.wait(30)
    resting = Call(node.stacks.rest, 30)
    assert not resting.ended(0.05)
    may_return.set()
    resting.get()
    asking.get()


def test_a_request_after_a_failed_one_works():
    node = Job().add("a", {0: at("step")})

    def take(pids, timeout):
        raise MemoryError

    node.reader = take
    with pytest.raises(MemoryError):
        node.stacks.ask()
    node.reader = None
    assert places(node.stacks.ask().groups) == [((0,), "step")]


def test_complete_stacks_are_in_the_folder_of_each_run(tmp_path):
    job = Job()
    for host, rank in (("a", 0), ("b", 1)):
        specs = WithFolder(str(tmp_path / host))
        job.add(host, {rank: at("step")}, logs_specs=specs)
    (tmp_path / "c").write_text("no folder")
    specs = WithFolder(str(tmp_path / "c"))
    job.add("c", {2: at("step")}, logs_specs=specs)
    view = job.nodes["b"].stacks.ask()
    folders = {host: str(tmp_path / host / "stacks" / "attempt_2-1-request") for host in "ab"}
    assert dict(view.folders) == folders
    assert "step (train.py:6)" in (tmp_path / "a/stacks/attempt_2-1-request/rank_0.txt").read_text()
    ((host, problem),) = view.problems
    assert host == "c"
    assert "Not a directory" in problem or "File exists" in problem


def test_selected_ranks():
    view = JobView(
        [
            StackGroup({"a": (0, 2), "b": (5,)}),
            StackGroup({"a": (3,)}, (StackFrame("f", "x.py", 1),)),
        ]
    )
    assert view.of({2, 3, 9}) == [
        StackGroup({"a": (3,)}, (StackFrame("f", "x.py", 1),)),
        StackGroup({"a": (2,)}),
    ]


def test_an_answer_is_one_line_of_limited_size():
    """Other characters would be read as escape sequences by other nodes."""
    groups = [
        StackGroup({"a": (rank,)}, (StackFrame(f"f{rank}", "x" * 150, 1),)) for rank in range(500)
    ]
    answer = NodeAnswer("me", ("1", "2"), "a\nb", "/logs/\x1b[1m", "", groups)
    text = dump_answer(answer)
    assert len(text) <= 16384
    assert text.isprintable()
    read = load_answer(text)
    assert (read.by, read.calls, read.host, read.folder) == (
        "me",
        ("1", "2"),
        "a\\nb",
        "/logs/\\x1b[1m",
    )
    assert sum(item.size for item in read.groups) == 500


def test_long_names_leave_room_for_groups():
    long = "\N{SNOWMAN}" * 1000
    answer = NodeAnswer("me", (), long, long, long, [StackGroup({"a": (3,)})])
    text = dump_answer(answer)
    assert len(text) <= 16384
    assert load_answer(text).groups == answer.groups
    assert load_answer(text).folder == long


@pytest.mark.parametrize("text", ["", "{}", "[1] 2", '{"by": 3}', "x" * 50])
def test_invalid_texts(text):
    with pytest.raises(ValueError, match="no answer with stacks"):
        load_answer(text)
