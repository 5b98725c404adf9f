"""Grouping ranks, formatting the groups, and exchanging them between nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plaunch_hang.stacks import (
    KernelState,
    ProcessStacks,
    StackFrame,
    StackGroup,
    ThreadStack,
    dump_groups,
    format_groups,
    group,
    load_groups,
    merge,
)
from plaunch_hang.stacks.grouping import fold

TORCH = "/venv/lib/python3.11/site-packages/torch/distributed"
PYTHON = "/usr/lib/python3.11"
ALL_REDUCE = (
    StackFrame("all_reduce", f"{TORCH}/distributed_c10d.py", 2800),
    StackFrame("wrapper", f"{TORCH}/c10d_logger.py", 81),
    StackFrame("train_step", "/job/train.py", 10),
    StackFrame("<module>", "/job/train.py", 20),
)
LOAD_BATCH = (
    StackFrame("load_batch", "/job/train.py", 6),
    StackFrame("train_step", "/job/train.py", 9),
    StackFrame("<module>", "/job/train.py", 20),
)


def process(*frames, reason="", kernel=None):
    threads = (ThreadStack("MainThread", 1, tuple(frames), is_main=True),) if frames else ()
    return ProcessStacks(1, threads=threads, reason=reason, kernel=kernel)


def lines_of(stacks):
    return format_groups(group(stacks))


def test_the_smallest_group_comes_first():
    stacks = {rank: process(*(LOAD_BATCH if rank == 2 else ALL_REDUCE)) for rank in range(8)}
    assert lines_of({"node-a": stacks}) == [
        "1 rank: 2 load_batch (train.py:6)",
        "7 ranks: 0-1, 3-7 all_reduce <- train_step (train.py:10)",
    ]


def test_of_several_nodes_the_node_of_a_small_group_is_named():
    nodes = {
        "node-a": {0: process(*ALL_REDUCE), 1: process(*ALL_REDUCE)},
        "node-b": {2: process(*LOAD_BATCH), 3: process(*ALL_REDUCE)},
    }
    assert lines_of(nodes) == [
        "1 rank: 2 (node-b) load_batch (train.py:6)",
        "3 ranks: 0-1, 3 all_reduce <- train_step (train.py:10)",
    ]


def test_lines_inside_libraries_are_ignored():
    other = (StackFrame("all_reduce", f"{TORCH}/distributed_c10d.py", 2999), *ALL_REDUCE[1:])
    assert len(group({"a": {0: process(*ALL_REDUCE), 1: process(*other)}})) == 1


def test_functions_of_libraries_are_compared():
    """All functions of a training framework may be called from one line of the user."""
    other = (StackFrame("barrier", f"{TORCH}/distributed_c10d.py", 2800), *ALL_REDUCE[1:])
    assert lines_of({"a": {0: process(*ALL_REDUCE), 1: process(*other)}}) == [
        "1 rank: 0 all_reduce <- train_step (train.py:10)",
        "1 rank: 1 barrier <- train_step (train.py:10)",
    ]


def test_waiting_loops_of_python_are_ignored():
    outer = (StackFrame("Queue.get", f"{PYTHON}/queue.py", 180), *LOAD_BATCH)
    inner = (StackFrame("Condition.wait", f"{PYTHON}/threading.py", 331), *outer)
    assert lines_of({"a": {0: process(*outer), 1: process(*inner)}}) == [
        "2 ranks: 0-1 Queue.get <- load_batch (train.py:6)"
    ]


def test_a_stack_with_only_python_modules():
    runpy = StackFrame("_run_code", "<frozen runpy>", 88)
    assert [frame.function for frame in fold([*LOAD_BATCH, runpy])] == [
        "load_batch",
        "train_step",
        "<module>",
    ]
    assert [frame.function for frame in fold([runpy])] == ["_run_code"]


def test_callers_make_groups_on_the_same_line_unique():
    inner, outer = (
        StackFrame("sync", "/job/sync.py", 3),
        StackFrame("<module>", "/job/train.py", 20),
    )
    stacks = {
        rank: process(inner, StackFrame(name, "/job/train.py", 10 + rank), outer)
        for rank, name in enumerate(["save", "evaluate"])
    }
    assert lines_of({"a": stacks}) == [
        "1 rank: 0 sync (sync.py:3) <- save (train.py:10)",
        "1 rank: 1 sync (sync.py:3) <- evaluate (train.py:11)",
    ]


def test_a_stack_with_only_a_library():
    frames = ALL_REDUCE[:2]
    assert lines_of({"a": {0: process(*frames)}}) == ["1 rank: 0 all_reduce (distributed_c10d.py)"]


def test_a_reason_is_shown_once():
    def unknown(place):
        return process(reason="it is not Python", kernel=KernelState("S", place))

    stacks = {0: unknown("pipe_read"), 1: unknown("pipe_read"), 2: unknown("do_wait")}
    assert lines_of({"a": stacks}) == [
        "1 rank: 2 state S, waits in do_wait",
        "2 ranks: 0-1 state S, waits in pipe_read",
        "the stack of ranks 0-2 is unknown: it is not Python",
    ]


def test_ranks_without_a_stack_come_last():
    """Nothing says that they are the cause, even if they are few."""
    unknown = process(reason="not read in time", kernel=KernelState("S", "hrtimer_nanosleep"))
    stacks = {0: unknown, 1: process(*ALL_REDUCE), 2: process(*ALL_REDUCE), 3: process(*LOAD_BATCH)}
    assert lines_of({"a": stacks}) == [
        "1 rank: 3 load_batch (train.py:6)",
        "2 ranks: 1-2 all_reduce <- train_step (train.py:10)",
        "1 rank: 0 state S, waits in hrtimer_nanosleep",
        "the stack of rank 0 is unknown: not read in time",
    ]


def test_ranks_that_are_stuck_in_the_kernel_are_a_likely_cause():
    stuck = process(reason="not read in time", kernel=KernelState("D", "nfs_wait_bit_killable"))
    stacks = {0: process(*ALL_REDUCE), 1: stuck}
    assert lines_of({"a": stacks})[0] == "1 rank: 1 state D, waits in nfs_wait_bit_killable"


def test_a_main_thread_without_python_code():
    """Nobody knows whether the interpreter starts or ends."""
    main = ThreadStack("MainThread", 1, (), is_main=True)
    ends = ProcessStacks(1, threads=(main,), kernel=KernelState("S", "futex_do_wait"))
    assert lines_of({"a": {0: ends, 1: process(*ALL_REDUCE)}})[1] == (
        "1 rank: 0 runs no Python code, state S, waits in futex_do_wait"
    )


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        (
            (
                StackFrame("Thread.join", f"{PYTHON}/threading.py", 1119),
                StackFrame("_python_exit", f"{PYTHON}/concurrent/futures/thread.py", 31),
                StackFrame("_shutdown", f"{PYTHON}/threading.py", 1560),
            ),
            "threading._shutdown",
        ),
        (
            (
                StackFrame("BaseProcess.join", f"{PYTHON}/multiprocessing/process.py", 149),
                StackFrame("_exit_function", f"{PYTHON}/multiprocessing/util.py", 357),
            ),
            "multiprocessing.util._exit_function",
        ),
        ((StackFrame("cleanup", "/job/train.py", 5),), "cleanup (train.py:5)"),  # of atexit
        (
            (
                StackFrame("destroy_process_group", f"{TORCH}/distributed_c10d.py", 2200),
                StackFrame("main", "/job/train.py", 30),
                StackFrame("<module>", "/job/train.py", 33),
            ),
            "destroy_process_group <- main (train.py:30)",
        ),
    ],
)
def test_places_at_the_end_of_a_program(frames, place):
    assert lines_of({"a": {0: process(*frames)}}) == [f"1 rank: 0 {place}"]


def test_many_groups_are_counted():
    stacks = {rank: process(StackFrame("f", "train.py", rank + 1)) for rank in range(30)}
    lines = format_groups(group({"a": stacks}), most=2)
    assert lines[2:] == ["and 28 ranks in 28 more groups"]


# --- between nodes --------------------------------------------------------------------------------


def test_groups_of_two_nodes_are_merged():
    nodes = {
        host: group({host: {rank: process(*ALL_REDUCE)}}) for rank, host in enumerate(["a", "b"])
    }
    merged = merge(load_groups(dump_groups(nodes["a"])) + load_groups(dump_groups(nodes["b"])))
    assert merged == [StackGroup({"a": (0,), "b": (1,)}, fold(ALL_REDUCE))]


words = st.text("abc /<>.é", max_size=12)
frames = st.lists(
    st.builds(StackFrame, words, words, st.integers(0, 10**6)), min_size=1, max_size=60
).map(fold)
ranks = st.sets(st.integers(0, 5000), min_size=1, max_size=50).map(
    lambda found: tuple(sorted(found))
)
groups = st.lists(
    st.builds(
        StackGroup, st.dictionaries(words, ranks, min_size=1, max_size=3), frames, words, words
    ),
    max_size=20,
).map(merge)


@given(groups)
def test_groups_are_serialized_and_parsed(logged):
    assert load_groups(dump_groups(logged, most=1 << 20)) == logged


@given(groups, st.integers(100, 3000))
def test_the_size_of_a_text_is_limited(logged, most):
    text = dump_groups(logged, most=most)
    assert len(text) <= most
    kept = load_groups(text)
    everybody = {rank for item in logged for rank in item.all_ranks}
    assert {rank for item in kept for rank in item.all_ranks} <= everybody
    assert kept[: len(kept) - 1] == [item for item in logged if item in kept][: len(kept) - 1]


@given(groups)
def test_each_group_has_its_line(logged):
    lines = format_groups(logged, most=len(logged))
    reasons = {item.reason for item in logged if item.reason}
    assert len(lines) == len(logged) + len(reasons)
    for item, line in zip(logged, lines, strict=False):
        assert line.startswith(f"{item.size} rank")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["version", "groups", "ranks", "frames", "state", "reason", "a"]), inner
        )
    ),
)


@given(json_values)
def test_invalid_texts_of_other_nodes_are_refused(value):
    import json

    try:
        found = load_groups(json.dumps(value))
    except ValueError:
        return
    format_groups(found)


@pytest.mark.parametrize(
    "ranks", [[[0, 1 << 40]], [[3, 1]], [[-1, 2]], [[0]], [["0", 1]], [[True, 1]]]
)
def test_invalid_ranks_are_refused(ranks):
    import json

    item = {"ranks": {"a": ranks}, "frames": [], "state": "", "reason": ""}
    with pytest.raises(ValueError, match=r"ranks|groups"):
        load_groups(json.dumps({"version": 1, "groups": [item]}))


def test_texts_of_other_nodes_are_made_printable():
    logged = [StackGroup({"a": (0,)}, (), "\x1b[2J", "")]
    assert format_groups(load_groups(dump_groups(logged))) == ["1 rank: 0 \\x1b[2J"]
