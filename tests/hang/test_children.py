"""Samples of child processes, with made-up stacks."""

from __future__ import annotations

import pytest
from plaunch_hang.sampler import place_of, read_children
from plaunch_hang.stacks import (
    KernelState,
    ProcessStacks,
    StackFrame,
    ThreadStack,
    waits_for_children,
)
from plaunch_hang.watch import ChildSample

PYTHON = "/usr/lib/python3.11"
LOADER = "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
USER = StackFrame("train", "/job/train.py", 3)
RUNS = (
    StackFrame("_try_wait", f"{PYTHON}/subprocess.py", 9),
    StackFrame("run", f"{PYTHON}/subprocess.py"),
)
POOL = (
    StackFrame("select", f"{PYTHON}/selectors.py"),
    StackFrame("wait", f"{PYTHON}/multiprocessing/c.py"),
)
JOINS = (
    StackFrame("wait", f"{PYTHON}/threading.py", 4),
    StackFrame("join", f"{PYTHON}/threading.py", 5),
)


def python(pid, *threads, place="ep_poll"):
    stacks = [ThreadStack("", pid + n, (*inner, USER)) for n, inner in enumerate(threads)]
    return ProcessStacks(pid, threads=tuple(stacks), kernel=KernelState("S", place=place))


def program(pid):
    return ProcessStacks(pid, reason="it is not Python", kernel=KernelState("S"))


def read(worker, below, *seen, values=None):
    """Sample the descendants of a worker, given their parents."""
    return read_children(
        {10: worker},
        lambda pids: {one.pid: one for one in seen if one.pid in pids},
        lambda pids: values or {},
        {10: below},
        lambda pid: f"use of {pid}",
    )[10]


def test_frames_of_a_wait_are_not_part_of_the_place():
    one = (
        StackFrame("select", f"{PYTHON}/selectors.py", 415),
        StackFrame("get", LOADER, 1291),
        USER,
    )
    other = (StackFrame("is_alive", f"{PYTHON}/multiprocessing/process.py", 160), *one[1:])
    assert place_of(one) == place_of(other) == (True, (USER,))
    assert place_of((USER,)) == (False, (USER,))


def test_a_python_process_is_sampled_by_its_stack():
    seen = read(python(10, POOL), {20: 10, 21: 10}, python(20, ()), python(21, ()), values={20: 1})
    place = place_of((USER,))
    assert seen == {20: ChildSample(place, 1), 21: ChildSample(place)}


@pytest.mark.parametrize(
    ("worker", "counts"),
    [
        (python(10, RUNS), True),
        (python(10, (), place="do_wait"), True),  # os.system
        (python(10, JOINS, RUNS), True),  # another thread waits
        (python(10, POOL), False),  # which has a monitor
        (python(10, POOL, RUNS), True),
    ],
)
def test_a_program_that_is_waited_for_is_sampled_by_its_usage(worker, counts):
    assert waits_for_children(worker)
    seen = read(worker, {20: 10, 21: 20}, program(20), program(21))
    expected = {pid: ChildSample(use=f"use of {pid}") for pid in (20, 21)}
    assert seen == (expected if counts else {})


def test_a_program_counts_only_if_its_python_parent_waits_for_it():
    """A loader process decodes with a program, and the worker has a monitor that is not Python."""
    parents = {20: 10, 21: 20, 30: 10, 40: 10, 41: 40}
    seen = read(
        python(10, POOL), parents, python(20, RUNS), program(21), program(30), python(40, ())
    )
    assert [*seen] == [20, 21, 40]
    assert seen[21] == ChildSample(use="use of 21")


@pytest.mark.parametrize("worker", [python(10, ()), python(10, JOINS), python(10, (), RUNS)])
def test_workers_that_wait_for_no_process(worker):
    assert not waits_for_children(worker)


def test_without_waiting_workers_nothing_is_read():
    assert read_children({}, None, None, {}, None) == {}


@pytest.mark.parametrize(
    ("state", "terminal", "how"),
    [
        ("T", "", "suspended"),
        ("t", "", "traced by a debugger"),
        ("S", "/dev/pts/3", "waiting for input from /dev/pts/3"),
        ("S", "", ""),
    ],
)
def test_a_process_that_is_held_holds_the_worker_that_waits_for_it(state, terminal, how):
    held = ProcessStacks(
        20, reason="it is not Python", kernel=KernelState(state, terminal=terminal)
    )
    seen = read(python(10, RUNS), {20: 10}, held)
    assert seen[20].hold == (how and f"waiting for process 20, which is {how}")
