"""Launches leave no process, temporary folder or zombie, however they end."""

from __future__ import annotations

import contextlib
import ctypes
import fnmatch
import glob
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass

import pytest

from helpers.waiting import wait_for_files

BOUND = 60.0  # seconds for anything, even on a busy machine
GONE = 10.0  # seconds; normally less than one
LAUNCHES = int(os.environ.get("CHAOS_LAUNCHES", "28"))
PR_SET_CHILD_SUBREAPER = 36

# Each worker has a child, and another one in its own session; both ignore SIGTERM.
WORKER = """\
import os, signal, subprocess, sys, time
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
stay = "import signal, time; print(flush=True); time.sleep(600)"
stay = "import signal; [signal.signal(s, signal.SIG_IGN) for s in (1, 2, 15)]; " + stay
for options in ({}, {"start_new_session": True}):
    child = subprocess.Popen([sys.executable, "-c", stay], stdout=subprocess.PIPE, **options)
    child.stdout.readline()
open(f"up-{rank}-{attempt}", "w").close()
while not all(os.path.exists(f"up-{other}-{attempt}") for other in range(2)):
    time.sleep(0.002)
end = sys.argv[1]
if end == "success" or (end == "restart" and attempt == "1"):
    sys.exit(0)
if end in ("failure", "restart") and rank == "1":
    sys.exit(5)
time.sleep(600)
"""


@dataclass(frozen=True)
class End:
    """A way in which a launch ends."""

    name: str
    exitcode: int
    signum: int = 0  # sent to the launcher when the workers have started
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


ENDS = [
    End("success", 0),
    End("failure", 5),
    End("SIGTERM", 128 + signal.SIGTERM, signal.SIGTERM),
    End("SIGINT", 128 + signal.SIGINT, signal.SIGINT),
    End("SIGHUP", 128 + signal.SIGHUP, signal.SIGHUP),
    End("SIGKILL", -signal.SIGKILL, signal.SIGKILL),
    End("restart", 0, options=("--max-restarts=1",)),
]
KINDS = {
    "program": (),
    "spawn": ("--run-path", "--start-method=spawn"),
    "fork": ("--run-path", "--start-method=fork"),
    "forkserver": ("--run-path", "--start-method=forkserver"),
}
CASES = [(end, kind) for kind in KINDS for end in ENDS]


class Household:
    """The processes of these tests' launches, found by a variable in their environment."""

    def __init__(self, folder):
        self.mark = f"CHAOS_HOUSEHOLD={os.urandom(8).hex()}"
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self._children = children_of_mine()

    @property
    def environ(self):
        name, _, value = self.mark.partition("=")
        return {name: value, "TMPDIR": str(self.temporary)}

    def members(self):
        """The living processes with the variable."""
        found = []
        for path in glob.glob("/proc/[0-9]*/environ"):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                if self.mark.encode() in file.read().split(b"\0"):
                    found.append(int(path.split("/")[2]))
        return found

    def adopted(self):
        """Return the orphans that this process adopted, as init does."""
        return children_of_mine() - self._children

    def bury(self):
        """Reap the orphans that have ended, as init does; keep the others."""
        for pid in self.adopted():
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)

    def wait_until_gone(self):
        deadline = time.monotonic() + GONE
        while self.members() or self.adopted():
            assert time.monotonic() < deadline, [describe(pid) for pid in self.members()]
            self.bury()
            time.sleep(0.005)

    def end(self):
        """Kill processes that a failed test has left."""
        for pid in self.members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wait_until_gone()


def children_of_mine():
    found = set()
    for path in glob.glob("/proc/self/task/*/children"):
        with contextlib.suppress(OSError), open(path) as file:
            found.update(map(int, file.read().split()))
    return found


def describe(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return f"{pid}: {file.read().replace(bytes(1), b' ').decode(errors='replace')}"
    return str(pid)


@pytest.fixture(scope="module")
def household(tmp_path_factory):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        pytest.skip(f"orphans cannot be adopted here: {os.strerror(ctypes.get_errno())}")
    household = Household(tmp_path_factory.mktemp("household"))
    try:
        yield household
        assert household.members() == []
        assert household.adopted() == set()
        assert os.listdir(household.temporary) == []
    finally:
        household.end()
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def launch(plaunch, household, end, kind):
    """Run one launch to its end; return its stderr."""
    script = plaunch.write("worker.py", WORKER)
    argv = ["--nproc-per-node=2", "--shutdown-timeout=5", *end.options, *KINDS[kind], script]
    said = plaunch.folder / "said"
    with said.open("wb") as stderr:
        streams = {"stdout": subprocess.DEVNULL, "stderr": stderr}
        process = plaunch.popen(*argv, end.name, environ=household.environ, **streams)
    try:
        if end.signum:
            wait_for_files(plaunch.folder / "up-0-0", plaunch.folder / "up-1-0")
            process.send_signal(end.signum)
        assert process.wait(BOUND) == end.exitcode, said.read_text()
    finally:
        process.kill()
        process.wait()
    return said.read_text()


@pytest.mark.parametrize(
    ("number", "end", "kind"),
    [(number, *CASES[number % len(CASES)]) for number in range(LAUNCHES)],
    ids=str,
)
def test_a_launch_leaves_nothing(plaunch, household, number, end, kind):
    try:
        said = launch(plaunch, household, end, kind)
        if kind == "program" and end.name != "SIGKILL":
            # No process is still exiting: the launcher has reaped all of them.
            assert household.members() == []
            assert household.adopted() == set()
        household.wait_until_gone()
        left = os.listdir(household.temporary)
        if (kind, end.name) == ("forkserver", "SIGKILL"):
            # The folder of multiprocessing's own socket, which no process removes.
            for name in fnmatch.filter(left, "pymp-*"):
                shutil.rmtree(household.temporary / name)
                left.remove(name)
        assert left == []
        assert "internal error" not in said
    except BaseException:
        household.end()
        raise
