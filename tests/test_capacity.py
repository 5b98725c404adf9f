"""No more processes or threads: what is said, and that nothing is left."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading

import pytest
from plaunch.capacity import explain
from plaunch.cli.program import main
from plaunch.errors import ThreadStartError, WorkerStartError
from plaunch.process import start_processes
from plaunch.process.stopping.guard import start_guard
from plaunch.threads import start_thread

from helpers.machine_parts import need
from helpers.programs import run_python

TIMEOUT = 60.0  # seconds
NOBODY = 60000 + os.getpid() % 5000  # tests that run beside this one have another


def test_other_refusals_are_reported_unchanged():
    assert explain(OSError(errno.ENOMEM, "Cannot allocate memory")) == (
        "the system says [Errno 12] Cannot allocate memory"
    )
    assert explain(EOFError()) == "the system says EOFError"
    for number in (errno.EMFILE, errno.ENFILE):
        assert explain(OSError(number, "", "x.py")).startswith("too many open files; raise the lim")
    assert "no more processes" in explain(OSError(errno.EAGAIN, "Resource temporarily unavailable"))


FEW_FILES = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)
os.execv(sys.executable, [sys.executable, "-m", "plaunch", *sys.argv[2:]])
"""


def test_a_limit_of_open_files_is_named(tmp_path):
    """Wherever it comes to its limit, and whatever it imports to say so."""
    codes = set()
    for limit in (12, 13, 14, 16, 20, 28):
        words = ["-c", FEW_FILES, limit, "--nproc-per-node=2", "--no-python", "true"]
        done = run_python(*words, cwd=tmp_path)
        codes.add(done.returncode)
        assert "Traceback" not in done.stderr, f"limit {limit}:\n{done.stderr}"
        assert "internal error" not in done.stderr, f"limit {limit}:\n{done.stderr}"
        if done.returncode:
            assert "open files" in done.stderr, f"limit {limit}:\n{done.stderr}"
    assert codes == {0, 1}


def test_without_the_doctor_the_limit_is_not_named(monkeypatch):
    monkeypatch.setattr("plaunch.capacity.DESCRIBE_SHORTAGE", "plaunch_gone.capacity:describe")
    assert explain(BlockingIOError(errno.EAGAIN, "")) == (
        "the system gives no more processes or threads"
    )


class NoThreads:
    """A system that gives `after` more threads; what is said on stderr does without."""

    def __init__(self, monkeypatch, after=0):
        self.left = after
        self.refused = []
        start = threading.Thread.start

        def limited(thread):
            if thread.name.startswith("plaunch-") and thread.name != "plaunch-stderr":
                if self.left == 0:
                    self.refused.append(thread.name)
                    raise RuntimeError("can't start new thread")
                self.left -= 1
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", limited)


def test_a_thread_that_cannot_be_had(monkeypatch):
    NoThreads(monkeypatch)
    with pytest.raises(
        ThreadStartError, match=r"the launcher cannot start another thread: .* no more"
    ):
        start_thread(threading.Thread(name="plaunch-x", target=print))


def test_a_thread_is_started_at_the_second_attempt(monkeypatch):
    started, start = [], threading.Thread.start

    def start_at_the_second_try(thread):
        started.append(thread)
        if len(started) == 1:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_at_the_second_try)
    thread = threading.Thread(target=int)
    start_thread(thread)
    thread.join()
    assert started == [thread, thread]


def test_a_thread_that_is_started_twice_is_a_bug():
    thread = threading.Thread(target=int)
    start_thread(thread)
    thread.join()
    with pytest.raises(RuntimeError, match="once") as caught:
        start_thread(thread)
    assert not isinstance(caught.value, ThreadStartError)


def test_a_thread_may_leave_signals_to_the_others():
    masks = []
    here = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    for blocks in (False, True):
        thread = threading.Thread(
            target=lambda: masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        )
        start_thread(thread, blocks_signals=blocks)
        thread.join()
    assert masks[0] == here
    # The kernel does not block these two.
    assert masks[1] >= {*signal.Signals} - {signal.SIGKILL, signal.SIGSTOP}
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == here


@pytest.mark.parametrize("after", range(4))
def test_a_launch_ends_with_what_is_missing_and_leaves_nothing(monkeypatch, tmp_path, capfd, after):
    """Whichever of its threads is the first that the system does not give."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    pids = tmp_path / "pids"
    script = tmp_path / "script.py"
    script.write_text(
        f"import os, time\nwith open({str(pids)!r}, 'a') as f: f.write(str(os.getpid()) + ' ')\n"
        "time.sleep(60)\n"
    )
    threads = {*threading.enumerate()}
    system = NoThreads(monkeypatch, after=after)
    code = main(["--nproc-per-node=2", "--tee=3", f"--log-dir={tmp_path}/logs", str(script)])
    said = capfd.readouterr().err
    refused = [name for name in system.refused if name != "plaunch-control"]  # not needed
    assert refused
    assert code == 1
    assert "Traceback" not in said
    assert "please report" not in said
    assert "the launcher cannot start another thread: " in said
    for pid in pids.read_text().split() if pids.exists() else ():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
    assert {*threading.enumerate()} <= threads


@pytest.mark.parametrize("start_method", ["spawn", "fork"])
def test_a_function_that_cannot_be_forked(monkeypatch, start_method):
    def refuse(*args, **kwargs):
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setenv("PLAUNCH_GUARD", "0")
    monkeypatch.setattr("os.fork", refuse)
    monkeypatch.setattr("subprocess.Popen", refuse)
    with pytest.raises(WorkerStartError, match=r"cannot start local rank 0 of 'w': .* no more"):
        start_processes("w", int, {0: ()}, start_method=start_method)


def test_a_guard_that_cannot_be_had_is_a_warning(monkeypatch, caplog):
    def refuse(*args, **kwargs):
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr("os.fork", refuse)
    monkeypatch.setattr("subprocess.Popen", refuse)
    assert start_guard() is None
    assert "workers may outlive this launcher" in caplog.text
    assert "the system gives no more processes or threads" in caplog.text


def _as_nobody(limit, command):
    """A command line that runs `command` as a user who is held to `limit` processes."""
    caps = "+dac_override,+dac_read_search"  # it may read what this user may
    return [
        "setpriv",
        f"--reuid={NOBODY}",
        f"--regid={NOBODY}",
        "--clear-groups",
        f"--inh-caps={caps}",
        f"--ambient-caps={caps}",
        "bash",
        "-c",
        f'ulimit -u {limit}; exec "$0" "$@"',
        *command,
    ]


@pytest.fixture
def nobody():
    """Whether another user can be had, who has no processes."""
    need("root")
    if any(status_uid(pid) == NOBODY for pid in filter(str.isdecimal, os.listdir("/proc"))):
        pytest.skip(f"user {NOBODY} has processes")
    probe = subprocess.run(
        _as_nobody(1, [sys.executable, "-S", "-c", "import os; os.fork()"]),
        check=False,
        capture_output=True,
        timeout=TIMEOUT,
    )
    if b"BlockingIOError" not in probe.stderr:
        pytest.skip(f"no limit holds here: {probe.stderr.decode()!r}")


@pytest.fixture
def open_folder():
    """A folder that everybody may write to, below others that everybody may enter."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o777)
        yield folder


def status_uid(pid):
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


@pytest.mark.usefixtures("nobody")
@pytest.mark.parametrize("limit", range(1, 6))
def test_under_a_real_limit(open_folder, limit):
    done = subprocess.run(
        _as_nobody(
            limit,
            [
                *(sys.executable, "-m", "plaunch", "--nproc-per-node=2", "--tee=3"),
                "-pno:control",  # it has a thread for a moment only
                *(f"--log-dir={open_folder}/logs", "--no-python", "sleep", "60"),
            ],
        ),
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env={**os.environ, "HOME": open_folder, "TMPDIR": open_folder},
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "please report" not in done.stderr
    said = re.search(r"ulimit -u allows (\d) processes and threads, (\d) exist", done.stderr)
    assert said is not None, done.stderr
    assert int(said[1]) == limit
    # Threads of calls to plugins may have ended before they were counted.
    assert 1 <= int(said[2]) <= limit
    left = [pid for pid in filter(str.isdecimal, os.listdir("/proc")) if status_uid(pid) == NOBODY]
    for pid in left:
        os.kill(int(pid), signal.SIGKILL)
    assert left == []
    assert {*os.listdir(open_folder)} <= {"logs"}
