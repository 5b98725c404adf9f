"""The example engine `podman`: with a fake podman, and with real containers where they can run."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import plaunch
import pytest

from helpers.machine_parts import need, report_missing
from helpers.nodes import WORKER, write_whole
from helpers.processes import is_gone
from helpers.waiting import wait_until

PACKAGE = Path(__file__).parents[2] / "examples/plaunch-example-podman"
FAKE = PACKAGE / "tests/fake_podman.py"
IMAGE = "localhost/train"
LINES = 200  # of Python and of pyproject.toml, at most
LIMIT = 60.0  # seconds for the end of a command
LEFT_LIMIT = 10.0  # seconds until nothing is left after the command is killed
# Survivors notice a lost node soon.
QUICK = "--rdzv-conf=last_call_timeout=1,keep_alive_interval=0.4,keep_alive_max_attempt=8"

# Control groups, and podman's own limits, need more rights. Locks in shared memory are those of all
# storages of the user.
CONTAINERS_CONF = """\
[containers]
cgroups = "disabled"
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
lock_type = "file"
tmp_dir = "{folder}/tmp"
"""
STORAGE_CONF = """\
[storage]
driver = "vfs"
graphroot = "{folder}/graph"
runroot = "{folder}/run"
"""
# crun refuses a hierarchy of version 2 beside those of version 1.
WITHOUT_UNIFIED = (
    *("unshare", "--mount", "sh", "-c"),
    'umount /sys/fs/cgroup/unified && exec "$@"',
    "sh",
)
SHOW = """\
import os, sys
names = ("RANK", "WORLD_SIZE", "GROUP_RANK", "container", "FROM_HERE", "NOT_PASSED")
sys.stdout.write("rank {} of {}, node {}, {} {} {}\\n".format(*(os.environ.get(n) for n in names)))
"""


class Podman:
    """A podman, and what a test needs to use it.

    Attributes:
        within: the command in which programs must run that use it.
        environ: the variables with which it is used.
        options: those of a job.
    """

    def __init__(self, environ, options, within=()):
        self.environ = environ
        self.options = options
        self.within = within

    def run(self, *words):
        return subprocess.run(
            [*self.within, "podman", *words],
            env={**os.environ, **self.environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=True,
        )

    def containers(self):
        return self.run("ps", "--all", "--format={{.Names}}").stdout.split()


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    folder = tmp_path_factory.mktemp("podman")
    for name in ("bin", "containers"):
        (folder / name).mkdir()
    (folder / "bin/podman").symlink_to(FAKE)
    environ = {
        "PATH": f"{folder}/bin{os.pathsep}{os.environ['PATH']}",
        "FAKE_PODMAN": str(folder / "containers"),
    }
    return Podman(environ, [f"--podman-image={IMAGE}"])


@pytest.fixture(scope="module")
def real():
    """The podman of this machine, with an image to which all programs are mounted."""
    need("podman")
    # Its path is short: with those of `tmp_path`, podman waits 20 seconds for each container.
    with tempfile.TemporaryDirectory(prefix="podman", ignore_cleanup_errors=True) as folder:
        podman = find_real_podman(Path(folder))
        yield podman
        podman.run("rm", "--all", "--force", "--time=0")


def find_real_podman(folder):
    environ = {}
    for variable, text in (
        ("CONTAINERS_CONF", CONTAINERS_CONF),
        ("CONTAINERS_STORAGE_CONF", STORAGE_CONF),
    ):
        environ[variable] = str(folder / variable)
        Path(environ[variable]).write_text(text.format(folder=folder))
    with tarfile.open(folder / "image.tar", "w") as image:
        for name in ("bin", "lib", "lib64", "sbin"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            image.addfile(link)
    code = Path(plaunch.__file__).parents[2]  # the repository, if it is installed from there
    mounted = {"/usr", sys.prefix, sys.base_prefix, str(code)}
    volumes = [f"--volume={path}:{path}:ro" for path in sorted(mounted)]
    options = [f"--podman-image={IMAGE}", f"--podman-options={shlex.join(volumes)}"]
    errors = []
    for within in ((), WITHOUT_UNIFIED):
        podman = Podman(environ, options, within)
        try:
            podman.run("import", folder / "image.tar", IMAGE)
            program = (sys.executable, "-c", "import plaunch_engines.node")
            podman.run("run", "--rm", "--network=host", *volumes, IMAGE, *program)
        except (OSError, subprocess.SubprocessError) as error:
            errors.append(str(getattr(error, "stderr", "") or error).strip())
        else:
            return podman
    return report_missing("podman", f"it cannot run containers here: {'; '.join(errors)}")


@pytest.fixture(params=["fake", "real"])
def podman(request, installed):
    podman = request.getfixturevalue(request.param)
    installed.environ.update(podman.environ)
    yield podman
    assert podman.containers() == []


class Job:
    """A command with `--on=podman:2`, whose workers run until the test writes a file."""

    def __init__(self, installed, podman):
        self.folder = installed.folder
        self._output = self.folder / "output"
        script = installed.write("worker.py", WORKER)
        options = [*podman.options, "--max-restarts=3", QUICK]
        with self._output.open("wb") as output:
            self.process = installed.popen(
                "--on=podman:2", *options, script,
                within=podman.within, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def text(self):
        return self._output.read_text()

    def wait(self, code):
        assert self.process.wait(LIMIT) == code, self.text()

    def wait_for(self, text, count=1):
        wait_until(lambda: self.text().count(text) >= count, lambda: f"{text} in {self.text()}")

    def finish(self):
        write_whole(self.folder / "exit", 0)
        self.wait(0)

    def processes(self, *words):
        """Return the processes of this job whose commands have all these words."""
        found = set()
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (path / "cmdline").read_text().split("\0")
                if set(words) <= set(command) and str(self.folder) in " ".join(command):
                    found.add(int(path.name))
        return {pid for pid in found if not is_gone(pid)}

    def agents(self):
        return self.processes("plaunch_engines.node") - self.processes("--rm")

    def check_nothing_left(self, podman):
        wait_until(
            lambda: not podman.containers() and not self.processes(),
            lambda: f"{podman.containers()} and {self.processes()} are left",
        )


@pytest.fixture
def job(installed, podman):
    jobs = []

    def job():
        jobs.append(Job(installed, podman))
        jobs[-1].wait_for('"RANK"', 2)
        return jobs[-1]

    yield job
    for one in jobs:
        one.process.kill()
        one.process.wait()
        one.check_nothing_left(podman)


def run(installed, podman, *words, **environ):
    """Run a command to its end; the result has its exit code and its output."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with installed.popen(*words, within=podman.within, environ=environ, **pipes) as process:
        text, _ = process.communicate(timeout=LIMIT)
    return process.returncode, text


def test_it_is_short():
    files = [*PACKAGE.glob("src/*/*.py"), PACKAGE / "pyproject.toml"]
    assert sum(len(file.read_text().splitlines()) for file in files) < LINES


@pytest.mark.slow
def test_the_tests_of_the_package_pass(run_tests_of_package):
    assert "skipped" not in run_tests_of_package(at_once=2)


@pytest.mark.slow
def test_it_passes_the_suite_with_real_containers(installed, real):
    installed.environ.update(real.environ)
    code, text = run(installed, real, "--check-plugin=engines:podman", *real.options)
    assert code == 0, text
    assert "skipped   " not in text
    assert real.containers() == []


def test_a_job_in_two_containers(installed, podman):
    script = installed.write("show.py", SHOW)
    words = ["--on=podman:2", "--nproc-per-node=2", "--pass-env=FROM_HERE", *podman.options, script]
    code, text = run(installed, podman, *words, FROM_HERE="passed", NOT_PASSED="1")
    assert code == 0, text
    first, *lines = text.splitlines()
    assert "2 nodes at 127.0.0.1:" in first
    assert sorted(lines) == [
        "[podman0] rank 0 of 4, node 0, podman passed None",
        "[podman0] rank 1 of 4, node 0, podman passed None",
        "[podman1] rank 2 of 4, node 1, podman passed None",
        "[podman1] rank 3 of 4, node 1, podman passed None",
    ]


def test_a_killed_agent_is_replaced(job, podman):
    running = job()
    before = podman.containers()
    killed = next(name for name in before if name.endswith("-1"))
    podman.run("kill", killed)
    running.wait_for("podman2 is started in the place of podman1")
    running.wait_for('"RANK"', 4)
    after = podman.containers()
    assert killed not in after
    assert len(after) == 2
    running.finish()


def test_a_frozen_agent_that_lost_its_connection_is_removed(job, podman):
    running = job()
    frozen = next(name for name in podman.containers() if name.endswith("-1"))
    for agent in running.agents():
        os.kill(agent, signal.SIGSTOP)
    (client,) = running.processes("--rm", f"--name={frozen}")
    os.kill(client, signal.SIGKILL)
    wait_until(lambda: frozen not in podman.containers(), podman.containers)
    for agent in running.agents():
        os.kill(agent, signal.SIGCONT)
    running.wait_for('"RANK"', 4)
    running.finish()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_job(job, podman, signum):
    running = job()
    running.process.send_signal(signum)
    running.wait(128 + signum)
    assert podman.containers() == []
    assert not running.processes()


def test_the_third_signal_removes_containers_of_frozen_agents(job, podman):
    running = job()
    for agent in running.agents():
        os.kill(agent, signal.SIGSTOP)
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        running.process.send_signal(signum)
    assert running.process.wait(LIMIT) > 128, running.text()
    assert podman.containers() == []


def test_nothing_is_left_after_sigkill(job, podman):
    running = job()
    running.process.kill()
    began = time.monotonic()
    running.check_nothing_left(podman)
    assert time.monotonic() - began < LEFT_LIMIT


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--on=podman:two"], 2, "'two' is not a number of nodes"),
        (["--on=podman:2", "--podman-image=other"], 2, "podman has no image 'other'"),
        (["--on=podman:2", "--podman-options=--nonsense"], 111, r"\(125\): .*unknown flag"),
        (["--on=podman:2", "--node-python=/missing"], 111, r"\(127\): .*/missing"),
    ],
)
def test_errors_start_nothing(installed, podman, words, code, message):
    script = installed.write("show.py", SHOW)
    found, text = run(installed, podman, *podman.options, *words, script)
    assert found == code, text
    assert re.search(message, text), text


def test_it_imports_public_names_only(rooms_imported):
    assert rooms_imported == {"engines", "errors", "options"}
