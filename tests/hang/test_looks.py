"""What a look at workers becomes, with stacks that a test makes up; and real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from plaunch_hang.beats import Beat
from plaunch_hang.computing import ComputeWatch
from plaunch_hang.looks import Looks
from plaunch_hang.process import (
    read_parents,
    read_processor_times,
    read_use,
    read_uses,
    read_written,
    uses_gpu,
)
from plaunch_hang.stacks import Frame, ProcessStacks, ThreadStack
from plaunch_hang.variables import read_all_variables, read_variables
from plaunch_hang.watch import has_moved

from helpers.programs import running_python
from helpers.waiting import wait_until

ME = os.getpid()
PYTHON = (ThreadStack("MainThread", ME, (Frame("step", "/home/me/train.py", 7),), is_main=True),)


class Stacks:
    """What is seen of processes, by pid, and which looks there were."""

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
    return Looks(stacks.own_stacks, stacks.take, **given)


def look(looks, pids, *, beats=None, deep=()):
    beats = {rank: (beats or {}).get(rank, Beat()) for rank in pids}
    return looks.look(pids, beats, dict.fromkeys(pids, 60.0), deep)


def test_a_stack_is_the_place():
    stacks = Stacks(**{f"p{ME}": ProcessStacks(ME, threads=PYTHON)})
    looks = make_looks(stacks)
    sight = look(looks, {3: ME})[3]
    assert (sight.pid, sight.beats, sight.is_held, sight.timeout) == (ME, 0, False, 60.0)
    assert sight.place[0] == (False, PYTHON[0].frames)
    assert sight.variables is None
    assert look(looks, {3: ME}, deep=[3])[3].variables == f"variables of {ME}"
    assert not stacks.takes


def test_variables_that_cannot_be_read_may_change():
    """A look without them tells nothing, unless they can never be read."""
    stacks = Stacks(**{f"p{ME}": ProcessStacks(ME, threads=PYTHON)})
    values = [{}] * 3 + [{ME: "a"}] + [{}] * 7
    looks = make_looks(stacks, read_variables=lambda pids: values.pop(0))
    sights = [look(looks, {3: ME}, deep=[3])[3] for _ in range(11)]
    assert [sight.variables for sight in sights] == [None] * 3 + ["a"] + [None] * 7
    known = [sight.place is not None for sight in sights]
    assert known == [False] * 3 + [True] + [False] * 5 + [True] * 2


def test_a_suspect_may_compute():
    below = ProcessStacks(70, threads=PYTHON)
    shell = ProcessStacks(ME, reason="it is not Python", children=(below,))
    stacks = Stacks(**{f"p{ME}": shell, "p70": below})
    spans = []

    class Computing:
        def look(self, given, threaded):
            spans.append(dict(given))
            return set(given)

    looks = make_looks(stacks, computing=Computing())
    look(looks, {0: ME})
    assert not look(looks, {0: ME})[0].computes
    assert look(looks, {0: ME}, deep=[0])[0].computes
    assert spans == [{}, {}, {70: 15.0}]


def test_nobody_looks_at_the_stack_of_one_that_beats():
    stacks = Stacks(**{f"p{ME}": ProcessStacks(ME, threads=PYTHON)})
    sight = look(make_looks(stacks), {0: ME}, beats={0: Beat(number=4)}, deep=[0])[0]
    assert (sight.beats, sight.place, sight.variables) == (4, None, None)
    assert stacks.mains == [{}]


def test_a_shell_stands_for_the_python_that_it_has_started():
    below = ProcessStacks(70, threads=PYTHON)
    shell = ProcessStacks(ME, reason="it is not Python", children=(below,))
    stacks = Stacks(**{f"p{ME}": shell, "p70": below})
    looks = make_looks(stacks)
    assert look(looks, {0: ME})[0].place is None  # from the next look on
    assert look(looks, {0: ME}, deep=[0])[0].variables == "variables of 70"
    assert stacks.mains == [{0: ME}, {0: 70}]
    assert not looks.reasons
    stacks.seen[70] = ProcessStacks(70, reason="it has ended")
    stacks.seen[ME] = ProcessStacks(ME, reason="it is not Python")
    look(looks, {0: ME})
    assert look(looks, {0: ME})[0].place is None
    assert stacks.mains[-1] == {0: ME}


def test_without_a_stack_there_is_what_the_kernel_tells():
    stacks = Stacks(**{f"p{ME}": ProcessStacks(ME, reason="the system does not allow it")})
    looks = make_looks(stacks)
    assert [look(looks, {0: ME})[0].place for _ in range(4)] == [None] * 4
    assert not looks.reasons
    place = look(looks, {0: ME})[0].place
    assert place[0][1][0] == ME  # and its system call
    assert looks.reasons == {0: "the system does not allow it"}
    for _ in range(40):
        look(looks, {0: ME})
    assert len(stacks.takes) == 7  # which are dear
    stacks.seen[ME] = ProcessStacks(ME, threads=PYTHON)
    assert look(looks, {0: ME})[0].place[0] == (False, PYTHON[0].frames)
    assert not looks.reasons


def test_another_round_begins_anew():
    stacks = Stacks(**{f"p{ME}": ProcessStacks(ME, reason="no")})
    looks = make_looks(stacks)
    for _ in range(5):
        look(looks, {0: ME})
    look(looks, {})
    assert not looks.reasons
    assert look(looks, {0: ME})[0].place is None


# --- real processes -------------------------------------------------------------------------------


def test_what_it_writes_into_files_counts(tmp_path):
    with (tmp_path / "out").open("wb") as file:
        text = "print('x' * 9, end='', flush=True); input()"
        with running_python("-c", text, stdout=file, stderr=subprocess.PIPE) as process:
            wait_until(lambda: read_written(process.pid) == (9, 0), "nine bytes")


def test_files_that_the_launcher_writes_into_do_not(tmp_path):
    """A launch with `> log 2>&1`: what the launcher says is no movement of the workers."""
    looker = (
        "import sys\nfrom plaunch_hang.process import read_written\n"
        "sys.stderr.write(str(read_written(int(sys.argv[1]))))"
    )
    with (tmp_path / "log").open("wb") as log:
        with running_python(
            "-c", "print(flush=True); input()", stdout=log, stderr=subprocess.PIPE
        ) as process:
            wait_until(lambda: read_written(process.pid) == (1, 0), "its output")
            words = [sys.executable, "-c", looker, str(process.pid)]
            done = subprocess.run(words, stdout=log, stderr=subprocess.PIPE, check=True)
    assert done.stderr == b"(0, 0)"


def test_what_it_has_started_counts_for_its_use():
    child = "import sys; print(flush=True); input(); [x for x in range(10**8)]"
    text = f"import subprocess, sys; subprocess.call([sys.executable, '-c', {child!r}])"
    with running_python("-c", text) as process:
        process.stdout.readline()
        before = read_uses([process.pid])[process.pid]
        assert len(before) == 3
        process.stdin.write("\n")
        process.stdin.flush()
        wait_until(lambda: read_uses([process.pid])[process.pid][0] > before[0], "its use")
        pid = before[2][0]
    os.kill(pid, signal.SIGKILL)
    assert read_uses([process.pid]) == {}


def test_processor_time_of_the_main_thread_and_of_children(tmp_path):
    def write(path, ticks, ppid=1):
        path.mkdir(parents=True, exist_ok=True)
        fields = ["R", str(ppid), *["0"] * 9, *map(str, ticks), *["0"] * 20]
        (path / "stat").write_text(f"1 (a (b) c) {' '.join(fields)}\n")

    write(tmp_path / "7" / "task" / "7", (300, 20, 0, 0))
    write(tmp_path / "7", (900, 90, 1000, 100))  # with its other threads; children that ended
    write(tmp_path / "8", (40, 4, 500, 50), ppid=7)
    write(tmp_path / "9", (2, 1, 0, 0), ppid=8)
    (times,) = read_processor_times([7, 99], str(tmp_path)).values()
    tick = 1 / os.sysconf("SC_CLK_TCK")
    used = {name: value / tick for name, value in times._asdict().items()}
    assert used == pytest.approx(
        {
            "user": 300,
            "system": 20,
            "threads_user": 900,
            "threads_system": 90,
            "waited": 0,
            "children": 1697,
        }
    )
    (tmp_path / "7" / "task" / "7" / "schedstat").write_text("3200000000 1500000000 12\n")
    assert read_processor_times([7], str(tmp_path))[7].waited == 1.5


def test_who_uses_a_gpu(tmp_path):
    folder = tmp_path / "7" / "fd"
    folder.mkdir(parents=True)
    (folder / "0").symlink_to("/dev/null")
    assert not uses_gpu(7, str(tmp_path))
    (folder / "9").symlink_to("/dev/nvidia0")
    assert uses_gpu(7, str(tmp_path))
    assert not uses_gpu(8, str(tmp_path))


@pytest.mark.usefixtures("readable_stacks")
def test_variables_of_a_loop_change_and_those_of_a_hang_do_not():
    def changes(text):
        with running_python("-c", f"print(flush=True)\n{text}") as process:
            process.stdout.readline()
            seen = set()

            def look():
                seen.add(read_variables(process.pid))
                return len(seen - {None}) > 1

            if "while" in text:
                wait_until(look, "a change")
                return True
            wait_until(lambda: look() or len(seen - {None}) == 1, "a look")
            return any(look() for _ in range(3))

    assert changes("import time\ndef f():\n n = 0\n while True: n += 1; time.sleep(0.01)\nf()")
    assert changes("import time\nn = 0\nwhile True: n += 1; time.sleep(0.01)")
    assert not changes("import time\ndef f():\n n = 0; time.sleep(1000)\nf()")
    # A queue computes a new deadline each time.
    poll = "import queue\ndef f(q):\n try: q.get(timeout=0.5)\n except queue.Empty: pass\n"
    assert not changes(f"{poll}q = queue.Queue()\nfor _ in iter(int, 1): f(q)")


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
def test_a_process_that_a_worker_waits_for_is_looked_at(program, child, moves):
    with running_python("-c", program.format(child=child)) as process:
        process.stdout.readline()
        looks = Looks()
        assert look(looks, {0: process.pid})[0].children is None  # it is no suspect

        def see():
            return look(looks, {0: process.pid}, deep=[0])[0]

        first = wait_until(lambda: (sight := see()).children and sight, "a look at the child")
        try:
            if moves:
                wait_until(lambda: has_moved(first, see()), "a movement")
            else:
                assert not any(has_moved(first, see()) for _ in range(3))
        finally:
            for pid in read_parents([process.pid])[process.pid]:
                os.kill(pid, signal.SIGKILL)


THREAD = """\
import queue, threading, time, zlib
def work():
    WORK
done = threading.Event()
threading.Thread(target=work, daemon=True).start()
print(flush=True)
def wait():
    while not done.wait(0.2): pass
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
def test_a_thread_that_the_main_thread_waits_for_is_looked_at(work, moves):
    with running_python("-c", THREAD.replace("WORK", work)) as process:
        process.stdout.readline()
        looks = Looks()

        def see():
            return look(looks, {0: process.pid}, deep=[0])[0]

        first = wait_until(lambda: (sight := see()).variables and sight.place and sight, "a look")
        if moves:
            wait_until(lambda: has_moved(first, see()), "a movement")
        else:
            assert sum(has_moved(first, see()) for _ in range(5)) <= 1  # between two waits


def test_how_much_a_process_has_run():
    with running_python("-c", "print(flush=True)\nfor _ in iter(input, ''): pass") as process:
        process.stdout.readline()
        wait_until(lambda: read_use(process.pid) == read_use(process.pid), "it waits")
        before = read_use(process.pid)
        assert read_use(process.pid) == before
        process.stdin.write("x\n")
        process.stdin.flush()
        wait_until(lambda: read_use(process.pid) != before, "it has run")
    process.wait()
    assert read_use(process.pid) is None


@pytest.mark.usefixtures("readable_stacks")
def test_variables_of_what_is_no_python_are_unknown():
    with running_python("-c", "print(flush=True); input()") as python:
        python.stdout.readline()
        with subprocess.Popen(["sleep", "1000"]) as process:
            wait_until(lambda: read_variables(python.pid), "its variables")
            assert [*read_all_variables([process.pid, python.pid])] == [python.pid]
            assert read_variables(process.pid) is None
            process.kill()
    assert read_variables(process.pid) is None
