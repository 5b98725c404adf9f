"""The stacks of workers that are slow to end, read before SIGKILL."""

from __future__ import annotations

import signal
import threading

import pytest
from plaunch.agent import WorkerInfo, notifications
from plaunch.plugin import PluginContext
from plaunch.process.stopping.stop_sequence import StopStep
from plaunch_hang.stacks import KernelState, ProcessStacks, StackFrame, ThreadStack
from plaunch_hang.stacks.slow_stops import SlowStops

from helpers.faults import raising
from helpers.groups import make_group
from helpers.logs_specs import WithFolder
from helpers.waiting import wait_until

WORKERS = tuple(WorkerInfo(rank, rank + 4, rank + 4, 8, 8, pid=100 + rank) for rank in range(2))
GROUP = make_group(attempt=1, workers=WORKERS)
FINISHED = notifications.AgentFinished(GROUP, None)
BOUND = 60.0


def step(name, *ranks, seconds=0.0):
    return notifications.Stopping(GROUP, StopStep(name, signal.SIGTERM, ranks, seconds))


def stacks_at(function):
    main = ThreadStack("MainThread", 1, (StackFrame(function, "train.py", 6),), is_main=True)
    return ProcessStacks(1, threads=(main,), kernel=KernelState("S"))


class Takes:
    """Returns stacks, and records the processes."""

    def __init__(self):
        self.pids = []
        self.has_taken = threading.Event()

    def __call__(self, pids, *, timeout):
        self.pids.append(dict(pids))
        self.has_taken.set()
        return {rank: stacks_at("load_batch") for rank in pids}


def slow_stops(take, grace, logs_specs=None):
    settings = {"shutdown_timeout": grace, "logs_specs": logs_specs}
    return SlowStops(PluginContext("job", "role", "host", settings=settings), take)


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "plaunch-slow-stop"]


def test_workers_that_get_sigkill_are_logged_with_their_stacks(tmp_path, caplog):
    take = Takes()
    stops = slow_stops(take, 0.02, WithFolder(str(tmp_path)))
    stops(step("waiting", 1, seconds=0.02))
    assert take.has_taken.wait(BOUND)
    assert "load_batch" not in caplog.text  # it may still end in time
    stops(step("killed", 1))
    stops(step("gone", 0, 1))
    stops(FINISHED)
    assert take.pids == [{5: 101}]
    assert "  1 rank: 5 load_batch (train.py:6)" in caplog.messages
    (folder,) = (tmp_path / "stacks").iterdir()
    assert folder.name == "attempt_1-1-sigkill"
    assert sorted(file.name for file in folder.iterdir()) == ["rank_5.txt", "summary.txt"]
    assert not threads()


def test_workers_that_end_in_time_are_not_logged(caplog):
    take = Takes()
    stops = slow_stops(take, 0.02)
    stops(step("waiting", 0, seconds=0.02))
    assert take.has_taken.wait(BOUND)
    stops(step("gone", 0))
    stops(FINISHED)
    assert caplog.messages == []
    assert not threads()


@pytest.mark.parametrize("end", [step("gone", 0), step("killed", 0)], ids=["ended", "skipped"])
def test_stacks_are_not_read_long_before_the_end_of_the_grace(end):
    take = Takes()
    stops = slow_stops(take, BOUND)
    stops(step("waiting", 0, seconds=1.0))
    stops(end)
    stops(step("gone", 0))
    wait_until(lambda: not threads(), threads)
    assert take.pids == []


def test_without_an_end_of_the_grace_nothing_is_read():
    take = Takes()
    stops = slow_stops(take, float("inf"))
    stops(step("waiting", 0))
    assert not threads()
    assert take.pids == []


def test_stacks_are_read_in_each_stop():
    take = Takes()
    stops = slow_stops(take, 0.02)
    for _ in range(2):
        stops(step("waiting", 0, seconds=0.02))
        assert take.has_taken.wait(BOUND)
        take.has_taken.clear()
        stops(step("killed", 0))
        stops(step("gone", 0))
        stops(notifications.BeforeRendezvous(GROUP))
    assert take.pids == [{4: 100}] * 2


def test_a_thread_cannot_be_started(monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", raising(RuntimeError("no more threads")))
    take = Takes()
    stops = slow_stops(take, 0.02)
    stops(step("waiting", 0))
    stops(step("killed", 0))
    stops(FINISHED)
    assert take.pids == []
