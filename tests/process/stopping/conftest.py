"""What the tests of reaping share: processes that are known for sure, and waiting for their end."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from plaunch.process.proc import read_process

from helpers.site import own_metadata, site  # noqa: F401 - fixtures
from helpers.waiting import BOUND, wait_until

PROGRAMS = str(Path(__file__).parent / "programs")


class Family:
    """The folder in which all processes of a test make themselves known."""

    def __init__(self, folder):
        self.folder = str(folder)

    def members(self):
        """The processes that have made themselves known: kind, number and start time."""
        found = []
        for name in os.listdir(self.folder):
            if not name.startswith("."):
                kind, _, pid = name.rpartition("-")
                with open(os.path.join(self.folder, name)) as file:
                    found.append((kind, int(pid), int(file.read())))
        return sorted(found)

    def kinds(self):
        return [kind for kind, _, _ in self.members()]

    def pids(self, kind):
        return [pid for name, pid, _ in self.members() if name == kind]

    def alive(self):
        """Those that are neither gone nor zombies."""
        found = []
        for kind, pid, start in self.members():
            process = read_process(pid)
            if process is not None and process.start == start and process.is_alive:
                found.append((kind, pid))
        return found

    def wait_for(self, kind, count=1):
        wait_until(
            lambda: self.kinds().count(kind) >= count,
            lambda: f"{count} of kind {kind}, only {self.members()}",
        )

    def wait_until_gone(self):
        wait_until(lambda: not self.alive(), lambda: f"the end of {self.alive()}")

    def kill(self):
        for _, pid in self.alive():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


@pytest.fixture
def family(tmp_path):
    folder = tmp_path / "family"
    folder.mkdir()
    family = Family(folder)
    yield family
    family.kill()


@pytest.fixture
def programs():
    """The folder with the programs that tests run."""
    return PROGRAMS


@pytest.fixture
def descendants(monkeypatch):
    """The module whose functions run as workers, where a new process finds it too."""
    monkeypatch.syspath_prepend(PROGRAMS)
    return importlib.import_module("descendants")


@pytest.fixture
def tmp_path():
    """A folder with a short name: a fork server's socket in it has a path of 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="plaunch-") as folder:
        yield Path(folder)


@pytest.fixture
def environ(tmp_path):
    """An environment for launches: nobody's settings, and a temporary directory of their own."""
    (tmp_path / "tmp").mkdir()
    prefixes = ("PET_", "PLAUNCH_", "TORCHELASTIC_", "TORCH_ELASTIC_")
    own = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    quiet = {"LOGLEVEL": "WARNING"}  # what is said is about ends
    return {**own, **quiet, "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": PROGRAMS}


@pytest.fixture
def run_program(environ, tmp_path):
    """Start programs, and end those that are left when the test is over."""
    started = []

    def run_program(*argv, **options):
        options = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE, **options}
        process = subprocess.Popen(
            [sys.executable, *argv],
            cwd=tmp_path,
            text=True,
            env={**environ, **options.pop("env", {})},
            **options,
        )
        started.append(process)
        return process

    yield run_program
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=BOUND)


@pytest.fixture
def launch(run_program, family):
    """Start a launch whose workers start processes and then end in one way."""

    def launch(kinds, end, *options, nprocs=2, **popen):
        script = os.path.join(PROGRAMS, "descendants.py")
        words = (f"--nproc-per-node={nprocs}", *options, script, family.folder, ",".join(kinds))
        return run_program("-m", "plaunch", *words, end, **popen)

    return launch


@pytest.fixture
def wait_until_alone(tmp_path):
    """Wait until no process is left that belongs to this test by its environment."""

    def others():
        found = []
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            try:
                environ = Path(f"/proc/{pid}/environ").read_bytes()
                process = read_process(pid)
            except OSError:
                continue
            mine = f"TMPDIR={tmp_path / 'tmp'}".encode() in environ
            if mine and process is not None and process.is_alive:
                found.append(pid)
        return found

    return lambda: wait_until(lambda: others() == [], lambda: f"the end of {others()}")
