"""Processes that the kernel suspends, freezes, never wakes, or kills for lack of memory."""

from __future__ import annotations

import os
import signal

import pytest
from plaunch.process import Held, describe_hold
from plaunch.process.watches import (
    TIMEOUT_VARIABLE,
    HeldProcesses,
    OutOfMemoryCounter,
    UninterruptibleWatch,
    uninterruptible_timeout_of,
)

from helpers.clock import Clock
from helpers.programs import running_python
from helpers.waiting import wait_until


class World:
    def __init__(self, timeout):
        self.now = 1000.0
        self.states = {}
        self.looks = 0
        self.watch = UninterruptibleWatch(
            timeout, find_state=self.find_state, clock=lambda: self.now
        )

    def find_state(self, pid):
        self.looks += 1
        return self.states.get(pid, "")

    def find(self, **ranks):
        return self.watch.find_stuck({int(name[1:]): pid for name, pid in ranks.items()})


def test_a_worker_that_sleeps_too_long_is_stuck():
    world = World(10)
    world.states = {71: "D", 72: "S"}
    found = {}
    while not found:
        found = world.find(r0=71, r3=72)
        world.now += 0.5
        assert world.now < 1020
    assert found == {0: pytest.approx(10, abs=1)}


@pytest.mark.parametrize("is_replaced", [False, True])
def test_sleep_that_is_interrupted_or_is_anothers_begins_anew(is_replaced):
    world = World(4)
    for second in range(60):
        is_other = is_replaced and second % 4 >= 2
        is_awake = not is_replaced and second % 3 == 0
        world.states = {71: "S" if is_awake else "D", 72: "D"}
        assert world.find(r0=72 if is_other else 71) == {}
        world.now += 1


def test_several_may_be_stuck():
    world = World(2)
    world.states = {71: "D", 72: "D", 73: "R"}
    world.find(r0=71, r1=72, r2=73)
    world.now += 2
    assert world.find(r0=71, r1=72, r2=73) == {0: 2.0, 1: 2.0}


@pytest.mark.parametrize(("timeout", "looks"), [(60, 10), (4, 10), (2, 20), (0.4, 100)])
def test_it_looks_no_more_often_than_it_must(timeout, looks):
    world = World(timeout)
    for _ in range(100):
        world.find(r0=71)
        world.now += 0.1
    assert world.looks == pytest.approx(looks, abs=1)


def test_without_a_process_table_no_worker_is_stuck():
    world = World(1)
    for _ in range(10):
        assert world.find(r0=71) == {}
        world.now += 1


def test_the_real_process_table_is_read():
    """This process runs, whatever else."""
    watch = UninterruptibleWatch(0.000001)
    assert watch.find_stuck({0: os.getpid()}) == {}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2.5", 2.5), ("0", 0), ("-3", 0), ("", 0), ("inf", 0), (None, 0)],
)
def test_what_is_no_positive_number_means_never(text, seconds):
    environ = {} if text is None else {TIMEOUT_VARIABLE: text}
    assert uninterruptible_timeout_of(environ) == seconds


def test_one_that_is_suspended():
    with running_python("-c", "print(flush=True); input()") as process:
        process.stdout.readline()
        assert describe_hold(process.pid) == ""
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: describe_hold(process.pid) == "suspended", "its suspension")
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: describe_hold(process.pid) == "", "its end")
    process.wait()
    assert describe_hold(process.pid) == ""


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("state", "tracer", "how"),
    [
        ("t (tracing stop)", 99, "traced by gdb (pid 99)"),
        ("t (tracing stop)", 98, "traced by a debugger (pid 98)"),
        ("t (tracing stop)", 0, "traced by a debugger"),  # which runs in another container
        ("T (stopped)", 99, "suspended"),
        ("S (sleeping)", 99, ""),  # strace -p, perf trace: it runs
        ("R (running)", 99, ""),
    ],
)
def test_one_that_is_traced_is_held_if_it_does_not_run(tmp_path, state, tracer, how):
    write(tmp_path / "7" / "status", f"Name:\tpython\nState:\t{state}\nTracerPid:\t{tracer}\n")
    write(tmp_path / "99" / "comm", "gdb\n")
    assert describe_hold(7, str(tmp_path)) == how


@pytest.mark.parametrize(
    ("groups", "file", "text", "is_frozen"),
    [
        ("0::/job/a\n", "cgroup/job/a/cgroup.events", "populated 1\nfrozen 1\n", True),
        ("0::/job/a\n", "cgroup/job/a/cgroup.events", "populated 1\nfrozen 0\n", False),
        ("0::/job/a\n", "cgroup/job/cgroup.events", "populated 1\nfrozen 1\n", True),
        ("6:freezer:/job\n0::/\n", "cgroup/freezer/job/freezer.state", "FROZEN\n", True),
        ("6:freezer:/job\n0::/\n", "cgroup/freezer/job/freezer.state", "THAWED\n", False),
        ("0::/\n", "cgroup/other", "", False),
    ],
)
def test_one_whose_control_group_is_frozen(tmp_path, groups, file, text, is_frozen):
    proc = tmp_path / "proc"
    write(proc / "7" / "status", "Name:\tpython\nState:\tS (sleeping)\nTracerPid:\t0\n")
    write(proc / "7" / "cgroup", groups)
    write(tmp_path / "sys" / "fs" / file, text)
    expected = "frozen by its control group" if is_frozen else ""
    assert describe_hold(7, str(proc), str(tmp_path)) == expected


# --- since when -----------------------------------------------------------------------------------


@pytest.fixture
def watched():
    """A watch of processes, what holds them, and its clocks: both at the same time."""
    hows, clock = {}, Clock()
    watch = HeldProcesses(describe=lambda pid: hows.get(pid, ""), clock=clock, wall_clock=clock)
    return watch, hows, clock


def test_a_hold_keeps_its_beginning(watched):
    watch, hows, clock = watched
    assert watch.sample([100, 101]) == {}
    hows[101] = "suspended"
    first = Held("suspended", clock.now, 101)
    assert watch.sample([100, 101]) == {101: first}
    clock.now += 60
    assert watch.sample([101]) == {101: first}
    assert watch.sample([100]) == {}
    assert watch.sample([101]) == {101: first}


def test_another_hold_begins_anew(watched):
    watch, hows, clock = watched
    hows[101] = "suspended"
    watch.sample([101])
    clock.now += 60
    hows[101] = "traced by gdb (pid 9)"
    assert watch.sample([101]) == {101: Held("traced by gdb (pid 9)", clock.now, 101)}
    hows.clear()
    watch.sample([101])
    clock.now += 60
    hows[101] = "traced by gdb (pid 9)"
    assert watch.sample([101])[101].since == clock.now
    hows[102] = "traced by gdb (pid 9)"
    clock.now += 60
    assert watch.sample([102])[102].since == clock.now


def test_a_hold_is_noticed_without_a_query(watched):
    watch, hows, clock = watched
    hows[101] = "suspended"
    watch.sample_if_due([101])
    clock.now += 5
    seen = clock.now
    watch.sample_if_due([101])
    clock.now += 60
    assert watch.sample([101])[101].since == seen


def test_checks_without_a_query_are_rare():
    clock, looks = Clock(), []
    watch = HeldProcesses(describe=lambda pid: looks.append(pid) or "", clock=clock)
    for _ in range(100):
        clock.now += 0.5
        watch.sample_if_due([7, 8])
    assert len(looks) == 20


# --- the out-of-memory killer's counters ----------------------------------------------------------

V2 = "low 0\nhigh 0\nmax 12\noom 3\noom_kill {}\noom_group_kill 0\n"
V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
VMSTAT = "nr_free_pages 5\noom_kill {}\n"

TREES = {
    "version 2": ("0::/jobs/a\n", "sys/fs/cgroup/jobs/a/memory.events", V2),
    "version 2 in a container": ("0::/../host/path\n", "sys/fs/cgroup/memory.events", V2),
    "version 1": (
        "5:devices:/x\n4:memory:/jobs/a\n0::/\n",
        "sys/fs/cgroup/memory/jobs/a/memory.oom_control",
        V1,
    ),
    "version 1 in a container": (
        "4:memory:/docker/ab\n",
        "sys/fs/cgroup/memory/memory.oom_control",
        V1,
    ),
    "version 1, mounted with others": (
        "4:memory,hugetlb:/jobs/a\n",
        "sys/fs/cgroup/memory,hugetlb/jobs/a/memory.oom_control",
        V1,
    ),
    "a group that does not count memory": (
        "0::/jobs/a\n",
        "sys/fs/cgroup/jobs/memory.events",
        V2,
    ),
    "no group counts": ("", "proc/vmstat", VMSTAT),
}


@pytest.mark.parametrize("name", TREES)
def test_a_counter_that_moves_is_noticed(tmp_path, name):
    groups, path, text = TREES[name]
    write(tmp_path / "proc/self/cgroup", groups)
    write(tmp_path / path, text.format(7))
    watch = OutOfMemoryCounter(str(tmp_path))
    assert not watch.has_killed()
    write(tmp_path / path, text.format(8))
    assert watch.has_killed()
    assert watch.has_killed(), "others may be asked about, too"


def test_the_groups_own_counter_comes_before_the_systems(tmp_path):
    """Somebody else's death is no reason to blame the killer for ours."""
    write(tmp_path / "proc/self/cgroup", "0::/jobs/a\n")
    write(tmp_path / "sys/fs/cgroup/jobs/a/memory.events", V2.format(0))
    write(tmp_path / "proc/vmstat", VMSTAT.format(1))
    watch = OutOfMemoryCounter(str(tmp_path))
    write(tmp_path / "proc/vmstat", VMSTAT.format(2))
    assert not watch.has_killed()


@pytest.mark.parametrize("text", ["", "oom_kill\n", "oom_kill many\n", "\x00\xff"])
def test_without_a_counter_nothing_is_claimed(tmp_path, text):
    write(tmp_path / "proc/vmstat", text)
    watch = OutOfMemoryCounter(str(tmp_path))
    assert not watch.has_killed()


def test_a_counter_that_goes_away_claims_nothing(tmp_path):
    write(tmp_path / "proc/vmstat", VMSTAT.format(1))
    watch = OutOfMemoryCounter(str(tmp_path))
    (tmp_path / "proc/vmstat").unlink()
    assert not watch.has_killed()
    write(tmp_path / "proc/vmstat", VMSTAT.format(9))
    assert not watch.has_killed()


def test_this_systems_counters_can_be_read():
    assert not OutOfMemoryCounter().has_killed()
