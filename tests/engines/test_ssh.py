"""The engine `ssh` with real servers on loopback addresses.

Skipped if Debian's openssh-server, or a program like it, is not installed.
"""

import contextlib
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import BoundedSemaphore

import pytest
from plaunch.engines import EngineRequest
from plaunch.errors import UsageError
from plaunch_engines.ssh import SshEngine, SshHandle
from plaunch_engines.ssh_hosts import SshHost

from helpers.nodes import WORKER, write_whole
from helpers.processes import is_gone
from helpers.waiting import wait_until

TOOL = Path(__file__).parents[2] / "tools/cluster/ssh.py"
LIMIT = 60.0
LEFT_LIMIT = 10.0  # seconds until nothing is left after the command is killed
# Survivors notice a lost node soon.
QUICK = "--rdzv-conf=last_call_timeout=1,keep_alive_interval=0.4,keep_alive_max_attempt=8"
TRAINING = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * dist.get_rank()
dist.all_reduce(total)
print("sum", total.item(), flush=True)
dist.destroy_process_group()
"""
needs_servers = pytest.mark.skipif(
    runpy.run_path(str(TOOL))["find_server"]() is None or shutil.which("ssh") is None,
    reason="openssh-server is not installed",
)


class Servers:
    """Servers of three hosts: node1, node2, node3."""

    def __init__(self, folder):
        self.folder = folder
        self.run("start", folder, "--hosts=3")
        self.ssh = f"ssh -F {folder}/config"

    @staticmethod
    def run(*arguments):
        subprocess.run(
            [sys.executable, TOOL, *arguments], check=True, timeout=LIMIT, stdin=subprocess.DEVNULL
        )

    def set_shell(self, text):
        """Let a script run instead of the login shell; it finds the command in a variable."""
        script = self.folder / "shell"
        script.write_text(f"#!/bin/bash\n{text}\n")
        script.chmod(0o755)
        key = (self.folder / "user_key.pub").read_text()
        (self.folder / "authorized_keys").write_text(f'command="{script}" {key}')


def start_servers(path):
    with contextlib.ExitStack() as stack:
        stack.callback(Servers.run, "stop", path)
        yield Servers(path)


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    yield from start_servers(tmp_path_factory.mktemp("servers"))


@pytest.fixture
def own_servers(tmp_path):
    yield from start_servers(tmp_path / "servers")


class SshJob:
    """A command with `--on=ssh`, and what it has written."""

    def __init__(self, folder, servers, on, *arguments, env=None, ssh=""):
        self.folder = folder
        self._out, self._err = folder / ".out", folder / ".err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", "plaunch", f"--on=ssh:{on}",
                    f"--ssh-command={ssh or servers.ssh}", *arguments,
                ],
                cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                env={**os.environ, **(env or {})}, start_new_session=True,
            )  # fmt: skip

    @property
    def out(self):
        return self._out.read_text()

    @property
    def err(self):
        return self._err.read_text()

    def wait(self, code):
        assert self.process.wait(LIMIT) == code, self.err
        return self

    def workers(self):
        """Return what workers have said of themselves, each with its node."""
        found = []
        for line in self.out.splitlines():
            node, text = re.fullmatch(r"\[([^]]+)\] (.*)", line).groups()
            facts = json.loads(text)
            if "RANK" in facts:
                found.append({**facts, "node": node})
        return found

    def wait_for_workers(self, count):
        wait_until(lambda: len(self.workers()) >= count, lambda: self.out + self.err)
        return self.workers()

    def wait_for(self, text):
        wait_until(lambda: text in self.err, lambda: self.err)

    def processes(self):
        """Return all processes whose command line names the folder."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.fsencode(self.folder) in (path / "cmdline").read_bytes():
                    found.append(int(path.name))
        return [pid for pid in found if not is_gone(pid)]

    def check_nothing_left(self, workers=()):
        began = time.monotonic()
        pids = [worker["pid"] for worker in workers]
        wait_until(lambda: not self.processes() and all(map(is_gone, pids)), self.processes)
        assert time.monotonic() - began < LEFT_LIMIT


def children(pid):
    with contextlib.suppress(OSError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture
def launch(tmp_path, servers):
    """Start a command in a folder of its own, whose name a shell would split."""
    folder = tmp_path / "it's a $job"
    folder.mkdir()
    (folder / "worker.py").write_text(WORKER)
    jobs = []

    def start(on, *arguments, of=servers, **more):
        jobs.append(SshJob(folder, of, on, *arguments, **more))
        return jobs[-1]

    start.folder = folder
    yield start
    for job in jobs:
        job.process.kill()
        job.process.wait()
        job.check_nothing_left()


pytestmark = needs_servers


# --- a job ----------------------------------------------------------------------------------------


def test_a_job_on_three_hosts(launch):
    write_whole(launch.folder / "exit", 0)
    job = launch("node1,node2,node3", "--nproc-per-node=2", "worker.py").wait(0)
    workers = sorted(job.workers(), key=lambda worker: int(worker["RANK"]))
    assert [worker["RANK"] for worker in workers] == list("012345"), job.out + job.err
    assert {worker["WORLD_SIZE"] for worker in workers} == {"6"}
    assert {worker["node"] for worker in workers} == {"node1", "node2", "node3"}
    assert len({(worker["node"], worker["GROUP_RANK"]) for worker in workers}) == 3
    job.check_nothing_left(workers)


def test_ranks_in_the_order_of_the_hosts(launch):
    write_whole(launch.folder / "exit", 0)
    job = launch("node3,node1", "--rdzv-backend=static", "worker.py").wait(0)
    assert {worker["RANK"]: worker["node"] for worker in job.workers()} == {
        "0": "node3",
        "1": "node1",
    }
    assert {worker["MASTER_ADDR"] for worker in job.workers()} == {"127.0.0.4"}


@pytest.mark.slow
@pytest.mark.heavy
def test_a_training_on_three_hosts(launch):
    pytest.importorskip("torch.distributed")
    (launch.folder / "train.py").write_text(TRAINING)
    job = launch("node1,node2,node3", "train.py").wait(0)
    assert sorted(job.out.splitlines()) == [f"[node{i}] sum 3.0" for i in (1, 2, 3)]


def test_lines_of_a_node_stay_in_order(launch):
    (launch.folder / "lines.py").write_text(
        "import sys\nfor i in range(3000): sys.stdout.write(f'{i}\\n')\n"
    )
    job = launch("node1,node2,node3", "lines.py").wait(0)
    for node in ("node1", "node2", "node3"):
        lines = [line.split()[1] for line in job.out.splitlines() if line.startswith(f"[{node}]")]
        assert lines == [str(i) for i in range(3000)]


def test_slots_are_the_default_number_of_workers(launch):
    write_whole(launch.folder / "exit", 0)
    (launch.folder / "hosts").write_text("node1 slots=2\nnode2 slots=1  # small\n")
    job = launch("@hosts", "worker.py").wait(0)
    sizes = {worker["node"]: worker["LOCAL_WORLD_SIZE"] for worker in job.workers()}
    assert sizes == {"node1": "2", "node2": "1"}
    job = launch("@hosts", "--nproc-per-node=1", "worker.py").wait(0)
    assert {worker["LOCAL_WORLD_SIZE"] for worker in job.workers()} == {"1"}


def test_a_failure_is_reported_once_with_its_code(launch):
    write_whole(launch.folder / "exit.1.0", 7)
    job = launch("node1,node2,node3", "worker.py").wait(7)
    assert len(re.findall(r"exitcode +: 7|exit code 7", job.err)) >= 1
    assert job.err.count("Root Cause") <= 1, job.err
    job.check_nothing_left(job.workers())


@pytest.mark.parametrize("shell", ["dash", "bash", "zsh", "fish", "tcsh"])
def test_the_login_shell_may_be_any(launch, own_servers, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    own_servers.set_shell(f'exec {shell} -c "$SSH_ORIGINAL_COMMAND"')
    write_whole(launch.folder / "exit", 0)
    job = launch("node2", "--nnodes=1", "worker.py", of=own_servers).wait(0)
    assert json.loads(job.out)["RANK"] == "0"


def test_a_shell_that_prints_text(launch, own_servers):
    own_servers.set_shell(
        "for i in 1 2 3 4 5 6 7; do echo welcome; echo warning >&2; done; printf half >&2\n"
        'exec bash -c "$SSH_ORIGINAL_COMMAND"'
    )
    write_whole(launch.folder / "exit", 0)
    job = launch("node1,node2", "worker.py", of=own_servers).wait(0)
    assert len(re.findall(r'"RANK"', job.out)) == 2
    assert "warning" not in job.err


# --- lost nodes -----------------------------------------------------------------------------------


def test_a_spare_host_replaces_a_lost_one(launch):
    job = launch("node1,node2,node3", "--nnodes=2", "--max-restarts=3", QUICK, "worker.py")
    workers = job.wait_for_workers(2)
    lost = next(worker for worker in workers if worker["node"] == "node2")
    os.kill(parent_of(lost["pid"]), signal.SIGKILL)
    job.wait_for("node3 is started in the place of node2")
    wait_until(lambda: any(w["node"] == "node3" for w in job.workers()), lambda: job.err)
    write_whole(launch.folder / "exit", 0)
    job.wait(0)
    job.check_nothing_left(job.workers())


def test_a_node_whose_connection_ends_leaves_the_job(launch, own_servers):
    job = launch(
        "node1,node2,node3", "--nnodes=2", "--max-restarts=3", QUICK, "worker.py", of=own_servers
    )
    job.wait_for_workers(2)
    [session] = children(int((own_servers.folder / "node2.pid").read_text()))
    os.kill(session, signal.SIGKILL)
    job.wait_for("node3 is started in the place of node2")
    wait_until(lambda: any(w["node"] == "node3" for w in job.workers()), lambda: job.err)
    write_whole(launch.folder / "exit", 0)
    job.wait(0)
    job.check_nothing_left(job.workers())


def test_a_spare_that_waits_takes_over(launch):
    job = launch(
        "node1,node2,node3", "--spares=1", "--nproc-per-node=1", "--max-restarts=3", QUICK,
        "worker.py",
    )  # fmt: skip
    workers = job.wait_for_workers(2)
    # The store is on node1, which may be the spare itself.
    lost = next(worker for worker in workers if worker["node"] != "node1")
    job.wait_for("this node waits for a place")
    os.kill(parent_of(lost["pid"]), signal.SIGKILL)
    wait_until(lambda: len({w["node"] for w in job.workers()}) == 3, lambda: job.err)
    write_whole(launch.folder / "exit", 0)
    job.wait(0)


def test_a_host_that_dies(launch, own_servers):
    job = launch("node1,node2", "--max-restarts=3", QUICK, "worker.py", of=own_servers)
    workers = job.wait_for_workers(2)
    Servers.run("stop", own_servers.folder, "--host=node2")
    job.wait(111)
    assert "node2 lost; 1 node is left, the job needs 2" in job.err
    job.check_nothing_left(workers)


def test_a_silent_host_is_lost_after_a_bound(launch, own_servers):
    """Its processes are frozen, as if its network said nothing any more."""
    job = launch(
        "node1,node2", "--max-restarts=3", QUICK, "worker.py", of=own_servers,
        ssh=f"{own_servers.ssh} -oServerAliveInterval=1 -oServerAliveCountMax=1",
    )  # fmt: skip
    job.wait_for_workers(2)
    server = int((own_servers.folder / "node2.pid").read_text())
    [session] = children(server)
    os.kill(session, signal.SIGSTOP)
    try:
        job.wait(111)
        assert re.search("node2 (is )?lost", job.err)
    finally:
        os.kill(session, signal.SIGKILL)


def test_an_agent_ends_after_silence(tmp_path):
    """The agent's own bound, for a command that cannot end the connection."""
    reader, writer = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-m", "plaunch_engines.node", str(tmp_path), ""],
        env={**os.environ, "PLAUNCH_NODE_SILENCE": "0.7"},
        stdin=reader,
        stderr=subprocess.DEVNULL,
    ) as agent:
        os.close(reader)
        assert agent.wait(LIMIT) == 0
    os.close(writer)


# --- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_job(launch, signum):
    job = launch("node1,node2,node3", "worker.py")
    workers = job.wait_for_workers(3)
    job.process.send_signal(signum)
    job.wait(128 + signum)
    job.check_nothing_left(workers)


def test_nothing_is_left_if_the_command_is_killed(launch):
    job = launch("node1,node2,node3", "worker.py")
    workers = job.wait_for_workers(3)
    job.process.kill()
    job.wait(-signal.SIGKILL)
    job.check_nothing_left(workers)


def test_workers_that_ignore_sigterm_end_with_the_command(launch):
    (launch.folder / "worker.py").write_text(
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WORKER
    )
    job = launch("node1,node2", "worker.py")
    workers = job.wait_for_workers(2)
    job.process.kill()
    job.wait(-signal.SIGKILL)
    job.check_nothing_left(workers)


# --- bad input ------------------------------------------------------------------------------------


def wrapper(folder, text):
    """Write a program that runs instead of Python."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return f"--node-python={path}"


def check_refused(job, message, code=111):
    job.wait(code)
    lines = job.err.splitlines()
    assert len(lines) == 1, job.err
    assert re.search(message, lines[0]), job.err
    assert job.out == ""
    job.check_nothing_left()


def test_a_host_that_cannot_be_reached(launch):
    check_refused(
        launch("node1,127.0.0.250:9", "worker.py"),
        r"nothing was started: 127\.0\.0\.250:9: .*Connection refused; this must work without a "
        r"question: ssh -F \S+/config -p 9 127\.0\.0\.250 true$",
    )


def test_half_of_the_hosts(launch):
    job = launch("127.0.0.250:9,node1,127.0.0.251:9,node2", "worker.py").wait(111)
    first, *others = job.err.splitlines()
    assert "nothing was started, because of 2 nodes:" in first
    assert [line.split(": ")[0].strip() for line in others] == ["127.0.0.250:9", "127.0.0.251:9"]


def test_a_host_that_asks_for_a_password(launch, servers):
    check_refused(
        launch("node1", "worker.py", ssh=f"{servers.ssh} -oPubkeyAuthentication=no"),
        r"node1: .*Permission denied.*this must work without a question",
    )


def test_a_host_whose_key_is_not_known(launch, servers):
    check_refused(
        launch("node1", "worker.py", ssh=f"{servers.ssh} -oUserKnownHostsFile=none"),
        r"node1: .*Host key verification failed\.; this must work without a question",
    )


def test_a_host_without_python(launch):
    check_refused(
        launch("node1", "--node-python=/none/python", "worker.py"),
        r"node1: .*\(127\): there is no /none/python; name .* --node-python$",
    )


def test_a_host_without_plaunch(launch):
    check_refused(
        launch("node1", wrapper(launch.folder, f'exec {sys.executable} -I -S "$@"'), "worker.py"),
        r"node1: .*No module named 'plaunch_engines'",
    )


def test_a_host_with_another_version(launch):
    program = (
        "import runpy, sys; import plaunch; plaunch.__version__ = '0.0.9'; "
        "del sys.argv[1]; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
    )
    check_refused(
        launch(
            "node1", wrapper(launch.folder, f'exec {sys.executable} -c "{program}" "$@"'),
            "worker.py",
        ),
        r"node1 has plaunch 0\.0\.9, and this machine .*; install the same version on all nodes",
    )  # fmt: skip


def test_a_host_that_ends_at_once(launch, own_servers):
    own_servers.set_shell("echo closed for maintenance >&2; exit 3")
    check_refused(
        launch("node2", "worker.py", of=own_servers),
        r"node2: the agent could not be started \(3\): closed for maintenance$",
    )


def test_a_host_that_does_not_answer(launch, own_servers):
    own_servers.set_shell("echo wait >&2; exec sleep 600")
    check_refused(
        launch("node2", "--start-limit=2", "worker.py", of=own_servers),
        r"node2: no agent has reported within 2 s \(--start-limit\): wait$",
    )


@pytest.mark.parametrize(
    ("on", "arguments", "message"),
    [
        ("", (), "--on=ssh needs hosts: --on=ssh:HOST,HOST or --on=ssh:@HOSTFILE"),
        ("a,a", (), "'a' is named 2 times"),
        ("a,b", ("--nnodes=3",), "--on=ssh:a,b has 2 nodes, and the job needs at least 3"),
        ("a", ("--ssh-command=nossh -v",), r"runs 'nossh -v', which is not a program in PATH"),
        ("a", ("--ssh-command='",), r"\(--ssh-command\)"),
    ],
)
def test_usage_errors(launch, on, arguments, message):
    check_refused(launch(on, *arguments, "worker.py"), message, code=2)


# --- the engine -----------------------------------------------------------------------------------


def handle(openings, script):
    return SshHandle(SshHost("node", "node"), ["sh", "-c", script], "ssh node true", openings)


def test_a_connection_waits_until_fewer_others_are_being_opened():
    openings = BoundedSemaphore(1)
    first, second = (handle(openings, "sleep 0.5; read line; exec sleep 600") for _ in range(2))
    try:
        for _ in range(3):
            assert first.poll() is None
            assert second.poll() is None
        assert first.pid
        assert not second.pid
        wait_until(lambda: (first.poll(), second.poll(), second.pid)[-1], "the second connection")
        assert first.poll() is None
    finally:
        for one in (first, second):
            one.stop()
            wait_until(lambda one=one: one.poll() == 137, "the end")
            one.close()


def test_a_connection_that_waits_can_be_stopped():
    openings = BoundedSemaphore(1)
    first, second = handle(openings, "exec sleep 600"), handle(openings, "exec sleep 600")
    first.poll()
    second.poll()
    second.stop()
    assert second.poll() == 137
    assert not second.pid
    assert os.read(second.stderr, 10) == b""
    first.stop()
    wait_until(lambda: first.poll() == 137, "the end")
    for one in (first, second):
        one.close()


def test_hosts_that_are_left_replace_others():
    engine = SshEngine(EngineRequest(where="a,b,c", options={"ssh_command": "true"}))
    assert (engine.nodes, engine.can_replace) == (3, True)
    handles = [*engine.start(["python"], [0, 1])]
    assert engine.can_replace
    handles += engine.start(["python"], [2])
    assert [one.node for one in handles] == ["a", "b", "c"]
    assert not engine.can_replace
    with pytest.raises(UsageError, match="no host is left: --on=ssh names 3"):
        engine.start(["python"], [3])
    engine.close()
    for one in handles:
        one.close()
