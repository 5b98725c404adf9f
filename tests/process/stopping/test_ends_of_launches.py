"""Nothing outlives a launch from the command line, however it ends."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading

import pytest
from plaunch.agent import LocalElasticAgent, WorkerSpec, WorkerState
from plaunch.testing import FakeElasticRendezvous
from plaunch_logs_default import DefaultLogsSpecs

from helpers.processes import is_reaped
from helpers.waiting import BOUND, wait_until

# What has neither tag nor parent is found, too: the launcher inherits all orphans.
KINDS = ("child", "stubborn", "session", "daemon", "execd", "closed", "cleared", "lost")
TAGGED = ("child", "stubborn", "session", "daemon", "execd", "closed", "cleared")


def left_in(tmp_path):
    return os.listdir(tmp_path / "tmp")


@pytest.mark.parametrize(
    ("end", "signum", "code"),
    [
        *[("return", None, 0), ("fail", None, 3), ("crash", None, 128 + 9), ("vanish", None, 4)],
        *[("wait", one, 128 + one) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)],
    ],
)
def test_workers_end_or_a_signal_stops_the_launcher(launch, family, tmp_path, end, signum, code):
    # One that still starts its children when another one fails would get the whole grace.
    launcher = launch(KINDS, end, "--shutdown-timeout=5")
    if signum is not None:
        family.wait_for("worker", 2)
        launcher.send_signal(signum)
    _, err = launcher.communicate(timeout=BOUND)
    assert (launcher.returncode, family.alive()) == (code, []), err
    assert set(family.kinds()) == {*KINDS, "worker"}
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("end", ["wait", "stubborn", "closing"])
def test_the_launcher_is_killed(launch, family, tmp_path, end):
    launcher = launch(TAGGED, end)
    family.wait_for("worker", 2)
    launcher.kill()
    launcher.wait(BOUND)
    family.wait_until_gone()
    wait_until(lambda: left_in(tmp_path) == [], lambda: f"the removal of {left_in(tmp_path)}")


@pytest.mark.parametrize(
    ("grace", "second", "said"),
    [
        (600, signal.SIGINT, "sending SIGKILL"),  # at once
        (0.2, None, "waiting for local ranks 0-1 to end after SIGTERM"),
    ],
)
def test_workers_that_ignore_the_signal_are_killed(launch, family, grace, second, said):
    launcher = launch(KINDS, "stubborn", f"--shutdown-timeout={grace}")
    family.wait_for("worker", 2)
    launcher.send_signal(signal.SIGTERM)
    if second is not None:
        assert "SIGTERM received" in launcher.stderr.readline()
        # Those within 0.2 s of the first signal belong to the same request.
        wait_until(
            lambda: not family.alive() or launcher.send_signal(second), "the workers are gone"
        )
    _, err = launcher.communicate(timeout=BOUND)
    assert (launcher.returncode, family.alive()) == (128 + signal.SIGTERM, []), err
    assert said in err


ONE_GENERATION = """\
import os, sys
import descendants

folder, kinds = sys.argv[1], sys.argv[2].split(",")
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
    left = descendants.alive(folder)
    sys.exit(f"of the first generation: {left}" if left else 0)
descendants.work(folder, kinds, "fail" if os.environ["RANK"] == "0" else "wait")
"""


def test_a_second_generation_never_meets_the_first(run_program, family, tmp_path):
    script = tmp_path / "generations.py"
    script.write_text(ONE_GENERATION)
    options = ("--nproc-per-node=2", "--max-restarts=1", str(script))
    launcher = run_program("-m", "plaunch", *options, family.folder, ",".join(KINDS))
    _, err = launcher.communicate(timeout=BOUND)
    assert launcher.returncode == 0, err
    assert set(KINDS) <= set(family.kinds())


@pytest.mark.parametrize(
    ("end", "options", "code", "kept"),
    [
        ("return", ["--keep-daemons"], 0, ["execd", "execd", "lost", "lost"]),
        ("return", [], 0, []),
        ("fail", ["--keep-daemons"], 3, []),
    ],
)
def test_daemons_are_kept_on_request(launch, family, tmp_path, end, options, code, kept):
    launcher = launch(["execd", "lost"], end, *options, stderr=None)
    assert launcher.wait(BOUND) == code
    assert sorted(kind for kind, _ in family.alive()) == kept
    assert left_in(tmp_path) == []


LATE = """\
import os, sys, time
folder = sys.argv[1]
print("a word", file=sys.stderr, flush=True)
print("a line", flush=True)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    while not os.path.exists(os.path.join(folder, "go")):
        time.sleep(0.005)
    os.write(2, b"a late word\\n")
    os.write(1, b"a late line\\n")
    open(os.path.join(folder, "survived"), "w").close()
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ((), "a late word\n"),
        (("--tee=3", "--log-dir=logs"), ""),
        (("--redirects=3", "--log-dir=logs"), ""),
        (("--tee=3", "--log-dir=/dev/null"), "a late word\n"),
        (("--local-ranks-filter=1",), ""),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, tuple) else "",
)
def test_what_is_kept_can_still_write(run_program, tmp_path, options, shown):
    """The launcher, through which streams pass otherwise, is gone by then."""
    script = tmp_path / "late.py"
    script.write_text(LATE)
    with (tmp_path / "err").open("w") as err, (tmp_path / "out").open("w") as out:
        command = ("-m", "plaunch", "--keep-daemons", *options, str(script), str(tmp_path))
        launcher = run_program(*command, stderr=err, stdout=out)
    assert launcher.wait(BOUND) == 0
    before = (tmp_path / "err").read_text()
    assert ("a word\n" in before) is (
        options[:1] not in (("--redirects=3",), ("--local-ranks-filter=1",))
    )
    (tmp_path / "go").touch()
    wait_until((tmp_path / "survived").exists, "the daemon writes")
    assert (tmp_path / "err").read_text() == before + shown
    if "logs" in "".join(options):
        [log] = tmp_path.glob("logs/*/attempt_0/0/stderr.log")
        assert log.read_text() == "a word\na late word\n"


INNER = """\
import subprocess, sys
options = ["--nproc-per-node=2", "--shutdown-timeout=2"]
sys.exit(subprocess.call([sys.executable, "-m", "plaunch", *options, *sys.argv[1:]]))
"""


@pytest.fixture
def launch_nested(run_program, programs, family, tmp_path):
    """Start a launch whose one worker starts another launch with two workers."""

    def launch_nested(kinds, end):
        script = tmp_path / "inner.py"
        script.write_text(INNER)
        inner = os.path.join(programs, "descendants.py")
        return run_program("-m", "plaunch", str(script), inner, family.folder, ",".join(kinds), end)

    return launch_nested


def test_a_launch_within_a_launch_ends_well(launch_nested, family):
    outer = launch_nested(KINDS, "return")
    _, err = outer.communicate(timeout=BOUND)
    assert (outer.returncode, family.alive()) == (0, []), err
    assert family.kinds().count("worker") == 2


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_the_outer_of_two_launchers_is_stopped(launch_nested, family, wait_until_alone, signum):
    outer = launch_nested(TAGGED, "stubborn")
    family.wait_for("worker", 2)
    outer.send_signal(signum)
    if signum == signal.SIGTERM:
        assert "SIGTERM received" in outer.stderr.readline()
        outer.send_signal(signum)
    outer.wait(BOUND)
    family.wait_until_gone()
    wait_until_alone()


# Its child opens a pipe that nobody writes to; until the child is a program of its own, the parent
# waits for it in state D, with all signals but SIGKILL held back.
STUCK = """\
import os, sys
fifo = os.path.join(sys.argv[1], ".fifo")
os.mkfifo(fifo)
if os.environ["RANK"] == "0":
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=[
        (os.POSIX_SPAWN_OPEN, 0, fifo, os.O_RDONLY, 0)])
"""


def test_a_worker_that_is_stuck_in_the_kernel_ends_the_job(run_program, family, tmp_path):
    script = tmp_path / "stuck.py"
    script.write_text(STUCK)
    words = ("--max-restarts=3", "--shutdown-timeout=600", str(script), family.folder)
    env = {"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "0.3"}
    launcher = run_program("-m", "plaunch", *words, env=env)
    _, err = launcher.communicate(timeout=BOUND)
    assert launcher.returncode == 114, err
    assert re.search(r"local rank 0: pid \d+ \(state D, waits in \w+\), for 0\.\d s", err)
    assert "restart 1 of 3" not in err
    assert "Traceback" not in err


HELPERS = """\
import subprocess
from plaunch.plugin import hookimpl
helpers = []
@hookimpl
def plaunch_workers_started(group):
    for own_session in (False, True):
        command = ['sh', '-c', 'read line; exit 7']
        options = {'stdin': subprocess.PIPE, 'start_new_session': own_session}
        helpers.append(subprocess.Popen(command, **options))
@hookimpl
def plaunch_agent_finished(group, result):
    for helper in helpers:
        helper.communicate(b'end\\n')
    print([helper.returncode for helper in helpers], flush=True)
"""


def test_a_plugins_own_process_is_not_taken_for_an_orphan(launch, programs, family, site):
    """It is a child of the launcher, in its session or in one of its own, and none of the job's."""
    site.install("helper", {"plaunch.plugins": {"helper": "helper"}}, helper=HELPERS)
    env = {"PYTHONPATH": f"{site.folder}:{programs}"}
    launcher = launch(KINDS, "return", nprocs=1, env=env, stdout=-1)
    out, err = launcher.communicate(timeout=BOUND)
    assert (launcher.returncode, out, family.alive()) == (0, "", []), err
    assert "[7, 7]\n" in err  # what plugins print is not the job's output


def test_orphans_that_end_while_the_job_runs_leave_no_zombies(launch, family):
    launcher = launch(["daemon"], "wait")
    family.wait_for("worker", 2)
    orphans = family.pids("daemon")
    for pid in orphans:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: all(map(is_reaped, orphans)), "somebody reaps the orphans")
    assert launcher.poll() is None
    launcher.terminate()
    launcher.communicate(timeout=BOUND)


# Without the right of root to end all; other users do not have it in any case.
DROP = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(24, 5, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_KILL
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
LEAVES_OTHERS = """\
import os, signal, sys
import descendants
reader, writer = os.pipe()
if os.fork() == 0:
    descendants.note(sys.argv[1], "other")
    os.setgid(65534)
    os.setuid(65534)
    os.write(writer, b"x")
    signal.pause()
os.read(reader, 1)
"""


@pytest.mark.needs("root")
def test_what_runs_as_another_user_is_no_reason_to_restart_the_host(run_program, family, tmp_path):
    script = tmp_path / "leaves.py"
    script.write_text(LEAVES_OTHERS)
    launcher = run_program("-c", DROP, "-m", "plaunch", str(script), family.folder)
    _, err = launcher.communicate(timeout=BOUND)
    [other] = family.pids("other")
    assert launcher.returncode == 114, err
    assert f"cannot be ended: local rank 0: pid {other} (state S" in err
    assert f"may not send signals to pid {other}, which runs as another user" in err
    assert "outlive SIGKILL" not in err
    assert "restart" not in err


class Generations(LocalElasticAgent):
    """An agent that looks who is there whenever it starts workers."""

    def __init__(self, *args, family, **kwargs):
        super().__init__(*args, **kwargs)
        self.family = family
        self.found = []

    def _start_workers(self, worker_group):
        self.found.append(self.family.alive())
        return super()._start_workers(worker_group)


def test_a_membership_change_ends_the_generation_first(family, programs, tmp_path):
    script = os.path.join(programs, "descendants.py")
    kinds = "child,stubborn,session,daemon,execd,cleared"
    with FakeElasticRendezvous(world_size=1) as rendezvous:
        spec = WorkerSpec(
            role="trainer",
            local_world_size=2,
            rdzv_handler=rendezvous,
            entrypoint=sys.executable,
            args=(script, family.folder, kinds, "wait-in-round-0"),
        )

        def arrive():
            family.wait_for("worker", 2)
            rendezvous.arrive()

        arrival = threading.Thread(target=arrive)
        arrival.start()
        agent = Generations(spec, DefaultLogsSpecs(log_dir=str(tmp_path)), family=family)
        result = agent.run()
        arrival.join()
    assert result.state is WorkerState.SUCCEEDED
    assert agent.found == [[], []]
    assert family.alive() == []
    assert set(kinds.split(",")) < set(family.kinds())
