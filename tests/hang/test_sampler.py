"""Samples of workers, with made-up stacks, and of real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest
from plaunch_hang.heartbeats import HeartbeatState
from plaunch_hang.process import (
    ComputeWatch,
    ProcessFacts,
    ThreadTime,
    read_processor_times,
    uses_gpu,
)
from plaunch_hang.sampler import WorkerSampler
from plaunch_hang.stacks import ProcessStacks, StackFrame, ThreadStack
from plaunch_hang.stacks.variables import read_all_variables, read_variables
from plaunch_hang.watch import has_moved

from helpers.programs import running_python
from helpers.waiting import wait_until

ME = os.getpid()
FACTS = ProcessFacts()
PYTHON = (
    ThreadStack("MainThread", ME, (StackFrame("step", "/home/me/train.py", 7),), is_main=True),
)


class Stacks:
    """The stacks of processes, by pid; records the calls."""

    def __init__(self, **seen):
        self.seen = {int(name[1:]): stacks for name, stacks in seen.items()}
        self.mains, self.takes = [], []

    def own_stacks(self, pids):
        self.mains.append(dict(pids))
        return {rank: self.seen[pid] for rank, pid in pids.items()}

    def take(self, pids):
        self.takes.append(dict(pids))
        return {rank: self.seen[pid] for rank, pid in pids.items()}


def make_looks(stacks, **options):
    given = {
        "read_variables": lambda pids: {pid: f"variables of {pid}" for pid in pids},
        "computing": ComputeWatch(read=lambda pids: {}),
        **options,
    }
    return WorkerSampler(stacks.own_stacks, stacks.take, **given)


def sample(sampler, pids, *, beats=None, deep=()):
    beats = {rank: (beats or {}).get(rank, HeartbeatState()) for rank in pids}
    return sampler.sample(pids, beats, dict.fromkeys(pids, 60.0), deep)


def test_the_stack_is_the_place():
    stacks = Stacks(**{f"p{ME}": ProcessStacks(ME, threads=PYTHON)})
    sampler = make_looks(stacks)
    found = sample(sampler, {3: ME})[3]
    assert (found.pid, found.beats, found.is_held, found.timeout) == (ME, 0, False, 60.0)
    assert found.place[0] == (False, PYTHON[0].frames)
    assert found.variables is None
    assert sample(sampler, {3: ME}, deep=[3])[3].variables == f"variables of {ME}"
    assert not stacks.takes


def test_unreadable_variables_may_have_changed():
    """A sample without them proves nothing, unless they can never be read."""
    stacks = Stacks(**{f"p{ME}": ProcessStacks(ME, threads=PYTHON)})
    values = [{}] * 3 + [{ME: "a"}] + [{}] * 7
    sampler = make_looks(stacks, read_variables=lambda pids: values.pop(0))
    samples = [sample(sampler, {3: ME}, deep=[3])[3] for _ in range(11)]
    assert [found.variables for found in samples] == [None] * 3 + ["a"] + [None] * 7
    known = [found.place is not None for found in samples]
    assert known == [False] * 3 + [True] + [False] * 5 + [True] * 2


def test_a_suspect_may_compute():
    below = ProcessStacks(70, threads=PYTHON)
    shell = ProcessStacks(ME, reason="it is not Python", children=(below,))
    stacks = Stacks(**{f"p{ME}": shell, "p70": below})
    spans = []

    class Computing:
        def sample(self, given, threaded, below):
            spans.append(dict(given))
            return set(given)

    sampler = make_looks(stacks, computing=Computing())
    sample(sampler, {0: ME})
    assert not sample(sampler, {0: ME})[0].computes
    assert sample(sampler, {0: ME}, deep=[0])[0].computes
    assert spans == [{}, {}, {70: 15.0}]


def test_of_workers_with_heartbeats_only_a_hold_is_read():
    stacks = Stacks(**{f"p{ME}": ProcessStacks(ME, threads=PYTHON)})
    sampler, beats = make_looks(stacks), {0: HeartbeatState(number=4)}
    sample(sampler, {0: ME}, beats=beats)
    assert stacks.mains == [{}]
    found = sample(sampler, {0: ME}, beats=beats, deep=[0])[0]
    assert (found.beats, found.place, found.variables) == (4, None, None)
    assert stacks.mains == [{}, {0: ME}]


AT_PROMPT = PYTHON[0]._replace(
    frames=(StackFrame("interaction", "/usr/lib/python3.11/pdb.py", 433), *PYTHON[0].frames)
)


def test_a_hold_is_found_in_each_sample():
    stacks = Stacks(**{f"p{ME}": ProcessStacks(ME, threads=(AT_PROMPT,))})
    sampler = make_looks(stacks)
    assert sample(sampler, {0: ME})[0].hold == "at a prompt of pdb"
    stacks.seen[ME] = ProcessStacks(ME, reason="it was not read in time")
    assert sample(sampler, {0: ME})[0].hold == "at a prompt of pdb"
    stacks.seen[ME] = ProcessStacks(ME, threads=PYTHON)
    assert sample(sampler, {0: ME})[0].hold == ""


def test_a_python_process_below_a_shell_is_sampled():
    below = ProcessStacks(70, threads=PYTHON)
    shell = ProcessStacks(ME, reason="it is not Python", children=(below,))
    stacks = Stacks(**{f"p{ME}": shell, "p70": below})
    sampler = make_looks(stacks)
    assert sample(sampler, {0: ME})[0].place is None  # from the next sample on
    assert sample(sampler, {0: ME}, deep=[0])[0].variables == "variables of 70"
    assert stacks.mains == [{0: ME}, {0: 70}]
    assert not sampler.reasons
    stacks.seen[70] = ProcessStacks(70, reason="it has ended")
    stacks.seen[ME] = ProcessStacks(ME, reason="it is not Python")
    sample(sampler, {0: ME})
    assert sample(sampler, {0: ME})[0].place is None
    assert stacks.mains[-1] == {0: ME}


def test_without_a_stack_the_kernel_is_read():
    stacks = Stacks(**{f"p{ME}": ProcessStacks(ME, reason="the system does not allow it")})
    sampler = make_looks(stacks)
    assert [sample(sampler, {0: ME})[0].place for _ in range(4)] == [None] * 4
    assert not sampler.reasons
    place = sample(sampler, {0: ME})[0].place
    assert place[0][1][0] == ME  # and its system call
    assert sampler.reasons == {0: "the system does not allow it"}
    for _ in range(40):
        sample(sampler, {0: ME})
    assert len(stacks.takes) == 7  # which are dear
    stacks.seen[ME] = ProcessStacks(ME, threads=PYTHON)
    assert sample(sampler, {0: ME})[0].place[0] == (False, PYTHON[0].frames)
    assert not sampler.reasons


def test_a_new_round_starts_over():
    stacks = Stacks(**{f"p{ME}": ProcessStacks(ME, reason="no")})
    sampler = make_looks(stacks)
    for _ in range(5):
        sample(sampler, {0: ME})
    sample(sampler, {})
    assert not sampler.reasons
    assert sample(sampler, {0: ME})[0].place is None


# --- real processes -------------------------------------------------------------------------------


def test_output_to_files_is_movement(tmp_path):
    with (tmp_path / "out").open("wb") as file:
        text = "print('x' * 9, end='', flush=True); input()"
        with running_python("-c", text, stdout=file, stderr=subprocess.PIPE) as process:
            wait_until(lambda: FACTS.read_written(process.pid) == (9, 0), "nine bytes")


def test_output_to_files_shared_with_the_launcher_is_not_movement(tmp_path):
    """With `> log 2>&1`, messages of the launcher are not movement of workers."""
    looker = (
        "import sys\nfrom plaunch_hang.process import ProcessFacts\n"
        "sys.stderr.write(str(ProcessFacts().read_written(int(sys.argv[1]))))"
    )
    with (tmp_path / "log").open("wb") as log:
        with running_python(
            "-c", "print(flush=True); input()", stdout=log, stderr=subprocess.PIPE
        ) as process:
            wait_until(lambda: FACTS.read_written(process.pid) == (1, 0), "its output")
            words = [sys.executable, "-c", looker, str(process.pid)]
            done = subprocess.run(words, stdout=log, stderr=subprocess.PIPE, check=True)
    assert done.stderr == b"(0, 0)"


def test_children_are_included_in_the_usage():
    child = "import sys; print(flush=True); input()\nwhile True: pass"
    text = f"import subprocess, sys; subprocess.call([sys.executable, '-c', {child!r}])"
    with running_python("-c", text) as process:
        process.stdout.readline()
        before = FACTS.read_uses([process.pid])[process.pid]
        assert len(before) == 3
        process.stdin.write("\n")
        process.stdin.flush()
        wait_until(lambda: FACTS.read_uses([process.pid])[process.pid][0] > before[0], "its use")
        pid = before[2][0]
    os.kill(pid, signal.SIGKILL)
    assert FACTS.read_uses([process.pid]) == {}


def test_processor_time_of_the_main_thread_and_of_children(tmp_path):
    def write(path, ticks, ppid=1, state="R"):
        path.mkdir(parents=True, exist_ok=True)
        fields = [state, str(ppid), *["0"] * 9, *map(str, ticks), *["0"] * 20]
        (path / "stat").write_text(f"1 (a (b) c) {' '.join(fields)}\n")

    write(tmp_path / "7" / "task" / "7", (300, 20, 0, 0))
    write(tmp_path / "7" / "task" / "71", (600, 70, 0, 0), state="S")
    write(tmp_path / "7", (900, 90, 1000, 100))  # children that ended
    write(tmp_path / "8", (40, 4, 500, 50), ppid=7)
    write(tmp_path / "8" / "task" / "8", (40, 4, 500, 50), ppid=7)
    write(tmp_path / "9", (2, 1, 0, 0), ppid=8)
    proc = str(tmp_path)
    below = ProcessFacts(proc).find_parents([7, 99])
    assert below == {7: {8: 7, 9: 8}, 99: {}}
    (times,) = read_processor_times(below, proc).values()
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert times[:5] == pytest.approx([n * tick for n in (300, 20, 900, 90, 1697)])
    assert times.threads == {
        7: ThreadTime(320 * tick, is_runnable=True),
        71: ThreadTime(670 * tick),
    }
    assert times.child_threads == {8: ThreadTime(44 * tick, is_runnable=True)}
    assert times.descendants == 2
    (tmp_path / "7" / "task" / "7" / "schedstat").write_text("3200000000 1500000000 12\n")
    (times,) = read_processor_times({7: ()}, proc).values()
    assert times.threads[7] == ThreadTime(3.2, 1.5, is_runnable=True)


def test_processes_that_use_a_gpu(tmp_path):
    folder = tmp_path / "7" / "fd"
    folder.mkdir(parents=True)
    (folder / "0").symlink_to("/dev/null")
    assert not uses_gpu(7, str(tmp_path))
    (folder / "9").symlink_to("/dev/nvidia0")
    assert uses_gpu(7, str(tmp_path))
    assert not uses_gpu(8, str(tmp_path))


POLL = 0.1  # seconds


@pytest.mark.usefixtures("readable_stacks")
@pytest.mark.parametrize(
    ("program", "moves"),
    [
        ("import time\ndef f():\n n = 0\n while True: n += 1; time.sleep(0.01)\nf()", True),
        ("import time\nn = 0\nwhile True: n += 1; time.sleep(0.01)", True),
        ("import time\ndef f():\n n = 0; time.sleep(1000)\nf()", False),
        # A queue computes a new deadline each time.
        (
            f"import queue\ndef f(q):\n try: q.get(timeout={POLL})\n except queue.Empty: pass\n"
            "q = queue.Queue()\nfor _ in iter(int, 1): f(q)",
            False,
        ),
    ],
    ids=["a loop in a function", "a loop in the module", "a sleep", "a queue that is polled"],
)
def test_variables_change_in_a_loop_but_not_in_a_hang(program, moves):
    with running_python("-c", f"print(flush=True)\n{program}") as process:
        process.stdout.readline()
        seen = []

        def sample():
            time.sleep(POLL)  # a queue is in its next wait then
            seen.append(read_variables(process.pid))
            return seen

        if moves:
            wait_until(lambda: len({*sample()} - {None}) > 1, "a change")
        else:
            # At first it may be on its way, and later between two waits.
            wait_until(lambda: sample()[-1] and seen[-3:] == seen[-1:] * 3, "three equal samples")


def moves_within(count, see):
    """Whether one of `count` further samples differs; it may at first, or between two waits."""
    first = see()
    return any(has_moved(first, see()) for _ in range(count))


PYTHON_PROGRAM = "import subprocess, sys; subprocess.run([sys.executable, '-uc', {child!r}])"
SHELL = "import subprocess; subprocess.run(['sh', '-c', {child!r}], timeout=600)"
BY_SYSTEM = "import os; os.system({child!r})"
IN_A_THREAD = (
    "import subprocess, threading\n"
    "thread = threading.Thread(target=subprocess.run, args=(['sh', '-c', {child!r}],))\n"
    "thread.start()\n"
    "while thread.is_alive(): thread.join(1)"
)
WRITES = "echo; while :; do echo x; sleep 0.2; done >/dev/null"
SLEEPS = "echo; exec sleep 1000"


@pytest.mark.usefixtures("readable_stacks")
@pytest.mark.parametrize(
    ("program", "child", "moves"),
    [
        (PYTHON_PROGRAM, "print()\ndef f(n=0):\n while True: n += 1\nf()", True),
        (PYTHON_PROGRAM, "print()\nimport time\ntime.sleep(1000)", False),
        (SHELL, WRITES, True),
        (SHELL, SLEEPS, False),
        (BY_SYSTEM, WRITES, True),
        (BY_SYSTEM, SLEEPS, False),
        (IN_A_THREAD, WRITES, True),
        (IN_A_THREAD, SLEEPS, False),
    ],
)
def test_a_process_that_a_worker_waits_for_is_sampled(program, child, moves):
    with running_python("-c", program.format(child=child)) as process:
        process.stdout.readline()
        sampler = WorkerSampler()
        assert sample(sampler, {0: process.pid})[0].children is None  # it is not suspected

        def see():
            return sample(sampler, {0: process.pid}, deep=[0])[0]

        first = wait_until(lambda: (found := see()).children and found, "a sample of the child")
        try:
            if moves:
                wait_until(lambda: has_moved(first, see()), "a movement")
            else:
                wait_until(lambda: not moves_within(3, see), "no movement")
        finally:
            for pid in FACTS.find_parents([process.pid])[process.pid]:
                with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                    os.kill(pid, signal.SIGKILL)


THREAD = """\
import queue, threading, time, zlib
done = threading.Event()
def wait():
    while not done.wait(0.2): pass
def work():
    WORK
threading.Thread(target=work, daemon=True).start()
print(flush=True)
wait()
"""


@pytest.mark.usefixtures("readable_stacks")
@pytest.mark.parametrize(
    ("work", "moves"),
    [
        ("while True:\n        for n in range(9): time.sleep(0.01)", True),
        ("while True: zlib.crc32(bytes(1 << 24)); n = time.time()", True),
        ("time.sleep(1000)", False),
        ("wait()", False),
        # A monitor: its variables change with each round, but it is seen in its wait only.
        ("while True: now = time.time(); done.wait(2)", False),
        ("while True:\n        try: queue.Queue().get(timeout=0.5)\n        except: pass", False),
    ],
)
def test_a_thread_that_the_main_thread_waits_for_is_sampled(work, moves):
    with running_python("-c", THREAD.replace("WORK", work)) as process:
        process.stdout.readline()
        sampler = WorkerSampler()

        def see():
            return sample(sampler, {0: process.pid}, deep=[0])[0]

        first = wait_until(lambda: (found := see()).variables and found.place and found, "a sample")
        if moves:
            wait_until(lambda: has_moved(first, see()), "a movement")
        else:
            wait_until(lambda: not moves_within(5, see), "no movement")


def test_the_usage_of_a_process():
    with running_python("-c", "print(flush=True)\nfor _ in iter(input, ''): pass") as process:
        process.stdout.readline()
        wait_until(lambda: FACTS.read_use(process.pid) == FACTS.read_use(process.pid), "it waits")
        before = FACTS.read_use(process.pid)
        assert FACTS.read_use(process.pid) == before
        process.stdin.write("x\n")
        process.stdin.flush()
        wait_until(lambda: FACTS.read_use(process.pid) != before, "it has run")
    process.wait()
    assert FACTS.read_use(process.pid) is None


@pytest.mark.usefixtures("readable_stacks")
def test_variables_of_other_programs_are_unknown():
    with running_python("-c", "print(flush=True); input()") as python:
        python.stdout.readline()
        with subprocess.Popen(["sleep", "1000"]) as process:
            wait_until(lambda: read_variables(python.pid), "its variables")
            assert [*read_all_variables([process.pid, python.pid])] == [python.pid]
            assert read_variables(process.pid) is None
            process.kill()
    assert read_variables(process.pid) is None
