"""The engine `slurm` in a real Slurm of three nodes, which tools/cluster/slurm.py starts.

Tests with Slurm are skipped where it is not installed (Debian's packages slurmctld, slurmd and
slurm-client), or where this user may not create namespaces.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from plaunch.engines import EngineRequest
from plaunch.errors import ExitCode, UsageError
from plaunch_engines.slurm import create_slurm_engine, slurm_options

from helpers.nodes import WORKER, write_whole
from helpers.waiting import wait_until

TOOL = Path(__file__).parents[2] / "tools/cluster/slurm.py"
TIMEOUT = 60.0  # seconds
ALL_GONE = 10.0  # seconds: the promise after SIGKILL
QUICK = "--rdzv-conf=last_call_timeout=1,keep_alive_interval=0.4,keep_alive_max_attempt=8"

real = [pytest.mark.slow, pytest.mark.heavy]


# --- without Slurm --------------------------------------------------------------------------------


def request(where="", **fields):
    return EngineRequest(**{
        "where": where, "min_nodes": 2, "max_nodes": 2, "folder": "/work",
        "options": {"slurm_options": []}, "job": "plaunch-1", **fields,
    })  # fmt: skip


# A job 7 of the nodes that the file `nodes` names. Steps run on this machine.
FAKES = {
    "srun": """
        for word; do
            case $word in --nodelist=*) export NODE=${word#*=} ;; --*) ;; *) break ;; esac
            shift
        done
        exec "$@"
    """,
    "salloc": """
        while [ "$1" != sh ]; do shift; done
        echo "salloc: Granted job allocation 7" >&2
        SLURM_JOB_ID=7 "$@"
    """,
    "squeue": "case $* in *%N*) echo the-nodes ;; esac",
    "scontrol": "cat $(dirname $0)/nodes",
    "scancel": "echo $* > $(dirname $0)/cancelled",
    "sbatch": "exit 1",
}


@pytest.fixture
def with_programs(tmp_path, monkeypatch):
    """Programs in the place of Slurm's, which know one job."""
    (tmp_path / "nodes").write_text("node1\nnode2\nnode3\n")
    for name, text in FAKES.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


def test_options_are_words_of_a_shell():
    texts = ['--partition=gpu --comment="two words"', "--time 5"]
    assert slurm_options(texts) == ["--partition=gpu", "--comment=two words", "--time", "5"]


@pytest.mark.parametrize("text", ["--nodes=4", "-N4", "--ntasks 8", "-n 8", "--no-shell"])
def test_options_that_the_engine_sets_are_refused(text):
    with pytest.raises(UsageError, match="is set by --on=slurm; leave it out"):
        slurm_options([text])


def test_options_that_are_not_words_are_refused():
    with pytest.raises(UsageError, match="--slurm-options: No closing quotation"):
        slurm_options(["--comment='x"])


def test_another_kind_of_launch_is_refused():
    with pytest.raises(UsageError, match="write slurm or slurm:batch"):
        create_slurm_engine(request("node1"))


@pytest.mark.parametrize(("where", "program"), [("", "srun"), ("batch", "sbatch")])
def test_slurm_must_be_installed(where, program, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UsageError, match=f"needs {program}, which is not in PATH"):
        create_slurm_engine(request(where))


@pytest.mark.usefixtures("with_programs")
def test_options_for_an_allocation_that_exists_are_refused(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with pytest.raises(UsageError, match="are for a new allocation, and this is job 7"):
        create_slurm_engine(request(options={"slurm_options": ["--time=1"]}))


@pytest.mark.usefixtures("with_programs")
def test_a_batch_script_needs_a_number_of_nodes():
    with pytest.raises(UsageError, match="needs a number of nodes"):
        create_slurm_engine(request("batch", min_nodes=None, max_nodes=None))


@pytest.mark.usefixtures("with_programs")
@pytest.mark.parametrize(
    ("fields", "nodes", "has_spares"),
    [({}, 2, False), ({"min_nodes": 1}, 2, True), ({"spares": 1}, 3, True)],
)
def test_a_batch_script(fields, nodes, has_spares):
    options = {"slurm_options": ["--partition gpu --comment='two words'"]}
    engine = create_slurm_engine(request("batch", options=options, **fields))
    script = engine.script(["--nnodes=2", "--", "train.py", "a b"])
    assert f"#SBATCH --nodes={nodes}\n#SBATCH --ntasks-per-node=1\n" in script
    assert "#SBATCH --partition gpu\n#SBATCH '--comment=two words'\n" in script
    assert "plaunch --scheduler=slurm \\\n    --nnodes=2 -- train.py 'a b'\n" in script
    assert ("#SBATCH --no-kill\n" in script, "--kill-on-bad-exit" in script) == (
        (True, False) if has_spares else (False, True)
    )


def run_agents(handles, code):
    """Let agents end with a code; return what they have written."""
    for handle in handles:
        handle.write(f"{code}\n".encode())
    read = dict.fromkeys(handles, b"")

    def ended():
        for handle in handles:
            try:
                read[handle] += os.read(handle.stdout, 1000)
            except BlockingIOError:
                pass
        return all(handle.poll() is not None for handle in handles)

    wait_until(ended, lambda: f"the agents end: {read}")
    return [read[handle].decode() for handle in handles]


AGENT = ["sh", "-c", 'read -r line; echo "$NODE $line"; exit "$line"']


class Agents:
    """Starts agents of an engine, and ends them."""

    def __init__(self):
        self.engine = None
        self._handles = []

    def create_engine(self, **fields):
        self.engine = create_slurm_engine(request(**fields))

    def start(self, *indices):
        started = self.engine.start(AGENT, indices)
        self._handles += started
        return started

    def start_in_new_allocation(self, count):
        started = self.start(*range(count))
        wait_until(lambda: started[0].poll() is None and started[0].node == "node1", "granted")
        return started

    def close(self):
        self.engine.close()
        wait_until(lambda: all(h.poll() is not None for h in self._handles), "they end")
        for handle in self._handles:
            handle.close()


@pytest.fixture
def agents(with_programs):
    agents = Agents()
    yield agents
    agents.close()


def test_agents_of_an_allocation_are_replaced_on_other_nodes(agents, monkeypatch, tmp_path):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    agents.create_engine()
    assert agents.engine.nodes == 3
    first = agents.start(0, 1)
    assert run_agents(first, 7) == ["node1 7\n", "node2 7\n"]
    assert [handle.poll() for handle in first] == [7, 7]
    excluded = int(ExitCode.NODE_EXCLUDED)
    assert run_agents(agents.start(2), excluded) == [f"node3 {excluded}\n"]
    (again,) = agents.start(3)
    assert again.node == "node1"
    (tmp_path / "nodes").write_text("node1\nnode3\n")  # Slurm has lost node2
    with pytest.raises(UsageError, match="job 7 has no other node"):
        agents.start(4)
    (tmp_path / "nodes").write_text("")
    with pytest.raises(UsageError, match="job 7 has ended"):
        agents.start(4)


def test_an_allocation_is_made_and_released(agents, tmp_path):
    agents.create_engine(max_nodes=3)
    assert agents.engine.nodes is None
    started = agents.start_in_new_allocation(3)
    assert run_agents(started, 0) == ["node1 0\n", "node2 0\n", "node3 0\n"]
    agents.engine.close()
    assert not (tmp_path / "cancelled").exists()


def test_an_allocation_is_released_without_the_process_that_holds_it(agents, tmp_path):
    agents.create_engine(max_nodes=3)
    agents.start_in_new_allocation(3)
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    (holder,) = (
        int(pid)
        for pid in children
        if "plaunch_engines.slurm_allocation" in Path(f"/proc/{pid}/cmdline").read_text()
    )
    os.kill(holder, signal.SIGKILL)
    cancelled = tmp_path / "cancelled"
    wait_until(lambda: cancelled.exists() and cancelled.read_text() == "7\n", "scancel")


def test_agents_end_without_an_allocation(agents, tmp_path):
    (tmp_path / "salloc").write_text("#!/bin/sh\necho 'salloc: error: no' >&2; exit 1\n")
    agents.create_engine()
    started = agents.start(0, 1)
    wait_until(lambda: [agent.poll() for agent in started] == [1, 1], "they end")
    assert os.read(started[0].stderr, 1000) == b"salloc: error: no\n"


# --- a real Slurm ---------------------------------------------------------------------------------


class Cluster:
    """A cluster whose commands run in `folder`, which has `worker.py`."""

    def __init__(self, slurm, folder):
        self.folder = folder
        self._slurm = slurm
        self._environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PLAUNCH_", "PET_", "SLURM_"))
        }
        (folder / "worker.py").write_text(WORKER)

    def start(self, *words):
        return Command(
            subprocess.Popen(
                [sys.executable, TOOL, "run", self._slurm, *words],
                cwd=self.folder,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            ),
            self.folder,
        )

    def plaunch(self, *words, inside=()):
        return self.start(*inside, sys.executable, "-m", "plaunch", *words)

    def run(self, *words):
        command = self.start(*words)
        command.end()
        return command.output

    def lose(self, node):
        subprocess.run([sys.executable, TOOL, "lose", self._slurm, node], check=True)

    def jobs(self):
        """Return the jobs that are pending or running."""
        return self.run("squeue", "--noheader", "--states=PD,R", "--format=%i").split()

    def agents(self):
        """Return the pids of the agents by node."""
        found = {}
        for pid, words in processes(self.folder):
            if words[1:3] == ["-m", "plaunch_engines.node"]:
                environ = Path(f"/proc/{pid}/environ").read_text().split("\0")
                (node,) = (v[16:] for v in environ if v.startswith("SLURMD_NODENAME="))
                found[node] = pid
        return found

    def check_gone(self, seconds=ALL_GONE):
        """Assert that no process and no job is left after so many seconds."""
        until = time.monotonic() + seconds
        while (left := processes(self.folder)) or self.jobs():
            assert time.monotonic() < until, left
            time.sleep(0.1)


class Command:
    """A command in the cluster."""

    def __init__(self, process, folder):
        self._process = process
        self._folder = folder
        self._lines = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        with self._process.stdout as lines:
            self._lines.extend(lines)

    @property
    def output(self):
        return "".join(self._lines)

    @property
    def messages(self):
        """Return the lines that have no node in front of them."""
        return [line.rstrip("\n") for line in self._lines if not line.startswith("[")]

    def until(self, condition, what):
        wait_until(condition, lambda: f"{what}\n{self.output}")

    def until_world(self, size, round_=0):
        """Wait for the workers of a world; return their hosts by rank."""

        def workers():
            found = (json.loads(t) for t in re.findall(r"\] (\{.*\"RANK\".*\})", self.output))
            return {w["RANK"]: w["host"] for w in found if w["PLAUNCH_ROUND"] == str(round_)}

        self.until(lambda: len(workers()) >= size, f"a world of {size}, round {round_}")
        return [workers()[str(rank)] for rank in range(size)]

    def signal(self, signum):
        """Send a signal to plaunch itself."""
        (pid,) = (pid for pid, words in processes(self._folder) if words[1:3] == ["-m", "plaunch"])
        os.kill(pid, signum)

    def end(self):
        """Wait for its end, and return its exit code."""
        code = self._process.wait(TIMEOUT)
        self._thread.join(TIMEOUT)
        return code


def processes(folder):
    """Return the pids and words of all processes that run in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(path / "cwd") == str(folder):
                words = (path / "cmdline").read_text().rstrip("\0").split("\0")
                found.append((int(path.name), words))
        except OSError:
            continue
    return [
        (pid, words) for pid, words in found if words[0] != "nsenter" and str(TOOL) not in words
    ]


@pytest.fixture
def cluster(tmp_path):
    # Slurm keeps sockets in its folder. With long paths, no job would start.
    with tempfile.TemporaryDirectory(
        prefix="slurm-", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:
        started = subprocess.run(
            [sys.executable, TOOL, "start", folder], capture_output=True, text=True, check=False
        )
        if started.returncode != 0:
            if shutil.which("slurmd") and "namespaces" not in started.stderr:
                pytest.fail(started.stderr)
            pytest.skip(started.stderr.strip())
        try:
            yield Cluster(folder, tmp_path)
        finally:
            subprocess.run([sys.executable, TOOL, "stop", folder], check=True)


class TestWithSlurm:
    pytestmark = real

    def test_a_job_on_three_nodes(self, cluster):
        write_whole(cluster.folder / "exit", 0)
        command = cluster.plaunch("--on=slurm", "--nnodes=3", "--nproc-per-node=2", "worker.py")
        assert command.end() == 0
        hosts = command.until_world(6)
        assert sorted(hosts) == [f"node0{n}" for n in (1, 1, 2, 2, 3, 3)]
        cluster.check_gone()

    def test_a_failure_on_one_node_is_reported_once(self, cluster):
        command = cluster.plaunch("--on=slurm", "--nnodes=3", "worker.py")
        hosts = command.until_world(3)
        write_whole(cluster.folder / "exit.1.0", 7)
        assert command.end() == 7
        assert command.output.count("exit code 7\n") == 1
        assert f"rank 1 on {hosts[1]} failed" in command.output
        cluster.check_gone()

    @pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_ends_the_job_and_the_allocation(self, cluster, signum):
        command = cluster.plaunch("--on=slurm", "--nnodes=3", "worker.py")
        command.until_world(3)
        command.signal(signum)
        assert command.end() == 128 + signum
        cluster.check_gone()

    def test_nothing_is_left_of_a_command_that_is_killed(self, cluster):
        command = cluster.plaunch("--on=slurm", "--nnodes=3", "worker.py")
        command.until_world(3)
        command.signal(signal.SIGKILL)
        command.end()
        cluster.check_gone()

    def test_nothing_is_left_of_a_command_and_an_salloc_that_are_killed(self, cluster):
        command = cluster.plaunch("--on=slurm", "--nnodes=3", "worker.py")
        command.until_world(3)
        for pid, words in processes(cluster.folder):
            if words[0] == "salloc":
                os.kill(pid, signal.SIGKILL)
        command.signal(signal.SIGKILL)
        command.end()
        cluster.check_gone()

    def test_the_allocation_is_released_after_salloc_was_killed(self, cluster):
        command = cluster.plaunch("--on=slurm", "--nnodes=3", "worker.py")
        command.until_world(3)
        for pid, words in processes(cluster.folder):
            if words[0] == "salloc":
                os.kill(pid, signal.SIGKILL)
        write_whole(cluster.folder / "exit", 0)
        assert command.end() == 0
        cluster.check_gone()

    def test_a_killed_agent_is_replaced(self, cluster):
        command = cluster.plaunch("--on=slurm", "--nnodes=3", QUICK, "worker.py")
        command.until_world(3)
        os.kill(cluster.agents()["node02"], signal.SIGKILL)
        assert "node02" in command.until_world(3, round_=1)
        write_whole(cluster.folder / "exit", 0)
        assert command.end() == 0
        assert "node02 is started in the place of node02" in command.output
        cluster.check_gone()

    def test_a_lost_node_is_not_used_again(self, cluster):
        command = cluster.plaunch("--on=slurm", "--nnodes=2:3", QUICK, "worker.py")
        command.until_world(3)
        cluster.lose("node03")
        assert sorted(command.until_world(2, round_=1)) == ["node01", "node02"]
        write_whole(cluster.folder / "exit", 0)
        assert command.end() == 0
        assert "node03 is not replaced: job 1 has no other node" in command.output
        cluster.check_gone()

    def test_too_few_nodes_end_the_job(self, cluster):
        command = cluster.plaunch("--on=slurm", "--nnodes=3", QUICK, "worker.py")
        command.until_world(3)
        cluster.lose("node03")
        assert command.end() == 111
        assert "node03 lost; 2 nodes are left, the job needs 3" in command.messages[-1]
        cluster.check_gone()

    def test_a_spare_node_of_an_allocation_replaces_another(self, cluster):
        inside = ["salloc", "--nodes=3", "--ntasks-per-node=4"]
        command = cluster.plaunch("--on=slurm", "--nnodes=2", QUICK, "worker.py", inside=inside)
        command.until_world(2)
        os.kill(cluster.agents()["node02"], signal.SIGKILL)
        assert sorted(command.until_world(2, round_=1)) == ["node01", "node03"]
        write_whole(cluster.folder / "exit", 0)
        assert command.end() == 0
        assert "node03 is started in the place of node02" in command.output

    def test_an_allocation_that_is_too_small(self, cluster):
        inside = ["salloc", "--quiet", "--nodes=2"]
        command = cluster.plaunch("--on=slurm", "--nnodes=3", "worker.py", inside=inside)
        assert command.end() == 2
        assert "--on=slurm has 2 nodes, and the job needs at least 3" in command.output

    def test_scancel_ends_the_job(self, cluster):
        command = cluster.plaunch("--on=slurm", "--nnodes=3", "worker.py")
        command.until_world(3)
        cluster.run("scancel", *cluster.jobs())
        assert command.end() == 128 + signal.SIGTERM
        assert "CANCELLED AT" in command.output
        cluster.check_gone()

    def test_workers_get_a_warning_of_slurms_once(self, cluster):
        command = cluster.plaunch("--on=slurm", "--nnodes=3", "--signal-policy=notify", "worker.py")
        command.until_world(3)
        cluster.run("scancel", "--signal=USR1", *cluster.jobs())
        command.until(lambda: command.output.count('"notice": 10') >= 3, "the warning")
        write_whole(cluster.folder / "exit", 0)
        assert command.end() == 0
        assert command.output.count('"notice": 10') == 3

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ("--partition=nope", "invalid partition specified: nope"),
            ("--mem=999G", "Memory specification can not be satisfied"),
            ("--frob", "salloc: unrecognized option '--frob'"),
        ],
    )
    def test_a_request_that_slurm_rejects(self, cluster, options, message):
        command = cluster.plaunch(
            "--on=slurm", "--nnodes=3", f"--slurm-options={options}", "worker.py"
        )
        assert command.end() == 111
        (line,) = command.messages
        assert "nothing was started: slurm: the agent could not be started (1): " in line
        assert message in line
        cluster.check_gone()

    def test_a_job_that_stays_pending(self, cluster):
        command = cluster.plaunch("--on=slurm", "--nnodes=4", "--start-limit=4", "worker.py")
        assert command.end() == 111
        assert re.search(
            r"slurm: no agent has reported within 4 s \(--start-limit\): job 1 is pending: Par\w+;",
            command.messages[-1],
        )
        cluster.check_gone()

    @pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
    def test_a_pending_job_ends_with_the_command(self, cluster, signum):
        command = cluster.plaunch("--on=slurm", "--nnodes=4", "worker.py")
        command.until(lambda: "job 1 is pending" in command.output, "it is pending")
        command.signal(signum)
        command.end()
        cluster.check_gone()

    def test_a_batch_job(self, cluster):
        submitted = cluster.plaunch("--on=slurm:batch", "--nnodes=3", "worker.py")
        assert submitted.end() == 0
        (script,) = cluster.folder.glob("*.sbatch")
        output = cluster.folder / "slurm-1.out"
        assert submitted.messages == [
            f"submitted job 1 ({script})",
            f"output: tail -F {output}",
            "state: squeue --jobs=1    end: scancel 1",
        ]
        wait_until(lambda: output.exists() and output.read_text().count('"RANK"') == 3, "it runs")
        tokens = {
            variable
            for pid, words in processes(cluster.folder)
            if words[1:3] == ["-m", "plaunch"]
            for variable in Path(f"/proc/{pid}/environ").read_text().split("\0")
            if variable.startswith("PLAUNCH_RDZV_TOKEN=")
        }
        assert len(tokens) == 1
        assert "TOKEN" not in script.read_text()
        write_whole(cluster.folder / "exit", 0)
        cluster.check_gone(TIMEOUT)
        assert "JobState=COMPLETED" in cluster.run("scontrol", "show", "job", "1")

    def test_a_batch_job_that_slurm_rejects(self, cluster):
        command = cluster.plaunch(
            *("--on=slurm:batch", "--nnodes=3", "--slurm-options=--partition=nope", "worker.py")
        )
        assert command.end() == 2
        (line,) = command.messages
        assert "the job was not submitted: sbatch: error: invalid partition" in line
        assert not list(cluster.folder.glob("*.sbatch"))
