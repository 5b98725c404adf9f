"""Complete stacks in files."""

from __future__ import annotations

import pytest
from plaunch_hang.stacks import KernelState, ProcessStacks, StackFrame, ThreadStack, group, write

TRAIN = StackFrame("train", "/job/train.py", 10)


def test_a_file_for_each_rank(tmp_path):
    loader = ThreadStack("loader", 12, ())
    main = ThreadStack("", 11, (TRAIN,), is_main=True, has_lock=True)
    child = ProcessStacks(
        13, title="sh", reason="it is not Python", kernel=KernelState("S", "x", stack=("x", "y"))
    )
    stacks = {
        5: ProcessStacks(
            11,
            title="python train.py",
            threads=(main, loader),
            kernel=KernelState("R", seconds=1.5),
            children=(child,),
        )
    }
    write(str(tmp_path / "run" / "stacks"), stacks, group({"node-a": stacks}), "why")
    folder = tmp_path / "run" / "stacks"
    assert (folder / "summary.txt").read_text() == "why\n1 rank: 5 train (train.py:10)\n"
    assert (
        (folder / "rank_5.txt").read_text()
        == """\
why
process 11: python train.py
  state R, 1.50 s of processors
  thread MainThread 11 (holds the lock of the interpreter)
    train (/job/train.py:10)
  thread loader 12
    no Python code runs in it

  process 13: sh
    state S, waits in x, 0.00 s of processors
    its stack is unknown: it is not Python
      x (kernel)
      y (kernel)
"""
    )


def test_files_are_never_overwritten(tmp_path):
    with pytest.raises(FileExistsError):
        write(str(tmp_path), {})
