"""Nothing outlives a context, whatever its workers started and however they ended."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

import pytest
from plaunch.process import ContextComponents, start_processes
from plaunch.process.stopping.job import Reaper

pytestmark = pytest.mark.filterwarnings(
    # Python 3.12 on; the threads are those of the test runner's own time-out.
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)

TAGGED = ("child", "stubborn", "session", "daemon", "execd", "closed")
RELATED = (*TAGGED, "cleared")  # as long as the parents live that they are known by


@pytest.fixture(params=["program", "spawn", "fork", "forkserver"])
def method(request):
    return request.param


@pytest.fixture
def start(family, descendants):
    opened = []

    def start(method, kinds, *ends, **options):
        options = {"log_dir": os.devnull, "handle_signals": False, **options}
        if method == "program":
            argv = (descendants.__file__, family.folder, ",".join(kinds))
            args = {rank: (*argv, end) for rank, end in enumerate(ends)}
            context = start_processes("t", sys.executable, args, **options)
        else:
            args = {rank: (family.folder, kinds, end) for rank, end in enumerate(ends)}
            context = start_processes("t", descendants.work, args, start_method=method, **options)
        opened.append(context)
        return context

    yield start
    for context in opened:
        context.close(signal.SIGKILL)


@contextlib.contextmanager
def no_grace():
    """Do something that must not take the 30 seconds which are for workers only."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 25


def expect(family, kinds, workers):
    assert sorted(family.kinds()) == sorted((*kinds, "worker") * workers)


def test_all_succeed(start, family, method):
    context = start(method, TAGGED, "return", "return")
    with no_grace():
        assert not context.wait(60).is_failed()
    assert family.alive() == []
    expect(family, TAGGED, 2)


@pytest.mark.parametrize(("end", "exitcode"), [("fail", 3), ("crash", -9), ("vanish", 4)])
def test_one_fails_by_itself(start, family, method, end, exitcode):
    context = start(method, TAGGED, end, "wait")
    family.wait_for("worker", 2)  # one that waits for a child that starts would get the grace
    with no_grace():
        result = context.wait(60)
    assert result.failures[0].exitcode == exitcode
    assert result.stopped == {1: -15}
    assert family.alive() == []


@pytest.mark.parametrize("end", ["wait", "stubborn"])
def test_they_are_closed(start, family, method, end):
    context = start(method, RELATED, end, "wait")
    family.wait_for("worker", 2)
    expect(family, RELATED, 2)
    with no_grace():
        context.close(timeout=0.1 if end == "stubborn" else None)
    assert family.alive() == []


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_a_function_inherits_the_orphans_of_its_own(start, family, method):
    """They have nothing that tells whose they are, but the worker is their parent now."""
    context = start(method, ["lost"], "wait")
    family.wait_for("worker")
    context.close()
    assert family.alive() == []
    expect(family, ["lost"], 1)


def test_a_worker_closes_every_descriptor_that_it_has(start, family):
    context = start("program", TAGGED, "closing")
    family.wait_for("worker")
    context.close()
    assert family.alive() == []


def test_without_pidfds_nothing_is_left_either(start, family, method, monkeypatch):
    monkeypatch.setenv("PLAUNCH_NO_PIDFD", "1")
    monkeypatch.delattr(os, "pidfd_open")
    context = start(method, TAGGED, "wait", "fail")
    family.wait_for("worker", 2)
    assert context.wait(60).failures[1].exitcode == 3
    assert family.alive() == []


def test_two_contexts_do_not_end_each_others_processes(start, family, tmp_path):
    staying = start("program", ["daemon"], "wait")
    family.wait_for("worker")
    mine = family.members()
    start("program", ["daemon"], "return").wait(60)
    assert [(kind, pid) for kind, pid, _ in mine] == family.alive()
    staying.close()
    assert family.alive() == []


@pytest.mark.parametrize("end", ["return", "fail", "wait"])
def test_daemons_are_kept_only_on_request_and_after_success(start, family, end):
    reaper = Reaper(keep_daemons=True)
    context = start("program", ["child", "execd"], end, components=ContextComponents(reaper=reaper))
    if end == "wait":
        family.wait_for("worker")
        context.close()
    else:
        assert context.wait(60).is_failed() is (end == "fail")
    reaper.close()
    kept = ["child", "execd"] if end == "return" else []
    assert [kind for kind, _ in family.alive()] == kept


def test_no_zombie_and_no_descriptor_is_left(start, family, method):
    def own():
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            children = {int(pid) for pid in file.read().split()}
        return children, set(os.listdir("/proc/self/fd"))

    start(method, (), "return").wait(60)  # helpers that stay, as multiprocessing's, have come
    before = own()
    start(method, TAGGED, "return", "return").wait(60)
    start(method, RELATED, "wait").close()
    assert own() == before
