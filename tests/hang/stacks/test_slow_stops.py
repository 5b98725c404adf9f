"""Workers that are slow to end are looked at before SIGKILL, and told of if they get it."""

from __future__ import annotations

import signal
import threading
from types import SimpleNamespace

import pytest
from plaunch.agent import WorkerInfo, notifications
from plaunch.process.stopping.stop_sequence import StopStep
from plaunch_hang.stacks import Frame, KernelState, ProcessStacks, ThreadStack
from plaunch_hang.stacks.slow_stops import SlowStops

from helpers.faults import raising
from helpers.groups import make_group
from helpers.waiting import wait_until

WORKERS = tuple(WorkerInfo(rank, rank + 4, rank + 4, 8, 8, pid=100 + rank) for rank in range(2))
GROUP = make_group(attempt=1, workers=WORKERS)
FINISHED = notifications.AgentFinished(GROUP, None)
BOUND = 60.0


def step(name, *ranks, seconds=0.0):
    return notifications.Stopping(GROUP, StopStep(name, signal.SIGTERM, ranks, seconds))


def stacks_at(function):
    main = ThreadStack("MainThread", 1, (Frame(function, "train.py", 6),), is_main=True)
    return ProcessStacks(1, threads=(main,), kernel=KernelState("S"))


class Takes:
    """Looks at processes, and remembers whose."""

    def __init__(self):
        self.pids = []
        self.has_taken = threading.Event()

    def __call__(self, pids, *, timeout):
        self.pids.append(dict(pids))
        self.has_taken.set()
        return {rank: stacks_at("load_batch") for rank in pids}


def slow_stops(take, grace, logs_specs=None):
    return SlowStops(
        SimpleNamespace(shutdown_timeout=grace, logs_specs=logs_specs, run_id="job"), take
    )


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "plaunch-slow-stop"]


def test_who_gets_sigkill_is_told_with_the_place(tmp_path, caplog):
    take = Takes()
    specs = SimpleNamespace(create_run_dir=lambda run_id: str(tmp_path / run_id))
    stops = slow_stops(take, 0.02, specs)
    stops(step("waiting", 1, seconds=0.02))
    assert take.has_taken.wait(BOUND)
    assert "load_batch" not in caplog.text  # it may still end in time
    stops(step("killed", 1))
    stops(step("gone", 0, 1))
    stops(FINISHED)
    assert take.pids == [{5: 101}]
    assert "  1 rank: 5 load_batch (train.py:6)" in caplog.messages
    (folder,) = (tmp_path / "job" / "stacks").iterdir()
    assert folder.name == "attempt_1-1-sigkill"
    assert sorted(file.name for file in folder.iterdir()) == ["rank_5.txt", "summary.txt"]
    assert not threads()


def test_who_ends_in_time_is_not_spoken_of(caplog):
    take = Takes()
    stops = slow_stops(take, 0.02)
    stops(step("waiting", 0, seconds=0.02))
    assert take.has_taken.wait(BOUND)
    stops(step("gone", 0))
    stops(FINISHED)
    assert caplog.messages == []
    assert not threads()


@pytest.mark.parametrize("end", [step("gone", 0), step("killed", 0)], ids=["ended", "skipped"])
def test_long_before_the_end_of_the_grace_nobody_looks(end):
    stops = slow_stops(raising(AssertionError("nobody looks")), BOUND)
    stops(step("waiting", 0, seconds=1.0))
    stops(end)
    stops(step("gone", 0))
    wait_until(lambda: not threads(), threads)


def test_a_grace_without_an_end_has_nothing_before_it():
    stops = slow_stops(raising(AssertionError("nobody looks")), float("inf"))
    stops(step("waiting", 0))
    assert not threads()


def test_each_stop_has_its_own_look():
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


def test_it_does_without_a_thread(monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", raising(RuntimeError("no more threads")))
    stops = slow_stops(raising(AssertionError("nobody looks")), 0.02)
    stops(step("waiting", 0))
    stops(step("killed", 0))
    stops(FINISHED)
