"""Sampling a worker during its imports."""

from __future__ import annotations

import sys
import threading

import pytest
from plaunch.agent import WorkerExit, WorkerInfo, notifications
from plaunch.process.stopping.stop_sequence import StopStep
from plaunch_events.import_watch import ImportWatch, read_stack

from helpers.clock import Clock
from helpers.faults import raising
from helpers.gates import gate  # noqa: F401 - a fixture
from helpers.groups import make_group
from helpers.programs import running_python
from helpers.stacks import readable_stacks  # noqa: F401 - a fixture
from helpers.waiting import wait_until

SCRIPT = ("<module>", "train.py")
TORCH = [
    SCRIPT,
    ("_find_and_load", "<frozen importlib._bootstrap>"),
    ("<module>", "/lib/site-packages/torch/__init__.py"),
]
IMPORTS = [TORCH] * 5 + [[SCRIPT]] * 2
WORKER = WorkerInfo(
    local_rank=0, global_rank=0, role_rank=0, world_size=1, role_world_size=1, pid=77
)
GROUP = make_group(workers=(WORKER,))
STARTED = notifications.WorkersStarted(GROUP)
ENDS = [
    notifications.WorkerExitSeen(GROUP, WorkerExit(WORKER, 0, False)),
    notifications.Stopping(GROUP, StopStep("signalled", 15, (0,), 0.0)),
    notifications.BeforeRendezvous(GROUP),
]


class StackScript:
    """Returns the stacks of a worker one after the other, every half second."""

    def __init__(self, *stacks):
        self.stacks = stacks
        self.clock = Clock()
        self.pids = []
        self._left = []

    def watch(self):
        return ImportWatch(self, pause=0.0, clock=self.clock)

    def __call__(self, pid):
        self.pids.append(pid)
        if not self._left:
            self._left = [*self.stacks]
        self.clock.now += 0.5
        stack = self._left.pop(0)
        if isinstance(stack, Exception):
            raise stack
        return stack


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "plaunch-imports"]


def wait_for_threads():
    wait_until(lambda: not threads(), threads)


def play(watch, rounds):
    """Play rounds whose workers live until sampling stops."""
    for _ in range(rounds):
        watch(STARTED)
        wait_for_threads()
        watch(ENDS[0])


@pytest.mark.parametrize(
    ("stacks", "rounds", "looks", "is_advised"),
    [
        (IMPORTS, 2, 14, False),
        (IMPORTS, 3, 21, True),
        (IMPORTS, 5, 21, True),  # more are not needed
        ([[SCRIPT]] * 2, 12, 20, False),  # ten rounds are enough
        # A failed sample only makes the next one count for more.
        ([TORCH, OSError("torn"), TORCH, OSError("torn"), TORCH, *IMPORTS[5:]], 3, 21, True),
    ],
)
def test_each_restart_is_sampled_until_the_advice_is_known(stacks, rounds, looks, is_advised):
    seen = StackScript(*stacks)
    watch = seen.watch()
    play(watch, rounds)
    assert bool(watch.close()) == is_advised
    assert seen.pids == [77] * looks


@pytest.mark.parametrize("end", ENDS, ids=lambda end: type(end).__name__)
def test_the_end_of_a_round_does_not_wait_for_a_sample(end, gate):  # noqa: F811
    entered = threading.Event()

    def look(pid):
        entered.set()
        gate.wait()
        return TORCH

    watch = ImportWatch(look, pause=0.0)
    watch(STARTED)
    entered.wait()
    watch(end)  # which would wait for ever
    assert threads()
    gate.set()
    wait_for_threads()
    assert watch.close() == ""


def test_a_round_may_be_too_short_for_a_stack(caplog):
    """Then the next one is sampled too."""
    caplog.set_level("DEBUG", "plaunch")
    watch = None

    def look(pid):
        pids.append(pid)
        watch(ENDS[0])
        raise OSError("no interpreter yet")

    pids = []
    watch = ImportWatch(look, pause=0.0)
    play(watch, 2)
    assert pids == [77, 77]
    assert caplog.text.count("cannot be sampled: no interpreter yet") == 2


@pytest.mark.parametrize(
    ("error", "looks"),
    [
        (FileNotFoundError("py-spy is not installed"), 1),
        (OSError("the system does not allow it"), 40),
    ],
    ids=lambda value: type(value).__name__,
)
def test_sampling_stops_where_it_is_impossible(error, looks, caplog):
    caplog.set_level("DEBUG", "plaunch")
    seen = StackScript(error)
    watch = seen.watch()
    play(watch, 3)
    assert watch.close() == ""
    assert len(seen.pids) == looks
    (record,) = caplog.records
    assert record.levelname == "DEBUG"
    assert str(error) in record.message


def test_an_endless_import_is_sampled_for_a_bounded_time():
    seen = StackScript(TORCH)
    watch = seen.watch()
    play(watch, 1)
    assert len(seen.pids) == 240  # looks in two minutes


def test_a_thread_cannot_be_started(monkeypatch, caplog):
    caplog.set_level("DEBUG", "plaunch")
    monkeypatch.setattr(threading.Thread, "start", raising(RuntimeError("no more threads")))
    watch = ImportWatch(raising(AssertionError("nobody looks")))
    watch(STARTED)
    assert watch.close() == ""
    assert "no more threads" in caplog.text


def test_a_worker_without_a_process_is_not_sampled():
    watch = ImportWatch(raising(AssertionError("nobody looks")), pause=0.0)
    watch(notifications.WorkersStarted(make_group()))
    assert not threads()


# --- a real process -------------------------------------------------------------------------------


@pytest.mark.usefixtures("readable_stacks")
def test_a_real_process():
    with running_python("-c", "def wait(): input()\nprint(flush=True)\nwait()") as process:
        process.stdout.readline()
        wait_until(
            lambda: [name for name, _ in read_stack(process.pid)] == ["<module>", "wait"],
            lambda: read_stack(process.pid),
        )
        with pytest.raises(OSError, match="it has ended"):
            read_stack(2**22 + 1)  # above every process


def test_without_py_spy_there_is_no_stack(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="py-spy is not installed"):
        read_stack(1)
