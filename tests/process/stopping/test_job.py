"""Inheriting orphans: in processes that are plaunch's own, and in no other."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import time

import pytest
from plaunch.process.marks import ADOPTED, process_line
from plaunch.process.own_process import become_subreaper
from plaunch.process.proc import Process, find_identity
from plaunch.process.stopping import evidence
from plaunch.process.stopping.job import Reaper
from plaunch.process.stopping.stop import Sweep

from helpers.clock import Clock
from helpers.programs import run_python

IS_ONE = """\
import ctypes, sys
flag = ctypes.c_int(-1)
ctypes.CDLL(None).prctl(37, ctypes.byref(flag), 0, 0, 0)  # PR_GET_CHILD_SUBREAPER
print(flag.value)
"""


def sweep(job, given_up, patience):
    """Kill all that is left; what outlives it."""
    one = Sweep(job, given_up, patience)
    while (delay := one.step()) is not None:
        time.sleep(delay)
    return one.left


TEND = f"""\
import os, subprocess, sys, time
{inspect.getsource(sweep)}
if sys.argv[1] == "own":
    os.environ["PLAUNCH_LAUNCHER"] = str(os.getpid())
from plaunch.process.stopping.job import Reaper
from plaunch.process.stopping.stop import Sweep
reaper = Reaper(use_guard=False)
job = reaper.begin()
"""


def run(code, *argv):
    return run_python("-c", code, *argv, check=True).stdout.split()


@pytest.mark.parametrize(("whose", "flag"), [("own", "1"), ("a user's", "0")])
def test_only_plaunchs_own_process_inherits_orphans(whose, flag):
    assert run(TEND + IS_ONE, whose) == [flag]


def test_a_c_library_without_it_is_no_error(monkeypatch):
    import ctypes

    def nothing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", nothing)
    assert not become_subreaper()


EXIT_CODES = """\
# Nobody's exit code is taken.
children = [subprocess.Popen(["sh", "-c", f"exit {n}"]) for n in (5, 6)]
children += [subprocess.Popen(["sh", "-c", f"exit {n}"], start_new_session=True) for n in (7, 8)]
for child in children:
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
job.reap_orphans()
sweep(job, (), 10)
print(*[child.wait() for child in children])
"""


ZOMBIES = """\
# The grandchild's session is its parent's, which ends: an orphan that cannot be anybody else's.
middle = subprocess.Popen(
    ["sh", "-c", "exec 3<&0; (read x <&3; exit 3) & echo $!"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
orphan = int(middle.stdout.readline())
middle.wait()
middle.stdin.close()
os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOWAIT)
job.reap_orphans()
print(os.path.exists(f"/proc/{orphan}"))
"""


ENDED_LEADERS = """\
# Orphans that lead sessions, of which nothing was seen but their end, are reaped a second later:
# they might be a plugin's, which has an object that stands for them then, as for its program here.
held = subprocess.Popen(["sh", "-c", "exit 7"], start_new_session=True)
middle = subprocess.run(
    [sys.executable, "-c",
     "import os\\n"
     "for _ in range(3):\\n"
     "    if os.fork() == 0:\\n"
     "        os.setsid()\\n"
     "        os.write(1, b'%d\\\\n' % os.getpid())\\n"
     "        os._exit(0)\\n"],
    stdout=subprocess.PIPE, start_new_session=True)
orphans = [int(line) for line in middle.stdout.split()]
for pid in (held.pid, *orphans):
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
def left():
    return sum(os.path.exists(f"/proc/{pid}") for pid in orphans)
job.reap_orphans()
first = left()
time.sleep(1.1)
job.reap_orphans()
print(first, left(), held.wait())
"""


FORKED_BY_HAND = """\
# What a plugin forks with neither a Popen object nor in the launcher's session, and waits for, is
# left to it, since it was seen to be the launcher's own.
pid = os.fork()
if pid == 0:
    os.setsid()
    time.sleep(600)
while os.getsid(pid) != pid:
    time.sleep(0.001)
job.reap_orphans()  # it is seen alive
os.kill(pid, 9)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
job.reap_orphans()
time.sleep(1.1)
job.reap_orphans()
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


LEFT_BY_PLUGIN = """\
# What a plugin's program leaves in the background, in a session that is not the launcher's, is not
# ended, but it is reaped.
middle = subprocess.run(
    ["sh", "-c", "sleep 600 <&- >&- 2>&- & echo $!"],
    stdout=subprocess.PIPE, start_new_session=True)
exporter = int(middle.stdout)
job.reap_orphans()
left = sweep(job, (), 60)
print(left, os.path.exists(f"/proc/{exporter}"))
os.kill(exporter, 9)
os.waitid(os.P_PID, exporter, os.WEXITED | os.WNOWAIT)
job.reap_orphans()
print(os.path.exists(f"/proc/{exporter}"))
"""


HIDDEN = """\
# Programs that show nothing of themselves, as ssh-agent: one by a plugin, and one that is nobody's.
hide = "import ctypes, time; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); print(flush=True); "
argv = [sys.executable, "-c", hide + "time.sleep(600)"]
held = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
held.stdout.readline()
fork = "import os\\nif os.fork() == 0:\\n    os.setsid(); print(os.getpid(), flush=True)\\n    "
middle = subprocess.Popen(
    [sys.executable, "-c", fork + hide + "time.sleep(600)"], env={}, stdout=subprocess.PIPE)
orphan = int(middle.stdout.readline())
middle.stdout.readline()
middle.wait()
try:
    open(f"/proc/{orphan}/environ").close()
except PermissionError:
    print("hidden")
left = sweep(job, (), 60)
print(left, os.path.exists(f"/proc/{orphan}"), held.poll())
held.kill()
"""

# The rights of root to see all, and to end all; other users do not have them in any case.
DROP = """\
import ctypes, os, sys
for right in (5, 19, 21, 38):  # CAP_KILL, CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON
    ctypes.CDLL(None).prctl(24, right, 0, 0, 0)  # PR_CAPBSET_DROP
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def test_a_hidden_program_is_the_launchers_if_an_object_stands_for_it():
    assert run(DROP, "-c", TEND + HIDDEN, "own") == ["hidden", "[]", "False", "None"]


OTHER_USERS = """\
# A plugin's program that has become another user, and can neither be read nor ended.
become = "import os, sys; os.setgid(65534); os.setuid(65534); print(flush=True); sys.stdin.read()"
held = subprocess.Popen(
    [sys.executable, "-c", become],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
held.stdout.readline()
left = []
end = time.monotonic() + 1.5
while time.monotonic() < end:
    left += sweep(job, (), 60)
print(left)
held.communicate()
"""


@pytest.mark.needs("root")
def test_another_users_program_is_not_taken_for_an_orphan():
    assert run(DROP, "-c", TEND + OTHER_USERS, "own") == ["[]"]


LEADERS = """\
# Orphans that lead sessions, with nothing of anybody's environment: only seen to be ours alive.
# They are ended and reaped.
middle = subprocess.Popen(
    [sys.executable, "-c",
     "import os, subprocess\\n"
     "orphan = subprocess.Popen(['sleep', '600'], env={}, start_new_session=True)\\n"
     "print(orphan.pid, flush=True)\\n"
     "os._exit(0)\\n"],
    stdout=subprocess.PIPE, start_new_session=True)
orphan = int(middle.stdout.readline())
middle.wait()
"""


SWEPT = """
assert sweep(job, (), 60) == []
print(os.path.exists(f"/proc/{orphan}"))
"""

ENDED_BY_OTHERS = """
job.reap_orphans()
time.sleep(0.3)  # it has no environment, indeed
job.reap_orphans()
os.kill(orphan, 9)
os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOWAIT)
job.reap_orphans()
print(os.path.exists(f"/proc/{orphan}"))
"""


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        pytest.param(EXIT_CODES, "5 6 7 8", id="exit codes"),
        pytest.param(ZOMBIES, "False", id="zombies"),
        pytest.param(ENDED_LEADERS, "3 0 7", id="ended leaders"),
        pytest.param(FORKED_BY_HAND, "-9", id="forked by hand"),
        pytest.param(LEFT_BY_PLUGIN, "[] True False", id="left by a plugin"),
        pytest.param(LEADERS + SWEPT, "False", id="leaders, swept"),
        pytest.param(LEADERS + ENDED_BY_OTHERS, "False", id="leaders, ended by others"),
    ],
)
def test_orphans_are_tended(code, printed):
    assert run(TEND + code, "own") == printed.split()


def test_the_guard_is_notified_of_orphans(run_program, family, programs):
    """Nobody else could know of those without a tag, once the launcher is gone."""
    launcher = run_program(
        "-c",
        "import os, subprocess, sys, time, descendants\n"
        "os.environ['PLAUNCH_LAUNCHER'] = str(os.getpid())\n"
        "from plaunch.process.stopping.job import Reaper\n"
        "job = Reaper().begin()\n"
        f"argv = [sys.executable, descendants.__file__, {family.folder!r}, 'lost', 'return']\n"
        "subprocess.run(argv, start_new_session=True, check=True)\n"
        # It is a program without an environment from now on.
        f"(name,) = (n for n in os.listdir({family.folder!r}) if n.startswith('lost-'))\n"
        "while open(f'/proc/{name[5:]}/environ').read(): time.sleep(0.01)\n"
        "job.reap_orphans()\n"
        "time.sleep(0.3)\n"  # it has none for so long that it is judged by that
        "job.reap_orphans()\n"
        "os.kill(os.getpid(), 9)\n",
    )
    assert launcher.wait(60) == -9
    family.wait_until_gone()
    assert family.kinds() == ["lost", "worker"]


def test_orphans_are_reaped_once_in_a_period(monkeypatch):
    clock = Clock(0.0)
    reaper = Reaper(use_guard=False, clock=clock)
    job = reaper.begin()
    looks = []
    monkeypatch.setattr(type(job), "reap_orphans", lambda self: looks.append(clock.now))
    reaper.period = 2.0
    for tick in range(50):
        clock.now = tick / 10
        reaper.update_if_due()
    assert looks == [0.0, 2.0, 4.0]
    reaper.close()
    clock.now = 60
    reaper.update_if_due()
    assert len(looks) == 3


def test_a_sweep_logs_the_processes_that_survive_it(sleep, monkeypatch):
    """Processes that get SIGKILL and stay, as in uninterruptible sleep."""
    reaper = Reaper(use_guard=False)
    job = reaper.begin()
    program = sleep(env={"PLAUNCH_JOBS": job.tags(0)}, start_new_session=True)
    monkeypatch.setattr(Process, "send_signal", lambda *_: True)
    monkeypatch.setattr(os, "killpg", lambda *_: None)
    assert [process.pid for process in sweep(job, (), patience=0.02)] == [program.pid]
    assert sweep(job, {program.pid}, patience=60) == []
    monkeypatch.undo()
    assert sweep(job, (), patience=60) == []
    assert program.wait(60) == -9


@pytest.fixture
def blank(monkeypatch):
    """What to read instead of environments, by number; empty ones for so many times."""
    answers = {}
    find_environ = evidence.find_environ

    def read(pid, proc):
        if answers.get(pid, 0) <= 0:
            return find_environ(pid, proc)
        answers[pid] -= 1
        return b""

    monkeypatch.setattr(evidence, "find_environ", read)
    return answers


@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_sweep_reads_a_process_again_after_an_exec(blank, sleep, times):
    clock = Clock(0.0)  # however long a look takes here
    job = Reaper(use_guard=False, clock=clock).begin()
    program = sleep(env={"PLAUNCH_JOBS": job.tags(0)})
    blank[program.pid] = times
    assert sweep(job, (), patience=60) == []
    assert program.wait(60) == -9


def test_a_sweep_does_not_wait_for_an_environment_that_is_not_there(blank, sleep):
    job = Reaper(use_guard=False).begin()
    program = sleep(env={"PLAUNCH_JOBS": job.tags(0)})
    blank[program.pid] = 10**9
    assert sweep(job, (), patience=60) == []
    assert program.poll() is None


BEGIN = "reaper = Reaper(use_guard=False)\njob = reaper.begin()\n"
EARLIER_CHILD = """\
# It shows nothing of the launcher, and no object stands for it.
child = os.posix_spawn("/bin/sleep", ["sleep", "600"], {}, setsid=True)
"""
SWEPT_AROUND = """\
left = sweep(job, (), 60)
print(left, os.path.exists(f"/proc/{child}"))
"""


def test_children_that_the_launcher_had_before_are_no_orphans():
    code = TEND.replace(BEGIN, EARLIER_CHILD + BEGIN) + SWEPT_AROUND + "os.kill(child, 9)"
    assert run(code, "own") == ["[]", "True"]
    assert run(TEND + EARLIER_CHILD + SWEPT_AROUND, "own") == ["[]", "False"]  # a later one is


def test_a_plugins_program_is_not_taken_for_an_orphan_while_it_begins(run_program):
    """Between its two environments it has none, and leads a session of its own."""
    launcher = run_program(
        "-c",
        f"import os, subprocess, sys, threading, time\n{inspect.getsource(sweep)}"
        "os.environ['PLAUNCH_LAUNCHER'] = str(os.getpid())\n"
        "from plaunch.process.stopping.job import Reaper\n"
        "from plaunch.process.stopping.stop import Sweep\n"
        "job = Reaper().begin()\n"
        "ends = []\n"
        "def plugin():\n"
        "    argv = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "    for _ in range(100):\n"
        "        one = subprocess.Popen(argv, start_new_session=True)\n"
        "        time.sleep(0.002)\n"
        "        ends.append(one.poll())\n"
        "        one.kill()\n"
        "        one.wait()\n"
        "thread = threading.Thread(target=plugin)\n"
        "thread.start()\n"
        "while thread.is_alive():\n"
        "    sweep(job, (), 10)\n"
        "raise SystemExit(ends != [None] * 100)\n",
    )
    assert launcher.wait(60) == 0


def test_a_sweep_does_not_wait_for_what_it_may_not_signal(sleep, monkeypatch):
    reaper = Reaper(use_guard=False)
    job = reaper.begin()
    program = sleep(env={"PLAUNCH_JOBS": job.tags(0)})

    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Process, "send_signal", refuse)
    assert [process.pid for process in sweep(job, (), patience=600)] == [program.pid]


def test_workers_do_not_get_the_launchers_variable(run_program):
    words = ("--no-python", "sh", "-c", "echo ${PLAUNCH_LAUNCHER-none} ${#PLAUNCH_JOBS}")
    launcher = run_program("-m", "plaunch", *words, stdout=subprocess.PIPE)
    assert launcher.communicate(timeout=60)[0] == "none 14\n"
    assert "PLAUNCH_LAUNCHER" not in os.environ


# --- what the last look costs ---------------------------------------------------------------------

LAST_LOOK = """\
import plaunch.process.stopping.tree as tree_module
from plaunch.process import ContextComponents, start_processes

counts = {"children": 0, "all": 0, "list": 0}

def count(module, name, key):
    function = getattr(module, name)
    def counting(*args):
        counts[key] += 1
        return function(*args)
    setattr(module, name, counting)

context = start_processes(
    "t", sys.executable, {0: ("-c", "raise SystemExit(7)")}, log_dir=os.devnull,
    components=ContextComponents(reaper=reaper))
daemon = subprocess.Popen(["sleep", "600"], start_new_session=sys.argv[2] == "own session")
os.waitid(os.P_PID, context.pids()[0], os.WEXITED | os.WNOWAIT)
count(tree_module, "read_children", "children")
count(tree_module, "read_table", "all")
count(tree_module, "list_numbers", "list")
context.wait(60)
print(counts["children"], counts["all"], counts["list"], daemon.poll())
daemon.kill()
"""


@pytest.mark.parametrize(
    ("whose", "daemon", "counts"),
    [
        ("own", "launcher's session", "1 0 0"),
        ("own", "own session", "1 0 0"),
        # A library looks at all processes once, and for new ones twice.
        ("a user's", "own session", "0 1 2"),
    ],
)
def test_if_nothing_is_left_children_are_read_once_and_no_other_processes(whose, daemon, counts):
    """A plugin's program that still runs is no reason to look at all processes either."""
    # Processes that others start at that moment are looked at as well.
    found = (run(TEND + LAST_LOOK, whose, daemon) for _ in range(5))
    assert [*counts.split(), "None"] in found


def test_a_helper_is_reported_to_the_guard():
    reaper, lines = Reaper(), []
    reaper.begin()
    reaper.guards.guard.send = lines.append
    helper = reaper.start_helper(["sleep", "600"], os.environ)
    try:
        assert lines == [process_line(ADOPTED, *find_identity(helper.pid))]
    finally:
        helper.kill()
        assert helper.wait(60) == -signal.SIGKILL
        reaper.close()
