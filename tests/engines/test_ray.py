"""The engine `ray` with a real cluster: several raylets on a loopback address.

Skipped if the package `ray` is not installed.
"""

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from plaunch.engines import EngineRequest
from plaunch.errors import UsageError
from plaunch_engines.ray_actor import AgentActor, clean_environment
from plaunch_engines.ray_engine import RayEngine, read_address, read_resources

from helpers.nodes import WORKER, write_whole
from helpers.ports import free_port
from helpers.processes import is_gone
from helpers.waiting import wait_until

TOOL = Path(__file__).parents[2] / "tools/cluster/ray.py"
LIMIT = 60.0
LEFT_LIMIT = 10.0  # seconds until nothing is left after the command is killed
# Survivors notice a lost node soon.
QUICK = "--rdzv-conf=last_call_timeout=1,keep_alive_interval=0.4,keep_alive_max_attempt=8"
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="the package ray is not installed"
)


def start_cluster(folder, count):
    state = folder / "state.json"

    def run(*words):
        return subprocess.run(
            [sys.executable, TOOL, *words], check=True, timeout=3 * LIMIT, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        ).stdout.strip()  # fmt: skip

    with contextlib.ExitStack() as stack:
        stack.callback(run, "stop", state)
        yield run("start", str(count), state)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    yield from start_cluster(tmp_path_factory.mktemp("ray"), 3)


@pytest.fixture
def large_cluster(tmp_path):
    yield from start_cluster(tmp_path, 4)


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class RayJob:
    """A command with `--on=ray`, and what it has written."""

    def __init__(self, folder, *arguments, env=None):
        self.folder = folder
        self._out, self._err = folder / ".out", folder / ".err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "plaunch", *arguments],
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
        """Return what workers have said of themselves, each with its node and its agent."""
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

    def losable(self, count):
        """Return a worker whose node hosts neither the store nor Ray's head."""
        workers = self.wait_for_workers(count)
        [host] = re.findall(r"\[(.*)\] plaunch: this node hosts the rendezvous store", self.err)
        return next(worker for worker in workers if worker["node"] not in (host, "node-a"))

    def wait_for(self, text):
        wait_until(lambda: text in self.err, lambda: self.err)

    def agents(self):
        return [pid for pid in self.processes() if b"plaunch_engines.node" in command_of(pid)]

    def agent_of(self, worker):
        """Return the process of the agent of a worker."""
        [found] = [pid for pid in self.agents() if pid in ancestors(worker["pid"])]
        return found

    def client(self):
        """Return the process that is connected to Ray."""
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        pids = [int(pid) for path in children for pid in path.read_text().split()]
        return next((pid for pid in pids if b"ray_client" in command_of(pid)), None)

    def processes(self):
        """Return the processes whose working folder or command line is of this job."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                folder = os.fsencode(self.folder)
                if folder in os.fsencode((path / "cwd").readlink()) or folder in command_of(
                    path.name
                ):
                    found.append(int(path.name))
        return [pid for pid in found if not is_gone(pid) and b"ray::" not in command_of(pid)]

    def check_nothing_left(self):
        began = time.monotonic()
        wait_until(lambda: not self.processes(), self.processes)
        assert time.monotonic() - began < LEFT_LIMIT


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def ancestors(pid):
    found = []
    while pid > 1:
        pid = parent_of(pid)
        found.append(pid)
    return found


@pytest.fixture
def launch(tmp_path):
    """Start a command in a folder of its own."""
    folder = tmp_path / "it's a $job"
    folder.mkdir()
    (folder / "worker.py").write_text(WORKER)
    jobs = []

    def start(*arguments, **more):
        jobs.append(RayJob(folder, *arguments, **more))
        return jobs[-1]

    start.folder = folder
    yield start
    for job in jobs:
        job.process.kill()
        job.process.wait()
    for job in jobs:
        job.check_nothing_left()


# --- a job ----------------------------------------------------------------------------------------


@needs_ray
def test_a_job_on_three_nodes(launch, cluster):
    write_whole(launch.folder / "exit", 0)
    job = launch("--on=ray", "--nnodes=3", "--nproc-per-node=2", "worker.py",
                 env={"RAY_ADDRESS": cluster}).wait(0)  # fmt: skip
    workers = sorted(job.workers(), key=lambda worker: int(worker["RANK"]))
    assert [worker["RANK"] for worker in workers] == list("012345"), job.out + job.err
    assert {worker["WORLD_SIZE"] for worker in workers} == {"6"}
    assert {worker["node"] for worker in workers} == {"node-a", "node-b", "node-c"}
    assert len({(worker["node"], worker["GROUP_RANK"]) for worker in workers}) == 3
    # Nothing of Ray's is in the output.
    own = ("plaunch: run id", "[node-")
    assert all(line.startswith(own) for line in job.err.splitlines()), job.err


@needs_ray
def test_lines_of_a_node_stay_in_order(launch, cluster):
    (launch.folder / "lines.py").write_text(
        "import sys\nfor i in range(20000): sys.stdout.write(f'{i}\\n')\n"
    )
    job = launch(f"--on=ray:{cluster}", "--nnodes=2", "lines.py").wait(0)
    nodes = {line.split()[0] for line in job.out.splitlines()}
    assert len(nodes) == 2
    for node in nodes:
        lines = [line.split()[1] for line in job.out.splitlines() if line.startswith(node)]
        assert lines == [str(i) for i in range(20000)]


@needs_ray
def test_a_failure_is_reported_once_with_its_code(launch, cluster):
    write_whole(launch.folder / "exit.1.0", 7)
    job = launch(f"--on=ray:{cluster}", "--nnodes=3", "worker.py").wait(7)
    assert job.err.count("Root Cause") <= 1, job.err
    assert re.search(r"exitcode +: 7|exit code 7", job.err)


@needs_ray
def test_agents_have_no_traces_of_ray(launch, cluster):
    (launch.folder / "traces.py").write_text(
        "import os, signal\n"
        "found = [n for n in os.environ if n.startswith('RAY_') or n == 'PYTHONBREAKPOINT']\n"
        "print(found, signal.pthread_sigmask(signal.SIG_BLOCK, ()), flush=True)\n"
    )
    job = launch(f"--on=ray:{cluster}", "--nnodes=1", "traces.py").wait(0)
    assert job.out == "[] set()\n"


# --- lost nodes -----------------------------------------------------------------------------------


@needs_ray
def test_a_lost_agent_is_replaced(launch, cluster):
    job = launch(f"--on=ray:{cluster}", "--nnodes=3", "--max-restarts=3", QUICK, "worker.py")
    lost = job.losable(3)
    os.kill(job.agent_of(lost), signal.SIGKILL)
    job.wait_for(f"a node of Ray is started in the place of {lost['node']}")
    workers = job.wait_for_workers(6)
    write_whole(launch.folder / "exit", 0)
    job.wait(0)
    assert {worker["node"] for worker in workers[3:]} == {"node-a", "node-b", "node-c"}


@needs_ray
def test_an_agent_ends_with_its_actor(launch, cluster):
    """Ray kills the children of an actor, but not if the actor is killed."""
    job = launch(f"--on=ray:{cluster}", "--nnodes=2:3", "--max-restarts=3", QUICK, "worker.py")
    worker = job.losable(3)
    agent = job.agent_of(worker)
    os.kill(parent_of(agent), signal.SIGKILL)
    began = time.monotonic()
    wait_until(lambda: is_gone(agent) and is_gone(worker["pid"]), lambda: job.err)
    assert time.monotonic() - began < LEFT_LIMIT
    job.wait_for(f"a node of Ray is started in the place of {worker['node']}")
    job.wait_for_workers(6)
    write_whole(launch.folder / "exit", 0)
    job.wait(0)


@needs_ray
@pytest.mark.slow
def test_another_node_replaces_a_lost_one(launch, large_cluster):
    job = launch(f"--on=ray:{large_cluster}", "--nnodes=3", "--max-restarts=3", QUICK, "worker.py")
    lost = job.losable(3)
    client = job.client()
    agent = job.agent_of(lost)
    os.kill(parent_of(parent_of(agent)), signal.SIGKILL)
    began = time.monotonic()
    wait_until(lambda: is_gone(agent) and is_gone(lost["pid"]), lambda: job.err)
    assert time.monotonic() - began < LEFT_LIMIT
    workers = job.wait_for_workers(6)
    assert {worker["node"] for worker in workers} == {"node-a", "node-b", "node-c", "node-d"}
    assert lost["node"] not in {worker["node"] for worker in workers[3:]}
    assert job.client() == client
    write_whole(launch.folder / "exit", 0)
    job.wait(0)


RESERVE = """
import sys
import ray
from plaunch_engines.ray_client import AgentRequest, RayCluster

cluster = RayCluster(sys.argv[1], {"CPU": 1})
cluster.connect()

def run(*agents):
    bundles = cluster.reserve([AgentRequest(index, (), ()) for index in agents])
    for bundle in bundles:
        actor = cluster.create_actor(bundle)
        bundle.node, _ = ray.get(actor.start.remote(["true"]), timeout=30)
        ray.kill(actor)
    return bundles

first = run(0, 1, 2)
first[0].agent = None  # lost
again, = run(3)
assert again is first[0]
further, = run(4)  # none is free, as if one were excluded
assert further.node not in {bundle.node for bundle in first}
print("done")
"""


@needs_ray
@pytest.mark.slow
def test_an_excluded_node_gets_no_other_agent(large_cluster):
    done = subprocess.run(
        [sys.executable, "-c", RESERVE, large_cluster],
        capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert done.stdout == "done\n", done.stderr


@needs_ray
def test_the_lost_connection_to_ray_ends_the_job(launch, cluster):
    job = launch(f"--on=ray:{cluster}", "--nnodes=3", "worker.py")
    job.wait_for_workers(3)
    os.kill(job.client(), signal.SIGKILL)
    job.wait(111)
    assert "the connection to Ray is lost (-9)" in job.err
    job.check_nothing_left()


# --- ends -----------------------------------------------------------------------------------------


@needs_ray
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_job(launch, cluster, signum):
    job = launch(f"--on=ray:{cluster}", "--nnodes=3", "worker.py")
    job.wait_for_workers(3)
    job.process.send_signal(signum)
    job.wait(128 + signum)


@needs_ray
def test_signals_that_kill(launch, cluster):
    (launch.folder / "stubborn.py").write_text(
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        'signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(\'{"RANK": "0"}\', flush=True)\n'
        "while True: signal.pause()\n"
    )
    job = launch(f"--on=ray:{cluster}", "--nnodes=2", "stubborn.py")
    job.wait_for_workers(2)
    for _ in range(3):
        job.process.send_signal(signal.SIGINT)
        time.sleep(0.1)  # signals that come at once are merged
    job.wait(128 + signal.SIGINT)
    assert "the agents are killed" in job.err


@needs_ray
def test_nothing_is_left_if_the_command_is_killed(launch, cluster):
    job = launch(f"--on=ray:{cluster}", "--nnodes=3", "worker.py")
    job.wait_for_workers(3)
    assert len(job.agents()) == 3
    job.process.kill()
    job.wait(-signal.SIGKILL)
    job.check_nothing_left()


@needs_ray
def test_resources_are_free_after_the_job(launch, cluster):
    """The next job gets them at once."""
    write_whole(launch.folder / "exit", 0)
    for _ in range(2):
        job = launch(f"--on=ray:{cluster}", '--ray-resources={"node": 1}', "--nnodes=3",
                     "worker.py").wait(0)  # fmt: skip
        assert len(job.workers()) == 3


# --- bad input ------------------------------------------------------------------------------------


def check_refused(job, message, code=111):
    job.wait(code)
    lines = job.err.splitlines()
    assert len(lines) == 1, job.err
    assert re.search(message, lines[0]), job.err
    assert job.out == ""
    job.check_nothing_left()


@needs_ray
def test_an_address_that_does_not_answer(launch):
    port = free_port()
    check_refused(
        launch(f"--on=ray:127.0.0.1:{port}", "--nnodes=2", "worker.py"),
        rf"nothing was started: .*no Ray cluster at 127\.0\.0\.1:{port}: Connection refused",
    )


@needs_ray
def test_missing_resources(launch, cluster):
    check_refused(
        launch(f"--on=ray:{cluster}", "--nnodes=2", "--start-limit=7",
               '--ray-resources={"GPU": 8}', "worker.py"),
        r"nothing was started: .* within 7 s \(--start-limit\): 2 nodes with 1 CPU, 8 GPU each are "
        r"requested; of the 3 nodes of this Ray cluster, 0 have that much, and in all, 3 CPU, "
        r"0 GPU are free$",
    )  # fmt: skip


@needs_ray
def test_a_signal_while_resources_are_missing(launch, cluster):
    job = launch(f"--on=ray:{cluster}", "--nnodes=4", "worker.py")
    wait_until(job.client, lambda: job.err)
    began = time.monotonic()
    job.process.send_signal(signal.SIGINT)
    job.wait(128 + signal.SIGINT)
    assert time.monotonic() - began < LEFT_LIMIT


@needs_ray
def test_a_python_that_is_not_there(launch, cluster):
    check_refused(
        launch(f"--on=ray:{cluster}", "--nnodes=2", "--node-python=/none/python", "worker.py"),
        r"nothing was started.*\(127\): /none/python: No such file or directory",
    )


@needs_ray
def test_a_number_of_nodes_is_needed(launch):
    check_refused(
        launch("--on=ray:host:1", "worker.py"), r"needs a number of nodes \(--nnodes\)", 2
    )


def test_ray_must_be_installed(monkeypatch):
    monkeypatch.setattr("plaunch_engines.ray_engine.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs the package ray.*: install plaunch\[ray\]"):
        RayEngine(EngineRequest(where="host:1", options={"ray_resources": "{}"}))


@pytest.mark.parametrize(
    ("where", "variable", "expected"),
    [
        ("", None, "auto"),
        ("auto", "other:1", "auto"),
        ("", "host:6379", "host:6379"),
        ("10.0.0.1:6379", "host:6379", "10.0.0.1:6379"),
        ("[::1]:6379", None, "[::1]:6379"),
    ],
)
def test_the_address_of_the_cluster(monkeypatch, where, variable, expected):
    if variable is None:
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
    else:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    assert read_address(where) == expected


@pytest.mark.parametrize(
    ("where", "variable", "message"),
    [
        ("local", "", "--on=ray:local: 'local' is not HOST:PORT"),
        ("", "local", "RAY_ADDRESS=local: 'local' is not HOST:PORT"),
        ("host", "", "'host' is not HOST:PORT"),
        ("host:0", "", "'host:0' is not HOST:PORT"),
        ("host:x", "", "'host:x' is not HOST:PORT"),
        ("ray://host:10001", "", "client protocol"),
    ],
)
def test_an_address_that_would_start_a_cluster_is_refused(monkeypatch, where, variable, message):
    monkeypatch.setenv("RAY_ADDRESS", variable)
    with pytest.raises(UsageError, match=message):
        read_address(where)


def test_resources_have_one_cpu_by_default():
    assert read_resources('{"GPU": 8, "disk": 0}') == {"CPU": 1, "GPU": 8}
    assert read_resources('{"CPU": 0, "GPU": 0.5}') == {"GPU": 0.5}


@pytest.mark.parametrize("text", ["8", "GPU=8", '{"GPU": "8"}', '{"GPU": -1}', '{"GPU": true}'])
def test_resources_that_are_invalid(text):
    with pytest.raises(UsageError, match="is not a JSON object, such as"):
        read_resources(text)


def test_resources_that_are_none():
    with pytest.raises(UsageError, match="requests nothing"):
        read_resources('{"CPU": 0}')


# --- the agent as the child of an actor -----------------------------------------------------------


def test_the_environment_of_a_ray_worker_is_cleaned():
    assert clean_environment(
        {
            "RAY_JOB_ID": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONBREAKPOINT": "ray.util.rpdb.set_trace",
            "CUDA_VISIBLE_DEVICES": "",
            "HIP_VISIBLE_DEVICES": "2,3",
            "PATH": "/bin",
        }
    ) == {"HIP_VISIBLE_DEVICES": "2,3", "PATH": "/bin"}


def test_output_is_read_in_bounded_parts_to_its_end():
    agent = AgentActor()
    agent.start_process(
        [sys.executable, "-c", "import sys; print('x' * 200_000); sys.stderr.write(input())"]
    )
    agent.write(b"told\n")
    out, err, code, is_over = b"", b"", None, False
    while not is_over:
        more_out, more_err, code, is_over = agent.read()
        assert len(more_out) <= 32 << 10
        out, err = out + more_out, err + more_err
    assert (out, err, code) == (b"x" * 200_000 + b"\n", b"told", 0)
    agent.write(b"it has ended\n")


def test_an_agent_that_is_stopped():
    agent = AgentActor()
    agent.start_process(["sleep", "600"])
    agent.stop()
    while not (found := agent.read())[3]:
        pass
    assert found[2] == 128 + signal.SIGKILL
