"""Naming the child processes that workers wait for."""

from __future__ import annotations

from plaunch_hang.stacks import (
    ProcessStacks,
    StackFrame,
    ThreadStack,
    dump_groups,
    format_groups,
    group,
    load_groups,
)

PYTHON = "/usr/lib/python3.11"
TORCH = "/venv/lib/python3.11/site-packages/torch"

POLL = (
    StackFrame("_PollLikeSelector.select", f"{PYTHON}/selectors.py", 415),
    StackFrame("wait", f"{PYTHON}/multiprocessing/connection.py", 947),
)
LOADER_WAITS = (
    *POLL,
    StackFrame("_get_data", f"{TORCH}/utils/data/dataloader.py", 1464),
    StackFrame("train", "/job/train.py", 3),
)
FORKED = (  # what a forked process has of its parent
    StackFrame("BaseProcess.run", f"{PYTHON}/multiprocessing/process.py", 108),
    StackFrame("BaseProcess._bootstrap", f"{PYTHON}/multiprocessing/process.py", 314),
    StackFrame("Popen._launch", f"{PYTHON}/multiprocessing/popen_fork.py", 71),
    StackFrame("train", "/job/train.py", 3),
)
LOADS = (
    StackFrame("read_shard", "/job/data.py", 12),
    StackFrame("_worker_loop", f"{TORCH}/utils/data/_utils/worker.py", 374),
    *FORKED,
)
IDLE = (*POLL, StackFrame("_worker_loop", f"{TORCH}/utils/data/_utils/worker.py", 350), *FORKED)
POOL = (
    StackFrame("resize", "/job/data.py", 5),
    StackFrame("worker", f"{PYTHON}/multiprocessing/pool.py", 125),
    *FORKED,
)
PROGRAM = (
    StackFrame("convert", "/job/convert.py", 9),
    StackFrame("<module>", "/job/convert.py", 20),
)
TRACKER = (
    StackFrame("main", f"{PYTHON}/multiprocessing/resource_tracker.py", 200),
    StackFrame("<module>", "<string>", 1),
)
ALL_REDUCE = (
    StackFrame("all_reduce", f"{TORCH}/distributed/distributed_c10d.py", 2800),
    StackFrame("train", "/job/train.py", 4),
)


def process(frames, *children):
    threads = (ThreadStack("MainThread", 1, frames, is_main=True),)
    return ProcessStacks(1, threads=threads, children=tuple(map(process, children)))


def lines_of(*workers):
    groups = group({"node-a": dict(enumerate(workers))})
    assert load_groups(dump_groups(groups)) == groups
    return format_groups(groups)


def test_a_busy_loader_process_is_named_for_its_rank():
    assert lines_of(process(LOADER_WAITS, TRACKER, IDLE, LOADS)) == [
        "1 rank: 0 read_shard (data.py:12), a loader process of rank 0; "
        "rank 0 waits in train (train.py:3)"
    ]


def test_its_rank_comes_before_ranks_that_wait_for_it():
    waits = process(ALL_REDUCE)
    shown = lines_of(waits, process(LOADER_WAITS, LOADS), waits, process(LOADER_WAITS, LOADS))
    assert shown == [
        "2 ranks: 1, 3 read_shard (data.py:12), loader processes of ranks 1,3; "
        "ranks 1,3 wait in train (train.py:3)",
        "2 ranks: 0, 2 all_reduce <- train (train.py:4)",
    ]


def test_other_processes():
    (line,) = lines_of(process(LOADER_WAITS, POOL))
    assert line.startswith("1 rank: 0 resize (data.py:5), a pool process of rank 0; ")
    (line,) = lines_of(process(LOADER_WAITS, PROGRAM))
    assert line.startswith("1 rank: 0 convert (convert.py:9), a process that rank 0 started; ")
    (line,) = lines_of(process(LOADER_WAITS, PROGRAM, LOADS))
    assert line.startswith("1 rank: 0 read_shard (data.py:12), a loader process of rank 0; ")


def test_processes_that_the_worker_does_not_wait_for_are_not_named():
    assert lines_of(process(ALL_REDUCE, LOADS)) == ["1 rank: 0 all_reduce <- train (train.py:4)"]
    assert lines_of(process(LOADER_WAITS, IDLE, TRACKER)) == [
        "1 rank: 0 _get_data <- train (train.py:3)"
    ]


def test_ranks_that_wait_for_others_come_last_even_if_fewer():
    loads = process((StackFrame("load_batch", "/job/train.py", 6),))
    assert lines_of(process(ALL_REDUCE), loads, loads) == [
        "2 ranks: 1-2 load_batch (train.py:6)",
        "1 rank: 0 all_reduce <- train (train.py:4)",
    ]
