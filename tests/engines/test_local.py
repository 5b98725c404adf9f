"""`--on=local:N`: real agents on this machine, and the command that starts them."""

import os
import re
import shutil
import signal
import time

import pytest
from plaunch.engines import EngineRequest
from plaunch.errors import UsageError
from plaunch_engines.local import LocalEngine
from plaunch_testing.conformance import EngineConformance

from helpers.engine_commands import LIMIT, EngineCommand
from helpers.waiting import wait_until

SHOW = """
import os, sys
names = ("RANK", "WORLD_SIZE", "GROUP_RANK")
sys.stdout.write("rank {} of {}, node {}\\n".format(*(os.environ[n] for n in names)))
"""
STEPS = """
import os, sys, time
print("round", os.environ["PLAUNCH_ROUND"], "rank", os.environ["RANK"], flush=True)
path = sys.argv[1]
while not os.path.exists(path):
    time.sleep(0.05)
print("done", flush=True)
"""


class TestLocal(EngineConformance):
    where = "2"

    def plugin(self):
        return LocalEngine


class Command(EngineCommand):
    """A running `plaunch --on=local:...`, whose processes are found by a variable."""

    def __init__(self, folder, *words):
        super().__init__(folder, *words, env={"PLAUNCH_TEST_ENGINES": str(folder)})

    def processes(self):
        """Return the processes of this command that still run, by pid, with their commands."""
        mark = f"PLAUNCH_TEST_ENGINES={self.folder}".encode()
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if mark in file.read().split(b"\0"):
                        with open(f"/proc/{pid}/cmdline", "rb") as title:
                            found[int(pid)] = title.read().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return {pid: title for pid, title in found.items() if title}

    def agents(self):
        """Return the pids of the agents, by index."""
        found = sorted(
            p for p, title in self.processes().items() if "plaunch_engines.node" in title
        )
        return [p for p in found if os.getsid(p) == p]


@pytest.fixture
def command(tmp_path):
    (tmp_path / "show.py").write_text(SHOW)
    (tmp_path / "steps.py").write_text(STEPS)
    commands = []

    def command(*words):
        commands.append(Command(tmp_path, *words))
        return commands[-1]

    yield command
    for one in commands:
        for pid in one.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        one.process.wait(LIMIT)


def is_quiet(command):
    wait_until(lambda: not command.processes(), lambda: f"{command.processes()} to end")


def test_each_node_has_its_ranks(command):
    job = command("--on=local:3", "--nproc-per-node=2", "show.py")
    assert job.end() == 0, job.text()
    for rank in range(6):
        node = re.search(rf"\[(node\d)\] rank {rank} of 6, node {rank // 2}\n", job.text())
        assert node, job.text()
    is_quiet(job)


def test_options_of_the_agents_and_arguments_of_the_script_are_passed_on(command, tmp_path):
    (tmp_path / "fail.py").write_text(
        "import os, sys\n"
        "print(sys.argv[1:], os.environ['TORCHELASTIC_RESTART_COUNT'], flush=True)\n"
        "sys.exit(os.environ['RANK'] == '1' and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')\n"
    )
    job = command("--on", "local:2", "--max-restarts", "1", "fail.py", "--on=x", "--spares", "2")
    assert job.end() == 0, job.text()
    assert job.text().count("['--on=x', '--spares', '2'] 1") == 2


def test_a_failure_is_reported_once_with_its_code(command, tmp_path):
    (tmp_path / "fail.py").write_text(
        "import os, sys, time\nif os.environ['RANK'] == '1': raise SystemExit(7)\ntime.sleep(60)\n"
    )
    job = command("--on=local:3", "fail.py")
    assert job.end() == 7, job.text()
    assert len(re.findall(r"^plaunch: .*rank 1", job.text(), re.MULTILINE)) == 1, job.text()
    is_quiet(job)


def test_a_killed_agent_is_replaced(command, tmp_path):
    go = tmp_path / "go"
    job = command("--on=local:3", "steps.py", go)
    job.wait_for("round 0 rank", 3)
    os.kill(job.agents()[1], signal.SIGKILL)
    job.wait_for("round 1 rank", 3)
    go.touch()
    assert job.end() == 0, job.text()
    assert "is started in the place of" in job.text()
    is_quiet(job)


def test_a_spare_takes_over(command, tmp_path):
    go = tmp_path / "go"
    job = command("--on=local:3", "--spares=1", "steps.py", go)
    job.wait_for("round 0 rank", 2)
    job.wait_for("waits for a place")
    spare = re.search(r"\[(node\d)\] plaunch: job .* waits for a place", job.text())[1]
    working = next(i for i in (2, 1) if f"node{i}" != spare)
    os.kill(job.agents()[working], signal.SIGKILL)
    job.wait_for("round 1 rank", 2)
    assert f"[{spare}] round 1 rank" in job.text()
    go.touch()
    assert job.end() == 0, job.text()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_ends_the_job(command, tmp_path, signum):
    job = command("--on=local:2", "steps.py", tmp_path / "never")
    job.wait_for("round 0 rank", 2)
    job.process.send_signal(signum)
    assert job.end() == 128 + signum, job.text()
    is_quiet(job)


def test_nothing_is_left_after_sigkill(command, tmp_path):
    job = command("--on=local:3", "steps.py", tmp_path / "never")
    job.wait_for("round 0 rank", 3)
    began = time.monotonic()
    job.process.kill()
    is_quiet(job)
    assert time.monotonic() - began < 10


@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("ip", "nsenter", "unshare"))),
    reason="only root can create network namespaces, with ip, nsenter and unshare",
)
def test_each_node_may_have_its_own_network(command, tmp_path):
    (tmp_path / "address.py").write_text(
        "import os, socket\n"
        "print(os.environ['MASTER_ADDR'], os.listdir('/sys/class/net') != [], flush=True)\n"
        "print('network', os.readlink('/proc/self/ns/net'), flush=True)\n"
    )
    job = command("--on=local:2", "--local-network=namespaces", "address.py")
    assert job.end() == 0, job.text()
    assert "10.231.0.1" in job.text()
    networks = set(re.findall(r"network (\S+)", job.text()))
    assert len(networks) == 2
    assert os.readlink("/proc/self/ns/net") not in networks
    is_quiet(job)


def test_a_missing_script_starts_nothing(command):
    job = command("--on=local:2", "missing.py")
    assert job.end() == 2
    assert "missing.py" in job.text()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--on=local:x"], "'x' is not a number of nodes"),
        (["--on=local"], "needs a number of nodes"),
        (["--on=loca:2"], "did you mean 'local'"),
        (["--on=local:2", "--node-rank=1"], "--node-rank is set for each agent by --on"),
        (["--on=local:2", "--standalone"], "--standalone is set for each agent by --on"),
        (["--on=local:2", "--nnodes=3"], "has 2 nodes, and the job needs at least 3"),
        (["--on=local:2", "--spares=2"], "--spares=2 leaves none of 2 nodes"),
        (["--on=local:2", "--spares=-1"], "--spares is -1"),
        (
            ["--on=local:2", "--node-python=/no/python"],
            "/no/python cannot be run on this machine: No such file or directory; name the Python",
        ),
        (["--on=local:2", "--spares=1", "--rdzv-backend=static"], "'static' cannot be replaced"),
        (["--on=local:2", "--doctor"], "--doctor and --on are given, and each runs instead of"),
    ],
)
def test_usage_errors(command, words, text):
    job = command(*words, "show.py")
    assert job.end() == 2, job.text()
    assert re.search(r"^plaunch: error: .*" + re.escape(text), job.text(), re.MULTILINE), job.text()


def test_variables_are_passed_by_name(command, tmp_path, monkeypatch):
    (tmp_path / "env.py").write_text(
        "import os; print(sorted(n for n in os.environ if 'ACME' in n))"
    )
    monkeypatch.setenv("ACME_ONE", "1")
    job = command("--on=local:1", "--pass-env=ACME_*", "env.py")
    assert job.end() == 0
    assert "ACME_ONE" in job.text()


def test_a_name_that_no_process_can_have_is_refused():
    with pytest.raises(UsageError, match="1 to 1024"):
        LocalEngine(EngineRequest(where="5000"))
