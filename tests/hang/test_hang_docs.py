"""The truth table in docs/hangs.md: each row is played with made-up processes."""

from __future__ import annotations

import re
import time

import pytest
from plaunch.plugin import PluginContext
from plaunch.process import Held
from plaunch_hang.extension import HangExtension
from plaunch_hang.process import ComputeWatch, ProcessFacts, ProcessorTime, ThreadTime
from plaunch_hang.sampler import WorkerSampler
from plaunch_hang.snapshots import StackSnapshots
from plaunch_hang.stacks import KernelState, ProcessStacks, StackFrame, ThreadStack

from helpers.hangs import Control
from helpers.sources import ROOT

PAUSE, SAMPLES = 5.0, 70  # for a timeout of 100 seconds; 3.5 timeouts
ME, PEER, CHILD = 100, 101, 200

PYTHON = "/usr/lib/python3.11/"
SITE = "/venv/lib/python3.11/site-packages/"
STEP = StackFrame("step", "/job/train.py", 7)
MODULE = StackFrame("<module>", "/job/train.py", 20)
ALL_REDUCE = StackFrame("all_reduce", f"{SITE}torch/distributed/distributed_c10d.py", 2800)
BARRIER = StackFrame("breakpoint", f"{SITE}torch/distributed/__init__.py", 90)
LOADER = StackFrame("_try_get_data", f"{SITE}torch/utils/data/dataloader.py", 1200)
PROGRAM = StackFrame("Popen.wait", f"{PYTHON}subprocess.py", 1264)
JOINS = StackFrame("Thread.join", f"{PYTHON}threading.py", 1119)
PDB = StackFrame("Pdb.interaction", f"{PYTHON}pdb.py", 433)
BY_PDB = StackFrame("Bdb.run", f"{PYTHON}bdb.py", 600)
DEBUGPY = StackFrame("wait_for_client", f"{SITE}debugpy/server/api.py", 325)
BY_DEBUGPY = StackFrame("run_file", f"{SITE}debugpy/server/cli.py", 358)
PYDEVD = StackFrame("do_wait_suspend", "/opt/pycharm/helpers/pydev/pydevd.py", 2000)


class World(ProcessFacts):
    """Workers and their processes, as the launcher reads them; a test changes its attributes.

    Attributes:
        frames: of the main threads, by process; None if they cannot be read.
        others: the frames of another thread of the worker.
        values: digests of variables, by process.
        used, waited: seconds of CPU time, and in a run queue, by process.
        system: the fraction of CPU time in system calls.
        kernels: the states in the kernel, by process.
        calls: the resource usage and system calls, by process.
        below: the parents of descendants of the worker.
        uses_gpu: whether the worker uses a GPU.
    """

    def __init__(self, pids):
        super().__init__()
        self.now = 1000.0
        self.frames = dict.fromkeys(pids.values(), (STEP, MODULE))
        self.others = ()
        self.values, self.calls, self.kernels, self.below = {}, {}, {}, {}
        self.used, self.waited = {}, {}
        self.system, self.uses_gpu = 0.0, False
        self.control = Control(pids)
        context = PluginContext("job", "role", "node")
        self.extension = HangExtension(
            context,
            100.0,
            "stop",
            sampler=WorkerSampler(
                self.stacks,
                self.stacks,
                lambda asked: {pid: self.values.get(pid, 0) for pid in asked},
                ComputeWatch(self.read_times, lambda pid: self.uses_gpu, lambda: self.now),
                self,
            ),
            snapshots=StackSnapshots(context, self.stacks),
        )

    # --- what the launcher reads ------------------------------------------------------------------

    def stacks(self, pids):
        return {rank: self._stack(pid) for rank, pid in pids.items()}

    def _stack(self, pid):
        frames, kernel = self.frames.get(pid), self.kernels.get(pid, KernelState("S", "futex"))
        if frames is None:
            return ProcessStacks(pid, reason="not allowed", kernel=kernel)
        threads = [ThreadStack("MainThread", pid, frames, is_main=True)]
        if self.others and pid == ME:
            threads.append(ThreadStack("Thread-1", pid + 50, self.others))
        return ProcessStacks(pid, threads=tuple(threads), kernel=kernel)

    def read_times(self, trees):
        return {pid: self._time(pid, below) for pid, below in trees.items()}

    def _time(self, pid, below):
        used = self.used.get(pid, 0.0)
        user, system = used * (1 - self.system), used * self.system
        children = {
            one: ThreadTime(self.used.get(one, 0), self.waited.get(one, 0)) for one in below
        }
        return ProcessorTime(
            user=user,
            system=system,
            threads_user=user + self.used.get(pid + 50, 0.0),
            threads_system=system,
            children=sum(one.used for one in children.values()),
            threads={
                pid: ThreadTime(used, self.waited.get(pid, 0.0)),
                pid + 50: ThreadTime(self.used.get(pid + 50, 0.0)),
            },
            child_threads=children,
            descendants=len(below),
        )

    def find_parents(self, pids):
        return {pid: self.below if pid == ME else {} for pid in pids}

    def read_uses(self, pids):
        return {pid: self.calls.get(pid, 0) for pid in pids}

    def read_use(self, pid):
        return self.calls.get(pid, 0)

    def read_written(self, pid):
        return (self.calls.get("output", 0),)

    # --- what happens -----------------------------------------------------------------------------

    def move(self, pid=ME):
        self.frames[pid] = (STEP._replace(line=self.frames[pid][0].line + 1), MODULE)

    def compute(self, pid=ME, share=1.0, waited=0.0):
        self.used[pid] = self.used.get(pid, 0.0) + share * PAUSE
        self.waited[pid] = self.waited.get(pid, 0.0) + waited * PAUSE

    def count(self, table, key=ME):
        table[key] = table.get(key, 0) + 1

    def hold(self, how):
        self.control.holds[0] = Held(how, time.time(), ME)

    def beat(self, number):
        variable = self.extension._heartbeats.variable(0)
        self.extension._ranks[0] = 0
        path, _, offset = variable.rpartition("@")
        with open(path, "r+b", buffering=0) as file:
            file.seek(int(offset))
            file.write(b"".join(n.to_bytes(8, "little") for n in (1, number, 0, 0, 0, 0)))

    def run(self, happens=lambda: None):
        """Take samples while something happens; return what follows."""
        before = len(self.control.reported), len(self.control.said)
        for _ in range(SAMPLES):
            happens()
            self.now += PAUSE
            self.extension.sample(self.control, self.now, PAUSE)
        if self.control.reported[before[0] :]:
            return "hang"
        said = " ".join(self.control.said[before[1] :])
        return "held" if "--hang-timeout is paused meanwhile" in said else "goes on"


def always(**attributes):
    """A worker whose facts stay as they are."""

    def begin(world):
        for name, value in attributes.items():
            kept = getattr(world, name)
            setattr(world, name, {**kept, **value} if isinstance(kept, dict) else value)
        return lambda: None

    return begin


def happens(action, **attributes):
    """A worker to which something happens before each sample."""

    def begin(world):
        always(**attributes)(world)
        return lambda: action(world)

    return begin


def kernel(**fields):
    return {ME: KernelState(**{"state": "S", **fields})}


def held(how):
    return lambda world: world.hold(how) or (lambda: None)


def silent(world, frames=None, happens=lambda world: None):
    """A worker that sends heartbeats, and then none."""
    world.beat(1)
    world.extension.sample(world.control, world.now, PAUSE)
    if frames:
        world.frames[ME] = frames
    return lambda: happens(world)


def beats(world):
    number = iter(range(1, 10_000))
    return lambda: world.beat(next(number))


PEERS = {PEER: (ALL_REDUCE, STEP, MODULE)}
LOADS = {ME: (LOADER, STEP, MODULE), CHILD: (STEP, MODULE)}
RUNS = {ME: (PROGRAM, STEP, MODULE)}
BELOW = {CHILD: ME}
UNREADABLE = {ME: None}
NO_MAIN = {"frames": UNREADABLE, "kernels": kernel(state="Z")}
UNSEEN = "cannot be read (py-spy, rights, not Python)"
LINES, STILL = "stays on its lines", "does not move"
STARVED = "other programs use the CPUs, and it hardly gets one"

ROWS = {
    ("is on other lines than before", ""): happens(World.move),
    (f"{LINES}, and its variables change", ""): happens(lambda w: w.count(w.values)),
    ("computes on one line", ""): happens(World.compute),
    ("computes on one line", STARVED): happens(lambda w: w.compute(ME, 0.01, 0.98)),
    (LINES, "it writes output"): happens(lambda w: w.count(w.calls, "output")),
    (LINES, "it sends heartbeats"): beats,
    (LINES, "a process that it has started computes"): happens(
        lambda w: w.compute(CHILD), below=BELOW
    ),
    (LINES, "a process that it has started computes, and hardly gets a CPU"): happens(
        lambda w: w.compute(CHILD, 0.01, 0.98), below=BELOW
    ),
    (LINES, "a helper that has left it (forked twice) computes"): happens(
        lambda w: w.compute(CHILD), below=BELOW
    ),
    (UNSEEN, "it uses CPU time, or makes other system calls"): happens(
        lambda w: w.count(w.calls), frames=UNREADABLE
    ),
    ("has ended", "another thread of the process computes"): happens(
        lambda w: w.compute(ME + 50), **NO_MAIN
    ),
    ("waits for a process of a `DataLoader`", "that process moves"): happens(
        lambda w: w.move(CHILD), frames=LOADS, below=BELOW
    ),
    ("waits for a program", "that program uses CPU time"): happens(
        lambda w: w.count(w.calls, CHILD), frames=RUNS, below=BELOW
    ),
    ("waits for a thread", "that thread moves"): happens(
        # The digest of the worker's variables has those of its threads.
        lambda w: w.count(w.values),
        frames={ME: (JOINS, STEP, MODULE)},
        others=(STEP,),
    ),
    ("is in a collective operation", "another rank moves"): happens(
        lambda w: w.move(PEER), frames={ME: PEERS[PEER], PEER: (STEP, MODULE)}
    ),
    ("is suspended, as by `SIGSTOP`", ""): held("suspended"),
    ("is stopped by gdb or another tracer", ""): held("traced by gdb (pid 9)"),
    ("is in a frozen control group", ""): held("frozen by its control group"),
    ("is at a prompt of pdb, ipdb, pudb, IPython or `code.interact()`", ""): always(
        frames={ME: (PDB, STEP, MODULE)}
    ),
    ("waits in the barrier of `torch.distributed.breakpoint()`", "another rank is at its prompt"): (
        always(frames={ME: (ALL_REDUCE, STEP, MODULE), PEER: (PDB, BARRIER, STEP, MODULE)})
    ),
    ("waits for a client of debugpy, or is at a breakpoint of debugpy or PyCharm", ""): always(
        frames={ME: (DEBUGPY, STEP, MODULE), PEER: (PYDEVD, STEP, MODULE)}
    ),
    ("waits for input from a terminal", ""): always(kernels=kernel(terminal="/dev/pts/3")),
    (STILL, "pdb runs the script (`-m pdb`)"): always(frames={ME: (STEP, MODULE, BY_PDB)}),
    (STILL, "gdb or lldb is connected to it"): always(kernels=kernel(tracer=9, tracer_name="gdb")),
    ("waits for a process", "that process is held"): always(
        frames=RUNS, below=BELOW, kernels={CHILD: KernelState("T")}
    ),
    ("sends no more heartbeats", "it is at a prompt of pdb"): (
        lambda world: silent(world, (PDB, STEP, MODULE))
    ),
    (f"{LINES}, and nothing changes", ""): always(),
    ("polls on one line with system calls", ""): happens(World.compute, system=0.6),
    ("waits for a GPU in a loop", ""): happens(World.compute, uses_gpu=True),
    ("waits for a process of a `DataLoader`", "that process stays on its lines"): always(
        frames=LOADS, below=BELOW
    ),
    ("waits for a program", "that program does nothing"): always(frames=RUNS, below=BELOW),
    ("waits for a thread", "that thread waits as well"): always(
        frames={ME: (JOINS, STEP, MODULE)}, others=(JOINS,)
    ),
    ("is in a collective operation", "all other ranks are, too"): always(
        frames={ME: PEERS[PEER], **PEERS}
    ),
    ("sleeps uninterruptibly (state D)", ""): always(
        frames=UNREADABLE, kernels=kernel(state="D", place="nfs_wait")
    ),
    (UNSEEN, "it uses no CPU time, and stays in its system call"): always(frames=UNREADABLE),
    ("has ended", "no other thread of the process computes"): always(**NO_MAIN),
    (STILL, "`strace` or a sandbox traces it"): always(
        kernels=kernel(tracer=9, tracer_name="strace")
    ),
    (STILL, "debugpy or PyCharm runs the script, and has not stopped it"): always(
        frames={ME: (STEP, MODULE, BY_DEBUGPY)}
    ),
    ("waits for input from a pipe or a socket", ""): always(kernels=kernel(place="pipe_read")),
    ("sends no more heartbeats", "its lines change"): (
        lambda world: silent(world, happens=World.move)
    ),
}


def read_table():
    text = (ROOT / "docs/hangs.md").read_text()
    section = text.partition("## Truth table\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.*?) ?\| (\w+) \|$", section, re.MULTILINE)
    return {(main, meanwhile): verdict for main, meanwhile, verdict in rows}


def test_the_table_has_all_rows():
    table = read_table()
    assert list(table) == list(ROWS)
    assert set(table.values()) == {"progress", "waiting", "held", "hang"}


@pytest.mark.parametrize("row", ROWS, ids=" - ".join)
def test_a_row(row):
    verdict = read_table()[row]
    world = World({0: ME, 1: PEER} if "rank" in f"{row}" or "PyCharm" in row[0] else {0: ME})
    try:
        action = ROWS[row](world)
        expected = "goes on" if verdict in ("progress", "waiting") else verdict
        assert world.run(action) == expected, world.control.said
        if expected == "goes on":
            # Without what happens, it is a hang.
            assert world.run() == "hang"
    finally:
        world.extension.stop(None)
