"""The guard: what it does when its launcher is killed, what it holds, and how it goes."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import inspect
import logging
import os
import select
import signal
import subprocess
import sys
import termios
import threading
import types

import pytest
from plaunch.process import ContextComponents, start_processes
from plaunch.process.marks import job_line, process_line
from plaunch.process.proc import Process, read_process, read_state
from plaunch.process.stopping.guard import GuardKeeper, is_forkable, start_guard
from plaunch.process.stopping.guard_process import clear
from plaunch.process.stopping.job import Job, Reaper
from plaunch.process.stopping.stop import Sweep
from plaunch.process.stopping.tree import ProcessTree

from helpers.clock import Clock
from helpers.processes import wait_for_end
from helpers.programs import run_python
from helpers.waiting import BOUND, wait_until

pytestmark = pytest.mark.filterwarnings(
    # Python 3.12 on; the threads are those of the test runner's own time-out.
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)


@pytest.fixture(params=["forked", "another program"])
def start(request):
    return functools.partial(start_guard, can_fork=lambda: request.param == "forked")


@pytest.fixture
def guard(start):
    guard = start()
    yield guard
    guard.dismiss()


def link(pid, name):
    try:
        return os.readlink(f"/proc/{pid}/fd/{name}")
    except FileNotFoundError:
        return ""


def wait_until_it_has_settled(pid):
    def title():
        with open(f"/proc/{pid}/comm") as comm:
            return comm.read().strip()

    wait_until(lambda: title() == "workers-guard", lambda: f"another name than {title()}")

    def is_naming():
        names = os.listdir(f"/proc/{pid}/fd")
        return any(link(pid, name).endswith("/comm") for name in names)

    wait_until(lambda: not is_naming(), "the end of the guard's start")


def test_it_reads_while_its_launcher_runs(guard):
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(guard.line_fd, b"no line of the launcher\n" * 100)
    poller = select.poll()
    poller.register(guard.line_fd, select.POLLOUT)
    assert poller.poll(1000 * BOUND)


def test_it_sleeps_when_it_has_read_a_line(guard):
    os.write(guard.line_fd, b"no line of the launcher\n")
    unread = bytearray(4)

    def has_read():
        fcntl.ioctl(guard.line_fd, termios.FIONREAD, unread)
        return not any(unread)

    wait_until(has_read, "the guard to read")
    wait_until(lambda: read_state(guard.pid) == "S", "the guard to sleep")


def test_it_holds_nothing_of_the_launchers(start, guard, tmp_path):
    with open(tmp_path / "log", "w") as file:
        os.set_inheritable(file.fileno(), True)
        other = start()
    try:
        for each in (guard, other):
            wait_until_it_has_settled(each.pid)
            links = {name: link(each.pid, name) for name in os.listdir(f"/proc/{each.pid}/fd")}
            assert [links.pop(name) for name in "012"] == ["/dev/null"] * 3
            assert sorted(target.partition("[")[0].rstrip(":") for target in links.values()) in (
                ["anon_inode", "pipe"],
                ["pidfd", "pipe"],
            )
            assert os.readlink(f"/proc/{each.pid}/cwd") == "/"
            assert os.getsid(each.pid) == each.pid
    finally:
        other.dismiss()


def test_the_guard_does_not_hold_the_launchers_output_open(run_program, family):
    """As `plaunch ... | tee` does: a guard that kept the pipe would keep the reader waiting."""
    launcher = run_program(
        "-c",
        "import os, time\n"
        "from plaunch.process.stopping.guard import start_guard\n"
        "guard = start_guard()\n"
        "print(guard.pid, flush=True)\n"
        "os.close(1); os.close(2)\n"
        "time.sleep(600)\n",
        stdout=subprocess.PIPE,
    )
    out, _ = launcher.stdout.read(), launcher.stderr.read()
    assert read_process(int(out)).is_alive
    launcher.kill()


@pytest.mark.parametrize(
    "signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGTSTP]
)
def test_it_ignores_signals(guard, signum):
    wait_until_it_has_settled(guard.pid)
    os.kill(guard.pid, signum)
    with open(f"/proc/{guard.pid}/status") as status:
        ignored = next(line for line in status if line.startswith("SigIgn")).split()[1]
    assert int(ignored, 16) >> (signum - 1) & 1
    assert guard.is_alive()


def test_the_title_of_the_guard_does_not_contain_the_programs_name(guard):
    wait_until_it_has_settled(guard.pid)

    def title():
        with open(f"/proc/{guard.pid}/cmdline") as file:
            return file.read().rstrip("\0")

    # The second one if the command line of these tests has no room for the first.
    assert title() in (f"workers-guard of pid {os.getpid()}", f"guard of {os.getpid()}")


@pytest.mark.parametrize("has_pidfds", [True, False])
def test_a_dismissed_guard_leaves_no_process_and_no_descriptor(start, monkeypatch, has_pidfds):
    monkeypatch.setenv("PLAUNCH_NO_PIDFD", "0" if has_pidfds else "1")
    before = set(os.listdir("/proc/self/fd"))
    guard = start()
    guard.dismiss()
    assert not os.path.exists(f"/proc/{guard.pid}")
    assert set(os.listdir("/proc/self/fd")) == before
    guard.dismiss()  # again


def test_its_exit_code_may_be_taken_by_other_code(start):
    guard = start()
    os.kill(guard.pid, signal.SIGKILL)
    os.waitpid(guard.pid, 0)
    assert not guard.is_alive()
    guard.send(b"anything\n")
    guard.dismiss()


def test_a_message_to_the_guard_never_waits(guard, caplog):
    os.kill(guard.pid, signal.SIGSTOP)
    for _ in range(200_000 // 20):
        guard.send(b"a line of no use at all\n")
    assert "does not read" in caplog.text


@pytest.mark.parametrize("what", ["processes", "descriptors"])
def test_the_system_has_no_more(start, what, monkeypatch, caplog):
    def refuse(*_, **__):
        raise OSError(11, "Resource temporarily unavailable")

    if what == "processes":
        monkeypatch.setattr(os, "fork", refuse)
        monkeypatch.setattr(subprocess, "Popen", refuse)
    else:
        monkeypatch.setattr(os, "pipe", refuse)
    before = set(os.listdir("/proc/self/fd"))
    assert start() is None
    assert set(os.listdir("/proc/self/fd")) == before
    assert "workers may outlive this launcher" in caplog.text


@pytest.mark.parametrize("is_first", [True, False])
def test_a_guard_that_could_not_be_started_is_tried_again_now_and_then(
    is_first, monkeypatch, caplog
):
    caplog.set_level(logging.INFO, "plaunch")
    refused = []

    def refuse():
        refused.append(clock.now)
        raise OSError(23, "Too many open files in system")

    clock = Clock(0.0)
    reaper = Reaper(clock=clock)
    try:
        if not is_first:
            reaper.begin()
            os.kill(reaper.guards.guard.pid, signal.SIGKILL)
            wait_for_end(reaper.guards.guard.pid)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pipe", refuse)
            if is_first:
                reaper.begin()
            while clock.now < 60:
                reaper.guards.replace_killed()
                assert reaper.guards.guard is None
                clock.now += 1
        assert refused == [0, 10, 20, 30, 40, 50]
        assert caplog.text.count("workers may outlive this launcher") == 1, "it is said once"
        reaper.guards.replace_killed()
        assert reaper.guards.guard.is_alive()
        assert f"the guard process (pid {reaper.guards.guard.pid}) has started now" in caplog.text
    finally:
        reaper.close()


def test_a_program_with_threads_is_not_forked_nor_is_a_large_one():
    any_size = 1 << 40  # whatever was imported before this test
    assert is_forkable(any_size) is (len(os.listdir("/proc/self/task")) == 1)
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    assert not is_forkable(any_size)
    release.set()
    thread.join()
    assert not is_forkable(1)


@pytest.mark.parametrize("can_fork", [True, False])
def test_a_guard_that_can_be_forked_starts_before_the_workers(can_fork):
    answers = [can_fork, can_fork]
    reaper = Reaper(can_fork=lambda: answers.pop() if answers else False)
    reaper.guards.prepare()
    early = reaper.guards.guard
    assert (early is not None) is can_fork
    reaper.guards.prepare()
    assert reaper.guards.guard is early
    # What has begun meanwhile makes no difference to it.
    answers.clear()
    try:
        reaper.begin()
        assert (reaper.guards.guard is early) is can_fork
        assert reaper.guards.guard.is_alive()
    finally:
        reaper.close()
    if can_fork:
        assert not early.is_alive()


def test_as_another_program_it_loads_little():
    code = "import sys; sys.path.append(sys.argv[1]); import plaunch.process.stopping."
    code += "guard_process; print(*sys.modules)"
    package = inspect.getfile(start_guard).partition("/plaunch/process/")[0]
    loaded = run_python("-I", "-S", "-c", code, package, check=True).stdout.split()
    assert not {"dataclasses", "logging", "subprocess"}.intersection(loaded)


# --- a launcher that is killed --------------------------------------------------------------------

ORPHANED = ("child", "stubborn", "session", "daemon", "execd", "closed", "cleared")


@pytest.mark.parametrize("how", ["forked", "another program", "without pidfds"])
@pytest.mark.parametrize("method", ["program", "spawn", "fork", "forkserver"])
def test_nothing_outlives_a_launcher_that_is_killed(
    run_program, programs, family, tmp_path, method, how
):
    is_lost_found = method != "program" and how != "without pidfds"
    launcher = run_program(
        os.path.join(programs, "launcher.py"),
        family.folder,
        ",".join((*ORPHANED, "lost") if is_lost_found else ORPHANED),
        "wait",
        method,
        *(["thread"] if how == "another program" else []),
        env={"PLAUNCH_NO_PIDFD": "1"} if how == "without pidfds" else {},
    )
    family.wait_for("worker", 2)
    launcher.kill()
    family.wait_until_gone()
    wait_until(lambda: folders_of(tmp_path) == [], lambda: f"the removal of {folders_of(tmp_path)}")


BETWEEN = """\
import os, signal, sys
import descendants
from plaunch_multiprocessing import MultiprocessContext
from plaunch.process import ContextComponents, SubprocessContext, start_processes
from plaunch.process.stopping.job import Reaper

folder, method, moment = sys.argv[1:]
kind = SubprocessContext if method == "program" else MultiprocessContext
start_worker, started = kind._start_worker, []

def die():
    descendants.note(folder, "launcher")
    os.kill(os.getpid(), signal.SIGKILL)

def starting(self, local_rank, *streams):
    if moment == "between" and local_rank == 1:
        die()
    worker = start_worker(self, local_rank, *streams)
    started.append(worker)
    if moment == "untold" and local_rank == 1:
        die()
    return worker

kind._start_worker = starting
components = ContextComponents(reaper=Reaper())
kinds = ("child", "execd")
if method == "program":
    argv = (descendants.__file__, folder, ",".join(kinds), "wait")
    start_processes("t", sys.executable, {0: argv, 1: argv}, components=components)
else:
    args = (folder, kinds, "wait")
    options = {"start_method": method, "components": components}
    start_processes("t", descendants.work, {0: args, 1: args}, **options)
"""


@pytest.mark.parametrize("moment", ["between", "untold"])
@pytest.mark.parametrize("method", ["program", "spawn", "fork", "forkserver"])
def test_a_launcher_is_killed_while_it_starts_workers(
    run_program, family, tmp_path, wait_until_alone, method, moment
):
    """Between two workers; and when it has not yet heard itself which worker it has started."""
    launcher = run_program("-c", BETWEEN, family.folder, method, moment)
    assert launcher.wait(BOUND) == -signal.SIGKILL
    wait_until_alone()
    assert family.kinds().count("launcher") == 1
    assert family.alive() == []
    assert folders_of(tmp_path) == []


def folders_of(tmp_path):
    """Our temporary folders; a fork server has one of multiprocessing's own."""
    return [name for name in os.listdir(tmp_path / "tmp") if not name.startswith("pymp-")]


IN_THE_STOP = """\
import sys
import descendants
from plaunch.process import start_processes

argv = (descendants.__file__, sys.argv[1], "child,daemon", "stubborn")
context = start_processes("t", sys.executable, {0: argv, 1: argv}, handle_signals=False)
sys.stdin.readline()
print("closing", flush=True)
context.close(timeout=600)
"""


def test_a_launcher_is_killed_while_it_stops_workers(run_program, family):
    launcher = run_program(
        "-c", IN_THE_STOP, family.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    family.wait_for("worker", 2)
    launcher.stdin.write("\n")
    launcher.stdin.flush()
    assert launcher.stdout.readline() == "closing\n"
    launcher.kill()
    family.wait_until_gone()


# --- the launcher's side --------------------------------------------------------------------------


def test_the_user_can_switch_the_guard_off(monkeypatch):
    monkeypatch.setenv("PLAUNCH_GUARD", "0")
    reaper = Reaper()
    reaper.begin()
    assert reaper.guards.guard is None
    reaper.close()


def test_the_variable_turns_it_off_for_launches(launch, family):
    launcher = launch((), "wait", nprocs=1, env={"PLAUNCH_GUARD": "0"})
    family.wait_for("worker")
    with open(f"/proc/{launcher.pid}/task/{launcher.pid}/children") as file:
        children = [int(pid) for pid in file.read().split()]
    assert children == family.pids("worker")
    launcher.terminate()
    launcher.communicate(timeout=BOUND)


@pytest.fixture
def guarded(family, programs, monkeypatch):
    """A job of one worker and its reaper, the clock of both, and what wakes whoever waits."""
    clock = Clock(10.0)
    reaper = Reaper(clock=clock)
    components = ContextComponents(reaper=reaper)
    argv = (os.path.join(programs, "descendants.py"), family.folder, "child,execd", "wait")
    context = start_processes(
        "t",
        sys.executable,
        {0: argv},
        log_dir=os.devnull,
        handle_signals=False,
        components=components,
    )
    poller = select.poll()
    for fd in context.exit_fds():
        poller.register(fd, select.POLLIN)
    yield types.SimpleNamespace(context=context, reaper=reaper, clock=clock, poller=poller)
    context.close()
    reaper.close()


def test_a_guard_that_is_killed_is_replaced(guarded, family, caplog):
    family.wait_for("worker")
    first = guarded.reaper.guards.guard.pid
    os.kill(first, signal.SIGKILL)
    wait_for_end(first)
    assert guarded.context.wait(0) is None
    assert guarded.reaper.guards.guard.pid != first
    assert "another one takes over" in caplog.text
    guarded.context.close()
    assert family.alive() == []


def test_a_guard_is_replaced_before_that_is_logged(guarded, family):
    """A message takes a tenth of a second on a busy machine."""
    family.wait_for("worker")
    first = guarded.reaper.guards.guard.pid
    found = []

    class Handler(logging.Handler):
        def emit(self, record):
            guard = guarded.reaper.guards.guard
            found.append(guard is not None and guard.pid != first and guard.is_alive())

    handler = Handler()
    logging.getLogger("plaunch").addHandler(handler)
    try:
        os.kill(first, signal.SIGKILL)
        wait_for_end(first)
        assert guarded.context.wait(0) is None
    finally:
        logging.getLogger("plaunch").removeHandler(handler)
    assert found == [True]


def test_the_end_of_the_guard_wakes_the_wait_for_workers(guarded):
    """A launcher that is killed a moment later is guarded again."""
    context, reaper, poller = guarded.context, guarded.reaper, guarded.poller
    for _ in range(4):
        assert poller.poll(0) == []
        guard = reaper.guards.guard.pid
        os.kill(guard, signal.SIGKILL)
        assert poller.poll(BOUND * 1000)
        assert context.wait(0) is None
        assert reaper.guards.guard.pid != guard
    # One that is killed all the time is not started all the time.
    os.kill(reaper.guards.guard.pid, signal.SIGKILL)
    assert poller.poll(BOUND * 1000)
    assert context.wait(0) is None
    assert reaper.guards.guard is None
    assert poller.poll(0) == []
    guarded.clock.now += 10.0
    assert context.wait(0) is None
    assert reaper.guards.guard.is_alive()


def test_the_end_of_the_guard_during_a_sweep_wakes_but_once(guarded, monkeypatch):
    reaper, poller = guarded.reaper, guarded.poller
    delays = [60.0]
    monkeypatch.setattr(Sweep, "step", lambda _: delays[0])
    monkeypatch.setattr(Job, "is_clear", lambda _: False)
    try:
        stop = guarded.context.begin_stop(signal.SIGKILL, 0)
        while (delay := stop.step()) != 60.0:
            assert delay is not None
            poller.poll(BOUND * 1000)
        while poller.poll(0):
            stop.step()
        os.kill(reaper.guards.guard.pid, signal.SIGKILL)
        assert poller.poll(BOUND * 1000)
        stop.step()
        assert poller.poll(0) == []
        assert reaper.guards.guard.is_alive()
    finally:
        delays[0] = None


@pytest.mark.parametrize("is_stopping", [False, True])
def test_a_launcher_is_killed_soon_after_its_guard(launch, family, is_stopping):
    launcher = launch(["child"], "stubborn", "--shutdown-timeout=600", nprocs=1)
    family.wait_for("worker")
    if is_stopping:
        launcher.terminate()
        assert "SIGTERM received" in launcher.stderr.readline()
    first = wait_until(lambda: guard_of(launcher), "a guard")
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: guard_of(launcher) not in (None, first), "another guard")
    launcher.kill()
    family.wait_until_gone()


def guard_of(launcher):
    """The number of a launcher's guard; None while there is none."""
    with open(f"/proc/{launcher.pid}/task/{launcher.pid}/children") as file:
        children = [int(pid) for pid in file.read().split()]
    for pid in children:
        process = read_process(pid)
        with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as comm:
            if comm.read() == "workers-guard\n" and process is not None and process.is_alive:
                return pid
    return None


def test_the_next_start_gets_a_new_guard_if_need_be():
    reaper = Reaper()
    reaper.begin()
    first = reaper.guards.guard
    reaper.begin()
    assert reaper.guards.guard is first
    os.kill(first.pid, signal.SIGKILL)
    wait_for_end(first.pid)
    reaper.begin()
    assert reaper.guards.guard is not first
    assert reaper.guards.guard.is_alive()
    reaper.close()


def test_a_second_guard_gets_the_messages_of_the_first(run_program, family, programs):
    """It is told again, and then the launcher is killed, too."""
    launcher = run_program(
        "-c",
        "import os, signal, sys, descendants\n"
        "from plaunch.process import ContextComponents, start_processes\n"
        "from plaunch.process.stopping.job import Reaper\n"
        "clock = [0.0]\n"
        "reaper = Reaper(clock=lambda: clock[0])\n"
        f"argv = (descendants.__file__, {family.folder!r}, 'cleared,daemon', 'wait')\n"
        "components = ContextComponents(reaper=reaper)\n"
        "context = start_processes('t', sys.executable, {0: argv}, components=components)\n"
        "os.kill(reaper.guards.guard.pid, signal.SIGKILL)\n"
        "os.waitid(os.P_PID, reaper.guards.guard.pid, os.WEXITED | os.WNOWAIT)\n"
        "sys.stdin.readline()\n"
        "clock[0] += 1\n"
        "context.wait(0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n",
        stdin=subprocess.PIPE,
    )
    family.wait_for("worker")
    launcher.stdin.write("\n")
    launcher.stdin.flush()
    assert launcher.wait(BOUND) == -signal.SIGKILL
    family.wait_until_gone()


def test_the_guard_stays_until_every_process_is_classified():
    """One in the middle of becoming another program shows no tag, and is found a moment later."""
    clock = Clock(0.0)
    killed = []

    class Tree(ProcessTree):
        has_no_orphans = True

        def __init__(self):
            pass

        def scan(self):
            return {0: [Process(5)]} if 0.15 < clock.now and not killed else {}

        def is_sure(self):
            return clock.now > 0.2

        def signal(self, processes, signum):
            killed.extend(process.pid for process in processes)
            return []

    class State:
        tree = Tree()
        is_over = True

        def receive(self):
            pass

        def wait(self, seconds):
            clock.now += seconds

    clear(State(), clock=clock)
    assert killed == [5]


# --- what it is told ------------------------------------------------------------------------------

TOLD = """\
import os, sys
from plaunch.process.stopping.guard import start_guard

guard = start_guard()
for line in sys.stdin:
    guard.send(line.encode())
    print("told", flush=True)
"""


@pytest.fixture
def told(run_program):
    """Tell the guard of a new process some lines, then kill that process."""

    def told(*lines):
        launcher = run_program("-c", TOLD, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for line in lines:
            launcher.stdin.write(line.decode())
            launcher.stdin.flush()
            assert launcher.stdout.readline() == "told\n"
        launcher.kill()

    return told


def job(folder=None):
    return job_line("0123456789ab", since=0, has_forked=False, folder=folder)


def test_a_process_that_has_got_a_workers_number_is_spared(told, sleep):
    """Number and start time are compared; the second worker is there to show that it looked."""
    stranger, worker = (sleep(start_new_session=True) for _ in range(2))
    told(
        job(),
        process_line(0, stranger.pid, read_process(stranger.pid).start - 1),
        process_line(1, worker.pid, read_process(worker.pid).start),
    )
    assert worker.wait(BOUND) == -signal.SIGKILL
    assert stranger.poll() is None


def test_lines_that_make_no_sense_do_no_harm(told, sleep):
    worker = sleep(start_new_session=True)
    told(
        b"process 0 1 1\n",  # before any job: process 1 of the system
        b"hello, world\n",
        b"job\n",
        b"process one two three\n",
        job(),
        process_line(1, worker.pid, read_process(worker.pid).start),
    )
    assert worker.wait(BOUND) == -signal.SIGKILL


def test_only_a_temporary_folder_of_plaunch_is_removed(told, tmp_path):
    for name in ("precious", "plaunch_run_1234"):
        (tmp_path / name / "attempt_0").mkdir(parents=True)
        (tmp_path / name / "attempt_0" / "error.json").write_text("{}")
        told(job(folder=str(tmp_path / name)))
    wait_until(lambda: not (tmp_path / "plaunch_run_1234").exists(), "our folder is removed")
    assert (tmp_path / "precious" / "attempt_0" / "error.json").exists()


def test_a_folder_of_a_very_long_name_is_left_out():
    assert len(job_line("0" * 12, since=1, has_forked=True, folder="/x" * 3000)) < 100


@pytest.mark.parametrize("can_fork", [True, False])
def test_a_launcher_without_standard_streams_has_a_guard(can_fork):
    """What is opened gets the numbers of the missing streams, which a guard replaces."""
    code = (
        "import os\n"
        "from plaunch.process.stopping.guard import start_guard\n"
        "for fd in (0, 2): os.close(fd)\n"
        f"guard = start_guard(can_fork=lambda: {can_fork})\n"
        "print(guard.line_fd > 2, guard.is_alive(), flush=True)\n"
        "guard.dismiss()\n"
    )
    assert run_python("-c", code, check=True).stdout == "True True\n"


def test_a_process_is_reported_once_to_a_guard_until_it_has_ended():
    lines = []
    keeper = GuardKeeper(is_enabled=True, proc="/proc", clock=Clock(), can_fork=lambda: False)
    keeper.guard = types.SimpleNamespace(send=lines.append)
    keeper.report(0, (5, 100))
    keeper.report(0, (5, 100))
    assert lines == [process_line(0, 5, 100)]
    keeper.report(1, (5, 100))  # it belongs to another worker, as is known now
    keeper.forget((5, 100))
    keeper.report(1, (5, 100))
    assert lines == [process_line(0, 5, 100), *[process_line(1, 5, 100)] * 2]
