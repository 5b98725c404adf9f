"""Processes that fork and end again and again escape neither a sweep, nor a stop, nor the guard.

Reading the process table takes longer than such a process lives.
"""

from __future__ import annotations

import os
import select
import signal

import pytest
from plaunch.process.proc import Process
from plaunch.process.stopping.tree import ProcessTree

BOUND = 60.0

COMMAND_LINE = ("-m", "plaunch", "--shutdown-timeout=5")
LIBRARY = (
    "-c",
    "import os, sys\n"
    "from plaunch.process import start_processes\n"
    "argv = {0: tuple(sys.argv[1:])}\n"
    "context = start_processes('t', sys.executable, argv, log_dir=os.devnull)\n"
    "assert context.wait(60) is not None\n",
)


@pytest.fixture
def is_survived(run_program, programs, tmp_path):
    """Let a launcher end, whose worker leaves such a process; whether that is still there."""
    fifo = str(tmp_path / "fifo")

    def is_survived(launcher, kind, links, seconds, end):
        os.mkfifo(fifo)
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        try:
            poller = select.poll()
            poller.register(reader, select.POLLIN)
            words = (os.path.join(programs, "restless.py"), fifo, kind, str(links), str(seconds))
            process = run_program(*launcher, *words)
            assert poller.poll(BOUND * 1000), "the worker has begun"
            os.read(reader, 1)
            if end is not None:
                process.send_signal(end)
            process.communicate(timeout=BOUND)
            assert process.returncode in (0, 128 + signal.SIGTERM, -signal.SIGKILL)
            # Nobody waits for the guard.
            wait = BOUND * 1000 if end == signal.SIGKILL else 0
            return not poller.poll(wait)
        finally:
            os.close(reader)
            os.unlink(fifo)

    return is_survived


CASES = [
    (COMMAND_LINE, "chain", 5, 0, None),
    (COMMAND_LINE, "chain", 20, 0, None),
    (COMMAND_LINE, "roaming", 20, 0, None),
    (COMMAND_LINE, "roaming", -1, 0, None),
    (COMMAND_LINE, "roaming", -1, 600, signal.SIGTERM),
    (COMMAND_LINE, "chain", -1, 600, signal.SIGKILL),
    (COMMAND_LINE, "roaming", -1, 600, signal.SIGKILL),
    (LIBRARY, "chain", 20, 0, None),
    (LIBRARY, "roaming", -1, 0, None),
]
IDS = [
    f"{'command line' if launcher is COMMAND_LINE else 'library'} {kind} {links} {end and end.name}"
    for launcher, kind, links, _, end in CASES
]


@pytest.mark.parametrize(
    "times",
    [3, pytest.param(1000, marks=[pytest.mark.exhaustive, pytest.mark.timeout(3600)])],
)
@pytest.mark.parametrize(("launcher", "kind", "links", "seconds", "end"), CASES, ids=IDS)
def test_nothing_escapes(is_survived, launcher, kind, links, seconds, end, times):
    assert sum(is_survived(launcher, kind, links, seconds, end) for _ in range(times)) == 0


# --- how a kill goes on ---------------------------------------------------------------------------


class RestlessProcess(ProcessTree):
    """Processes of which one is replaced by another after each signal, for a number of lives."""

    def __init__(self, lives, *, missed=0, rank=0):
        self.lives = lives
        self.missed = missed
        self.rank = rank
        self.killed = []
        self.passes = 0

    def signal(self, processes, signum):
        assert signum == signal.SIGKILL
        self.killed += [process.pid for process in processes]
        return []

    def find_new(self):
        self.passes += 1
        if self.missed:
            self.missed -= 1
            return {}, True
        if not self.lives:
            return {}, False
        self.lives -= 1
        return {self.rank: [Process(1000 + self.passes)]}, False


def test_a_kill_repeats_until_no_process_is_new():
    tree = RestlessProcess(lives=3)
    killed, _ = tree.kill_all([Process(1000)])
    assert tree.killed == [process.pid for process in killed] == [1000, 1001, 1002, 1003]
    assert tree.passes == 5  # two more, which find nothing


@pytest.mark.parametrize(
    ("tree", "least", "most"),
    [
        (RestlessProcess(lives=1, missed=30), 1, 1),  # it is found after others that have ended
        (RestlessProcess(lives=0, missed=10**9), 0, 0),  # other processes come and go all the time
        (RestlessProcess(lives=10**9), 1, 99),
    ],
    ids=["late", "others", "endless"],
)
def test_a_kill_ends(tree, least, most):
    killed, refused = tree.kill_all([])
    assert least <= len(killed) <= most
    assert refused == []
    assert tree.passes < 100


def test_a_kill_leaves_other_ranks_alone():
    tree = RestlessProcess(lives=5, rank=1)
    tree.kill_all([Process(1000)], ranks={0})
    assert tree.killed == [1000]
