"""The progress of workers, from made-up samples."""

from __future__ import annotations

import struct

import pytest
from plaunch.agent import Progress, WorkerInfo
from plaunch_hang.heartbeats import HeartbeatState, StepTracker, format_steps

from helpers.hangs import Node

PIDS = {4: 104, 5: 105}


def beats(first, second=None):
    return {4: first, 5: second or HeartbeatState()}


def test_a_rate_needs_two_samples():
    steps = StepTracker()
    assert steps.sample(100.0, PIDS, beats(HeartbeatState(3, 2, 10))) == {4: Progress(2, 10, 0.0)}
    found = steps.sample(110.0, PIDS, beats(HeartbeatState(8, 7, 10), HeartbeatState(1)))
    assert found == {4: Progress(7, 10, 0.5)}
    assert found[4].seconds_left == 6.0


def test_only_the_last_samples_count():
    steps = StepTracker()
    for number in range(100):
        found = steps.sample(
            10.0 * number, PIDS, beats(HeartbeatState(1, 0 if number < 50 else number))
        )
    assert found[4].rate == 0.1


@pytest.mark.parametrize("what", ["another epoch", "another round"])
def test_rates_start_over(what):
    steps = StepTracker()
    steps.sample(100.0, PIDS, beats(HeartbeatState(9, 8)))
    if what == "another epoch":
        assert steps.sample(110.0, PIDS, beats(HeartbeatState(10, 0))) == {4: Progress(0)}
    else:
        assert steps.sample(110.0, {4: 204}, {4: HeartbeatState(20, 18)}) == {4: Progress(18)}


@pytest.mark.parametrize(
    ("progress", "left"),
    [
        (Progress(5, None, 1.0), None),
        (Progress(5, 9), None),
        (Progress(9, 5, 1.0), 0.0),
        (Progress(5, 9, 0.5), 8.0),
    ],
)
def test_the_remaining_time(progress, left):
    assert progress.seconds_left == left


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ({}, ""),
        ({0: Progress(3)}, "last step: 3 (rank 0)"),
        (
            {0: Progress(4, 20), 1: Progress(4, 20), 2: Progress(3, 20), 3: Progress(4, 20)},
            "last step: 3 of 20 (rank 2), 4 of 20 (ranks 0-1,3)",
        ),
        (
            {rank: Progress(rank) for rank in range(9)},
            "last step: 0 (rank 0), 1 (rank 1), 2 (rank 2), ..., 8 (rank 8)",
        ),
    ],
)
def test_steps_in_short(steps, text):
    assert format_steps(steps) == text


def test_a_hang_is_logged_with_the_last_steps():
    node = Node()
    try:
        variable = node.extension.environment(WorkerInfo(1, 5, 0, 1, 1))["PLAUNCH_HEARTBEATS"]
        path, _, offset = variable.rpartition("@")
        with open(path, "r+b", buffering=0) as file:
            file.seek(int(offset))
            file.write(struct.pack("=4q", 1, 3, 12 + 1, 20 + 1))
        node.sample(30)
        assert node.control.progress == {5: Progress(12, 20)}
        assert node.control.said[-1] == "last step: 12 of 20 (rank 5)"
    finally:
        node.close()
