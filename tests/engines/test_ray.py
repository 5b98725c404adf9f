"""The engine `ray` with a real cluster; test_every_engine.py has more.

Skipped if the package `ray` is not installed.
"""

import os
import re
import signal
import sys
import time
from contextlib import closing

import pytest

from helpers.engine_clusters import RayNodes
from helpers.engine_commands import LEFT_LIMIT, QUICK, check_refused
from helpers.nodes import write_whole
from helpers.ports import free_port
from helpers.processes import is_gone, parent_of
from helpers.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.heavy]


@pytest.fixture(scope="module")
def cluster():
    with closing(RayNodes(4)) as found:
        yield found


@pytest.fixture
def own_cluster():
    with closing(RayNodes(4)) as found:
        yield found


@pytest.fixture
def start(launch, cluster):
    """Start a command in the cluster."""

    def start(*words, of=cluster):
        return launch("--on=ray", *words, by=of.start)

    start.folder = launch.folder
    return start


def losable(job, count):
    """Return a worker whose node does not host Ray's head."""
    workers = job.wait_for_workers(count)
    return next(worker for worker in workers if worker["node"] not in RayNodes.kept)


def client_of(job):
    """Return the process that is connected to Ray."""
    return next(iter(job.find("plaunch_engines.ray_client")), None)


# --- a job ----------------------------------------------------------------------------------------


def test_a_job_on_three_nodes(start):
    write_whole(start.folder / "exit", 0)
    job = start("--nnodes=3", "--nproc-per-node=2", "worker.py").wait(0)
    workers = sorted(job.workers(), key=lambda worker: int(worker["RANK"]))
    assert [worker["RANK"] for worker in workers] == list("012345"), job.out + job.err
    assert {worker["WORLD_SIZE"] for worker in workers} == {"6"}
    assert len({(worker["node"], worker["GROUP_RANK"]) for worker in workers}) == 3
    # Nothing of Ray's is in the output.
    own = ("plaunch: run id", "[node")
    assert all(line.startswith(own) for line in job.err.splitlines()), job.err


def test_lines_of_a_node_stay_in_order(launch, cluster):
    (launch.folder / "lines.py").write_text(
        "import sys\nfor i in range(20000): sys.stdout.write(f'{i}\\n')\n"
    )
    job = launch(f"--on=ray:{cluster.address}", "--nnodes=2", "lines.py").wait(0)
    nodes = {line.split()[0] for line in job.out.splitlines()}
    assert len(nodes) == 2
    for node in nodes:
        lines = [line.split()[1] for line in job.out.splitlines() if line.startswith(node)]
        assert lines == [str(i) for i in range(20000)]


def test_a_failure_is_reported_once_with_its_code(start):
    write_whole(start.folder / "exit.1.0", 7)
    job = start("--nnodes=3", "worker.py").wait(7)
    assert job.err.count("Root Cause") <= 1, job.err
    assert re.search(r"exitcode +: 7|exit code 7", job.err)


def test_agents_have_no_traces_of_ray(start):
    (start.folder / "traces.py").write_text(
        "import os, signal\n"
        "found = [n for n in os.environ if n.startswith('RAY_') or n == 'PYTHONBREAKPOINT']\n"
        "print(found, signal.pthread_sigmask(signal.SIG_BLOCK, ()), flush=True)\n"
    )
    job = start("--nnodes=1", "traces.py").wait(0)
    assert job.out == "[] set()\n"


# --- lost nodes -----------------------------------------------------------------------------------


def test_a_lost_agent_is_replaced(start):
    job = start("--nnodes=3", "--max-restarts=3", QUICK, "worker.py")
    lost = losable(job, 3)
    os.kill(job.agent_of(lost), signal.SIGKILL)
    job.wait_for(f"a node of Ray is started in the place of {lost['node']}")
    workers = job.wait_for_workers(6)
    write_whole(start.folder / "exit", 0)
    job.wait(0)
    assert {w["node"] for w in workers[3:]} == {w["node"] for w in workers[:3]}


def test_an_agent_ends_with_its_actor(start):
    """Ray kills the children of an actor, but not if the actor is killed."""
    job = start("--nnodes=2:3", "--max-restarts=3", QUICK, "worker.py")
    worker = losable(job, 3)
    agent = job.agent_of(worker)
    os.kill(parent_of(agent), signal.SIGKILL)
    began = time.monotonic()
    wait_until(lambda: is_gone(agent) and is_gone(worker["pid"]), lambda: job.err)
    assert time.monotonic() - began < LEFT_LIMIT
    job.wait_for(f"a node of Ray is started in the place of {worker['node']}")
    job.wait_for_workers(6)
    write_whole(start.folder / "exit", 0)
    job.wait(0)


def test_another_node_replaces_a_lost_one(start, own_cluster):
    job = start("--nnodes=3", "--max-restarts=3", QUICK, "worker.py", of=own_cluster)
    lost = losable(job, 3)
    client = client_of(job)
    agent = job.agent_of(lost)
    os.kill(parent_of(parent_of(agent)), signal.SIGKILL)
    began = time.monotonic()
    wait_until(lambda: is_gone(agent) and is_gone(lost["pid"]), lambda: job.err)
    assert time.monotonic() - began < LEFT_LIMIT
    workers = job.wait_for_workers(6)
    assert {worker["node"] for worker in workers} == {"node1", "node2", "node3", "node4"}
    assert lost["node"] not in {worker["node"] for worker in workers[3:]}
    assert client_of(job) == client
    write_whole(start.folder / "exit", 0)
    job.wait(0)


RESERVE = """
import os
import ray
from plaunch_engines.ray_cluster import RayCluster

cluster = RayCluster(os.environ["RAY_ADDRESS"], {"CPU": 1})
cluster.connect()

def run(*agents):
    bundles = cluster.reserve(agents)
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


def test_an_excluded_node_gets_no_other_agent(cluster):
    assert cluster.run(sys.executable, "-c", RESERVE) == "done\n"


def test_the_lost_connection_to_ray_ends_the_job(start):
    job = start("--nnodes=3", "worker.py")
    job.wait_for_workers(3)
    os.kill(client_of(job), signal.SIGKILL)
    job.wait(111)
    assert "the connection to Ray is lost (-9)" in job.err
    job.check_nothing_left()


# --- ends -----------------------------------------------------------------------------------------


def test_signals_that_kill(start):
    (start.folder / "stubborn.py").write_text(
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        'signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(\'{"RANK": "0"}\', flush=True)\n'
        "while True: signal.pause()\n"
    )
    job = start("--nnodes=2", "stubborn.py")
    job.wait_for_workers(2)
    for _ in range(3):
        job.signal(signal.SIGINT)
        time.sleep(0.1)  # signals that come at once are merged
    job.wait(128 + signal.SIGINT)
    assert "the agents are killed" in job.err


def test_resources_are_free_after_the_job(start):
    """The next job gets them at once."""
    write_whole(start.folder / "exit", 0)
    for _ in range(2):
        job = start('--ray-resources={"node": 1}', "--nnodes=3", "worker.py").wait(0)
        assert len(job.workers()) == 3


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("cluster")
def test_an_address_that_does_not_answer(launch):
    port = free_port()
    check_refused(
        launch(f"--on=ray:127.0.0.1:{port}", "--nnodes=2", "worker.py"),
        rf"nothing was started: .*no Ray cluster at 127\.0\.0\.1:{port}: Connection refused",
    )


def test_missing_resources(start):
    check_refused(
        start("--nnodes=2", "--start-limit=20", '--ray-resources={"GPU": 8}', "worker.py"),
        r"nothing was started: .* within 20 s \(--start-limit\): 2 nodes with 1 CPU, 8 GPU each "
        r"are requested; of the 4 nodes of this Ray cluster, 0 have that much, and in all, 4 CPU, "
        r"0 GPU are free$",
    )


def test_too_few_nodes_are_said_soon(start):
    """Not only that the cluster has not answered yet."""
    check_refused(
        start("--nnodes=6", "--start-limit=30", "worker.py"),
        r"nothing was started: .*: 6 nodes with 1 CPU each are requested; of the 4 nodes of this "
        r"Ray cluster, 4 have that much",
    )


def test_excluded_nodes_are_not_used(start):
    write_whole(start.folder / "exit", 0)
    job = start("--nnodes=2", "--exclude=node[1,3]", "worker.py").wait(0)
    assert {worker["node"] for worker in job.workers()} == {"node2", "node4"}


def test_a_signal_while_resources_are_missing(start):
    job = start("--nnodes=5", "worker.py")
    wait_until(lambda: client_of(job), lambda: job.err)
    began = time.monotonic()
    job.signal(signal.SIGINT)
    job.wait(128 + signal.SIGINT)
    assert time.monotonic() - began < LEFT_LIMIT


def test_a_python_that_is_not_there(start):
    check_refused(
        start("--nnodes=2", "--node-python=/none/python", "worker.py"),
        r"nothing was started.*\(127\): (.*; )?/none/python: No such file or directory",
    )


@pytest.mark.usefixtures("cluster")
def test_a_number_of_nodes_is_needed(launch):
    check_refused(
        launch("--on=ray:host:1", "worker.py"), r"needs a number of nodes \(--nnodes\)", 2
    )
