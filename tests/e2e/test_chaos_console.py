"""Slow, blocked, broken, full or missing consoles do not affect the job."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import time

import pytest

from helpers.processes import is_gone
from helpers.programs import end_launch
from helpers.terminals import Terminal
from helpers.waiting import BOUND, wait_for_files, wait_until

FINISH = 20.0  # seconds: after a signal the launcher waits briefly for a blocked console

# Writes numbered lines of 64 bytes, then creates a file. With an exit code, rank 1 exits with it
# as soon as both are done.
WRITE = """\
import os, sys, time
rank, count = os.environ["RANK"], int(sys.argv[1])
for begin in range(0, count, 1000):
    numbers = range(begin, min(begin + 1000, count))
    os.write(1, b"".join(b"%s %012d %48d\\n" % (rank.encode(), number, 0) for number in numbers))
open(f"done-{rank}", "w").close()
if sys.argv[2:]:
    while not os.path.exists("done-0") or rank == "0":
        time.sleep(0.005)
    sys.exit(int(sys.argv[2]))
"""
LINE = 64
# In its first attempt, both workers fail once all is written.
FAILS_ONCE = """\
while not os.path.exists("done-0") or not os.path.exists("done-1"):
    time.sleep(0.005)
sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
"""

# Waits for a file, or for a signal.
WAIT = """\
import os, signal, sys, time
with open(f"up-{os.environ['RANK']}.new", "w") as file:
    file.write(f"{os.getpid()} {signal.getsignal(signal.SIGHUP)}")
os.rename(file.name, f"up-{os.environ['RANK']}")
while not os.path.exists("go"):
    time.sleep(0.01)
os.write(1, b"goes on\\n")
"""
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
STUBBORN += "signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + WAIT


@contextlib.contextmanager
def started(plaunch, *argv, **options):
    """Start a launch with these streams."""
    process = plaunch.popen(*argv, start_new_session=True, **options)
    try:
        yield process
    finally:
        end_launch(process)


def words(exitcode):
    return [] if exitcode is None else [str(exitcode)]


def shell(text):
    """A command for the shell in which `"$@"` is the launcher."""
    return ["bash", "-c", text, "bash"]


def logged(folder, stream="stdout"):
    """The log files of all ranks."""
    return sorted((folder / "logs").glob(f"*/attempt_0/*/{stream}.log"))


def check_logs(folder, count, nprocs=2):
    paths = logged(folder)
    assert len(paths) == nprocs
    for rank, path in enumerate(paths):
        expected = b"".join(b"%d %012d %48d\n" % (rank, number, 0) for number in range(count))
        assert path.read_bytes() == expected


TEE = ["--nproc-per-node=2", "--log-dir=logs", "--tee=3"]
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


class Blocked:
    """A launch in its own folder, whose console is a pipe without a reader."""

    def __init__(self, plaunch, stack, name, script, *argv, together):
        self.folder = plaunch.folder / name
        self.folder.mkdir()
        reader, writer = os.pipe()
        stack.callback(os.close, reader)
        with open(writer, "wb") as console, (self.folder / "err").open("wb") as err:
            self.process = stack.enter_context(
                started(
                    plaunch,
                    *(*TEE, plaunch.write(f"{name}.py", script), *argv),
                    cwd=self.folder,
                    stdout=console,
                    stderr=console if together else err,
                )
            )

    @property
    def said(self):
        return (self.folder / "err").read_text()


def test_the_launcher_waits_for_a_blocked_console_until_a_signal(plaunch):
    """It blocks neither workers, nor the failure report, nor the exit after a signal."""
    count = 150_000  # lines, 9.6 MB per worker: more than the pipe and the buffer in memory hold
    with contextlib.ExitStack() as stack:
        success, failure, both_succeed, both_fail = (
            Blocked(plaunch, stack, name, WRITE, str(count), *exitcode, together=together)
            for name, exitcode, together in (
                ("success", [], False),
                ("failure", ["7"], False),
                ("both_succeed", [], True),
                ("both_fail", ["7"], True),
            )
        )
        stopped = Blocked(plaunch, stack, "stopped", WRITE + WAIT, "20000", together=True)
        wait_for_files(stopped.folder / "up-0", stopped.folder / "up-1")
        stopped.process.terminate()
        for job in (success, failure, both_succeed, both_fail):
            wait_for_files(job.folder / "done-0", job.folder / "done-1")
        for job in (success, failure):
            wait_until(lambda job=job: "waiting for stdout" in job.said, lambda job=job: job.said)
        for job in (success, failure, both_succeed, both_fail):
            assert job.process.poll() is None
            job.process.send_signal(signal.SIGINT)
        # Ctrl-C may arrive before the launcher has seen the exits of these two workers.
        assert both_succeed.process.wait(FINISH) in (0, 128 + signal.SIGINT)
        assert both_fail.process.wait(FINISH) in (7, 128 + signal.SIGINT)
        for job, exitcode in ((success, 0), (failure, 7), (stopped, 128 + signal.SIGTERM)):
            assert job.process.wait(FINISH) == exitcode
        for job in (success, failure, both_succeed, both_fail):
            check_logs(job.folder, count)
    for job in (success, failure):
        (line,) = (line for line in job.said.splitlines() if "has not taken all of" in line)
        size, lines = map(int, re.findall(r"(\d+) bytes, (\d+) lines", line)[0])
        assert size > 2 * LINE * count - (1 << 20)
        assert 0.95 * 2 * count < lines < 2 * count
        assert re.search(r"the log files in '.*attempt_0' have all of it", line)
    assert "exit code 7" in failure.said


class Pausing:
    """Reads a pipe for a moment, pauses, and continues."""

    def __init__(self, fd):
        self._fd = fd
        self._pieces = [os.read(fd, 1000)]

    def resume(self):
        while piece := os.read(self._fd, 1 << 20):
            self._pieces.append(piece)
        return b"".join(self._pieces).splitlines()


@pytest.mark.parametrize(
    ("count", "pause"),
    [
        (50_000, 0.0),
        pytest.param(500_000, 30.0, marks=[pytest.mark.exhaustive, pytest.mark.timeout(300)]),
    ],
)
def test_a_reader_that_pauses_gets_everything(plaunch, count, pause):
    """Like `plaunch ... | less`: it reads one screen, and the rest when the user scrolls.

    Two workers write `count` lines each, in two attempts.
    """
    script, err = plaunch.write("write.py", WRITE + FAILS_ONCE), plaunch.folder / "err"
    argv = [*TEE, "--max-restarts=1", "--event-log-handler=jsonl", script, str(count)]
    with (
        err.open("wb") as stderr,
        started(plaunch, *argv, stdout=subprocess.PIPE, stderr=stderr) as process,
    ):
        reader = Pausing(process.stdout.fileno())
        wait_until(lambda: "waiting for stdout" in err.read_text(), err.read_text)
        time.sleep(pause)
        lines = reader.resume()
        process.stdout.close()
        assert process.wait(BOUND) == 0
    for attempt, rank in itertools.product(range(2), range(2)):
        prefix = b"[default%d]:" % rank
        own = [line for line in lines if line.startswith(prefix)]
        begin = attempt * count
        assert own[begin : begin + count] == [
            b"%s%d %012d %48d" % (prefix, rank, number, 0) for number in range(count)
        ]
    assert len(lines) == 4 * count
    assert err.read_text().count("waiting for stdout") == 1
    (events,) = (plaunch.folder / "logs").glob("*/events/*.jsonl")
    *_, awaited, finished = map(json.loads, events.read_text().splitlines())
    assert awaited["name"] == "plaunch.console.awaited"
    # The launcher reports a pause after half a second.
    assert finished["metadata"]["seconds_showing"] > max(pause, 0.5)


@pytest.mark.parametrize("redirect", ["", "2>&1"])
def test_a_reader_that_goes_away_does_not_end_the_job(plaunch, redirect):
    """Like `plaunch ... | head -1`."""
    script = plaunch.write("write.py", WRITE)
    within = shell(f'"$@" {redirect} | head -1; exit "${{PIPESTATUS[0]}}"')
    with started(plaunch, *TEE, script, "20000", within=within, **PIPES) as process:
        out, err = process.communicate(timeout=BOUND)
    assert process.returncode == 0, err
    assert out.count(b"\n") == 1
    check_logs(plaunch.folder, 20000)
    if not redirect:
        assert err.count(b"stdout cannot be written to any more") == 1
    assert b"Traceback" not in err


def test_a_failure_behind_a_broken_console_keeps_its_exit_code(plaunch):
    script = plaunch.write("write.py", WRITE)
    within = shell('"$@" 2>&1 | true; exit "${PIPESTATUS[0]}"')
    with started(plaunch, *TEE, script, "2000", "7", within=within) as process:
        assert process.wait(BOUND) == 7
    check_logs(plaunch.folder, 2000)


def test_a_console_on_a_full_disk(plaunch):
    script = plaunch.write("write.py", WRITE)
    with (
        open("/dev/full", "wb") as full,
        started(plaunch, *TEE, script, "2000", stdout=full, stderr=subprocess.PIPE) as process,
    ):
        _, err = process.communicate(timeout=BOUND)
    assert process.returncode == 0, err
    check_logs(plaunch.folder, 2000)
    assert b"stdout could not grow; lines of the workers' output missing there: 4000\n" in err


# A worker has three streams and no other descriptors of the launcher.
CHECK_FDS = """\
import os
for fd in (0, 1, 2):
    link = os.readlink(f"/proc/self/fd/{fd}")
    assert not link.startswith(("anon_inode", "socket")), (fd, link)
    os.write(2, f"{fd} {link}\\n".encode())
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("streams", ["--tee=3", "--redirects=3", "--redirects=0"])
@pytest.mark.parametrize("exitcode", [None, 7])
def test_descriptors_that_are_closed_from_the_start(plaunch, closed, streams, exitcode):
    """Other descriptors of the launcher get these numbers; they must not be used as streams."""
    script = plaunch.write("write.py", CHECK_FDS + WRITE)
    argv = ["--nproc-per-node=2", "--log-dir=logs", streams, script, "2000", *words(exitcode)]
    within = shell(f'exec "$@" {closed}')
    out, err = plaunch.folder / "out", plaunch.folder / "err"
    with (
        out.open("wb") as stdout,
        err.open("wb") as stderr,
        started(plaunch, *argv, within=within, stdout=stdout, stderr=stderr) as job,
    ):
        assert job.wait(BOUND) == (exitcode or 0), err.read_text()
    assert "Traceback" not in err.read_text()
    if streams != "--redirects=0":
        check_logs(plaunch.folder, 2000)
    if streams == "--tee=3" and ">&-" not in closed.replace("2>&-", ""):
        assert out.read_bytes().count(b"\n") == 4000
    said = err.read_text()
    if "2>&-" in closed:
        assert said == ""
    elif exitcode:
        assert "exit code 7" in said
    if streams != "--redirects=0":
        assert [path.read_text().count("\n") for path in logged(plaunch.folder, "stderr")] == [3, 3]


@pytest.mark.parametrize("streams", ["--redirects=0", "--tee=3"])
def test_nohup_survives_the_end_of_the_session(plaunch, streams):
    script = plaunch.write("wait.py", WAIT)
    argv = ["--nproc-per-node=2", "--log-dir=logs", streams, script]
    with started(plaunch, *argv, within=["nohup"], **PIPES) as process:
        wait_for_files(plaunch.folder / "up-0", plaunch.folder / "up-1")
        # A closed terminal signals the whole foreground group, so a worker may get the signal, too.
        os.killpg(process.pid, signal.SIGHUP)
        for rank in range(2):
            pid, disposition = (plaunch.folder / f"up-{rank}").read_text().split()
            assert disposition in ("1", "Handlers.SIG_IGN")
            os.kill(int(pid), signal.SIGHUP)
        (plaunch.folder / "go").touch()
        out, err = process.communicate(timeout=BOUND)
    assert process.returncode == 0, err
    assert out.count(b"goes on\n") == 2
    assert b"SIGHUP" not in err


@pytest.fixture
def terminal(plaunch):
    """Starts a launch of two workers with this script in a terminal, and waits for them."""
    with contextlib.ExitStack() as stack:

        def start(text, *argv):
            words = ["-m", "plaunch", "--nproc-per-node=2", *argv, plaunch.write("wait.py", text)]
            options = {"cwd": plaunch.folder, "env": plaunch.environ}
            terminal = stack.enter_context(Terminal(*words, **options))
            wait_for_files(plaunch.folder / "up-0", plaunch.folder / "up-1")
            return terminal

        yield start


@pytest.mark.parametrize("streams", ["--redirects=0", "--tee=3", "--redirects=3"])
def test_ctrl_c_stops_the_job_with_one_line(terminal, streams):
    launch = terminal(WAIT, "--log-dir=logs", streams)
    launch.type(b"\x03")
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in launch.read_to_end()]
    assert launch.process.wait(BOUND) == 128 + signal.SIGINT
    ours = [line for line in lines if "plaunch: " in line]
    assert len(ours) == 1, lines
    assert ours[0].endswith("plaunch: SIGINT received; the workers are stopped")


def test_a_later_ctrl_c_kills_workers_that_ignore_the_first(plaunch, terminal):
    launch = terminal(STUBBORN, "--shutdown-timeout=600")
    launch.type(b"\x03")
    launch.read_until(b"SIGINT received")
    worker = int((plaunch.folder / "up-0").read_text().split()[0])
    # Keys within 0.2 s of the first one belong to the same request.
    wait_until(lambda: is_gone(worker) or launch.type(b"\x03"), "the worker is gone")
    lines = launch.read_to_end()
    assert launch.process.wait(BOUND) == 128 + signal.SIGINT
    assert not any("Traceback" in line for line in lines), lines


def test_a_terminal_that_is_closed_stops_the_job(plaunch, terminal):
    """A closed window: SIGHUP, and a console that rejects writes."""
    launch = terminal(WAIT)
    launch.close()
    assert launch.process.wait(BOUND) == 128 + signal.SIGHUP
    for rank in range(2):
        pid = int((plaunch.folder / f"up-{rank}").read_text().split()[0])
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
