"""Recognizing waits in libraries."""

from __future__ import annotations

import pytest
from plaunch_hang.stacks import (
    StackFrame,
    count_waiting,
    waits_for_process,
    waits_for_program,
    waits_for_thread,
)
from plaunch_hang.stacks.waiting import waits_for_peers

PYTHON = "/usr/lib/python3.11"
TORCH = "/venv/lib/python3.11/site-packages/torch"


def stack(*files):
    return [StackFrame("function", file, 1) for file in files]


LOADER = f"{TORCH}/utils/data/dataloader.py"
POLL = (f"{PYTHON}/selectors.py", f"{PYTHON}/multiprocessing/connection.py")
USER = ("/job/data.py", "/job/train.py")


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ((*POLL, f"{PYTHON}/multiprocessing/queues.py", LOADER, LOADER, *USER), 5),
        ((LOADER, LOADER, *USER), 2),  # between two polls
        ((f"{PYTHON}/threading.py", f"{PYTHON}/queue.py", LOADER, *USER), 3),  # pinned memory
        ((f"{PYTHON}/threading.py", f"{PYTHON}/concurrent/futures/_base.py", *USER), 1),
        ((f"{PYTHON}/selectors.py", f"{PYTHON}/subprocess.py", *USER), 1),  # takes output
        ((*POLL, f"{PYTHON}/multiprocessing/process.py"), 3),
        ((f"{PYTHON}/selectors.py", f"{PYTHON}/asyncio/base_events.py", *USER), 1),
        ((f"{TORCH}/serialization.py", *USER), 0),  # writes one record after the other
        ((f"{PYTHON}/json/encoder.py", *USER), 0),
        ((f"{TORCH}/distributed/distributed_c10d.py", *USER), 0),
        (USER, 0),
        ((), 0),
    ],
)
def test_count_of_waiting_frames(files, count):
    assert count_waiting(stack(*files)) == count


def test_polling_a_process_is_waiting():
    path = f"{PYTHON}/subprocess.py"
    names = ("Popen._try_wait", "Popen._wait", "Popen.wait", "Popen.communicate", "run")
    frames = [StackFrame(name, path, 1) for name in names]
    assert count_waiting([*frames, *stack(*USER)]) == 3
    assert count_waiting(frames[3:]) == 0


def test_stacks_that_wait_for_a_process():
    assert waits_for_process(
        stack(f"{PYTHON}/threading.py", f"{PYTHON}/concurrent/futures/_base.py", *USER)
    )
    assert waits_for_process(stack(*POLL, *USER))
    assert waits_for_process(stack(f"{PYTHON}/threading.py", f"{PYTHON}/queue.py", LOADER, *USER))
    assert waits_for_process(stack(f"{PYTHON}/subprocess.py", *USER))
    assert not waits_for_process(stack(f"{PYTHON}/threading.py", *USER))
    assert not waits_for_process(stack(*USER, *POLL))


def test_stacks_that_wait_for_a_program():
    assert waits_for_program(stack(f"{PYTHON}/selectors.py", f"{PYTHON}/subprocess.py", *USER))
    assert waits_for_program(stack(f"{PYTHON}/subprocess.py", *USER))
    assert not waits_for_program(stack(*POLL, *USER))
    assert not waits_for_program(stack(*USER, f"{PYTHON}/subprocess.py"))


@pytest.mark.parametrize(
    ("files", "waits"),
    [
        ((f"{PYTHON}/threading.py", f"{PYTHON}/threading.py", *USER), True),
        ((f"{PYTHON}/threading.py", f"{PYTHON}/queue.py", *USER), True),
        ((f"{PYTHON}/threading.py", f"{PYTHON}/concurrent/futures/_base.py", *USER), True),
        ((f"{PYTHON}/threading.py", f"{PYTHON}/multiprocessing/pool.py", *USER), True),
        ((f"{PYTHON}/selectors.py", f"{PYTHON}/asyncio/base_events.py", *USER), True),
        ((f"{PYTHON}/threading.py", f"{PYTHON}/queue.py", LOADER, *USER), False),
        ((*POLL, *USER), False),
        ((f"{PYTHON}/selectors.py", f"{PYTHON}/subprocess.py", *USER), False),
        ((*USER, f"{PYTHON}/threading.py"), False),
    ],
)
def test_stacks_that_wait_for_another_thread(files, waits):
    assert waits_for_thread(stack(*files)) is waits


def test_stacks_that_wait_for_other_ranks():
    assert waits_for_peers(stack(f"{TORCH}/distributed/distributed_c10d.py", *USER))
    assert waits_for_peers(stack(f"{TORCH}/autograd/graph.py", f"{TORCH}/_tensor.py", *USER))
    assert not waits_for_peers(stack(f"{TORCH}/nn/functional.py", *USER))
    assert not waits_for_peers(stack("/job/data.py", f"{TORCH}/distributed/x.py"))
    assert not waits_for_peers([])
