"""Whether the processes that a worker has started move, with stacks that a test makes up."""

from __future__ import annotations

from plaunch_hang.children import place_of, read_children
from plaunch_stacks import Frame, ProcessStacks, ThreadStack

PYTHON = "/usr/lib/python3.11"
LOADER = "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
USER = Frame("train", "/job/train.py", 3)


def test_how_a_library_waits_is_no_place():
    one = (Frame("select", f"{PYTHON}/selectors.py", 415), Frame("get", LOADER, 1291), USER)
    other = (Frame("is_alive", f"{PYTHON}/multiprocessing/process.py", 160), *one[1:])
    assert place_of(one) == place_of(other) == (True, (USER,))
    assert place_of((USER,)) == (False, (USER,))


def test_children_that_cannot_be_read_are_left_out():
    thread = (ThreadStack("MainThread", 1, (USER,), is_main=True),)

    def main_stacks(pids):
        assert pids == {20: 20, 21: 21, 22: 22}
        shell = ProcessStacks(21, reason="it is not Python")
        return {
            20: ProcessStacks(20, threads=thread),
            21: shell,
            22: ProcessStacks(22, threads=thread),
        }

    found = read_children(
        {10, 11},
        main_stacks,
        lambda pids: {20: "a"},
        lambda pids: {10: [20, 21, 22], 11: []},
    )
    assert found == {10: {20: (place_of((USER,)), "a")}, 11: {}}


def test_no_process_is_looked_for_without_need():
    assert read_children((), None, None, None) == {}
