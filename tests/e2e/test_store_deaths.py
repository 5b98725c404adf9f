"""The process of the store is killed, in each phase of a job; its host starts another one."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest
from plaunch.errors import RendezvousConnectionError
from plaunch.process import children_by_parent, read_table
from plaunch_job_store.authentication import Authenticator
from plaunch_job_store.client import StoreClient
from plaunch_job_store.store import JobStore
from plaunch_membership.keys import Keys, entry, job_key
from plaunch_membership.records import RecordCodec

from helpers.nodes import of, options

pytestmark = pytest.mark.slow


@pytest.fixture
def endpoint(endpoint_of):
    return endpoint_of("c10d")


def store_of(host):
    """The process of the store that an agent hosts; None while it has none."""
    for pid in children_by_parent(read_table()).get(host.process.pid, ()):
        try:
            if b"run_server" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        except OSError:
            continue
    return None


def kill_store(agents, host):
    """Kill the process of the store, and wait for its successor."""
    agents.until(lambda: store_of(host) is not None, "there is a store")
    pid = store_of(host)
    os.kill(pid, signal.SIGKILL)
    agents.until(lambda: store_of(host) not in (None, pid), "there is another store")


def has_record(endpoint, log, ticket=1):
    """Whether a log of the job has a record, which is read in the store; False without a store."""
    host, _, port = endpoint.rpartition(":")
    try:
        client = StoreClient(
            lambda timeout: socket.create_connection((host, int(port)), timeout),
            Authenticator(None, "job"),
            endpoint,
            30.0,
        )
    except RendezvousConnectionError:
        return False
    try:
        (job,) = JobStore(client).multi_get([job_key("job")])
        if job is None:
            return False
        name = RecordCodec("job", None).decode(job_key("job"), job).text("incarnation")
        key = entry(log(Keys("job", name)), ticket)
        return JobStore(client).multi_get([key]) != [None]
    finally:
        client.close()


def start_two(agents, endpoint, *more, nnodes="2", conf=""):
    """Start two agents; the first one hosts the store."""
    host = agents.start(*options(endpoint, nnodes, *more, conf=f"is_host=true{conf}"), name="host")
    other = agents.start(
        *options(endpoint, nnodes, *more, conf=f"is_host=false{conf}"), name="other"
    )
    return host, other


def rounds(*agents):
    return sorted({int(worker["PLAUNCH_ROUND"]) for agent in agents for worker in agent.workers()})


def until_together(agents, *nodes, after=-1):
    """Wait until all workers of the last round run, one on each node; return them."""

    def last():
        found = rounds(*nodes)[-1:]
        workers = [w for node in nodes for w in node.workers(found[0])] if found else []
        sizes = {int(worker["WORLD_SIZE"]) for worker in workers}
        is_complete = len(workers) == len(nodes) and sizes == {len(nodes)}
        return workers if is_complete and found[0] > after else None

    found = []

    def are_together():
        found[:] = last() or []
        return bool(found)

    agents.until(are_together, f"a round of {len(nodes)} nodes after {after}")
    return sorted(found, key=lambda worker: int(worker["RANK"]))


@pytest.mark.parametrize("nnodes", ["2", "1:2", "1:3"])
def test_while_workers_run(agents, endpoint, nnodes):
    """One restart, without an attempt; the nodes bring back how many were used."""
    nodes = host, other = start_two(agents, endpoint, "--max-restarts=3", nnodes=nnodes)
    (first, _) = until_together(agents, *nodes)
    agents.tell(f"exit.{first['RANK']}.0", 3)
    before = int(first["PLAUNCH_ROUND"])
    workers = until_together(agents, *nodes, after=before)
    assert of("TORCHELASTIC_RESTART_COUNT", workers) == [1, 1]
    kill_store(agents, host)
    workers = until_together(agents, *nodes, after=before + 1)
    assert of("TORCHELASTIC_RESTART_COUNT", workers) == [1, 1]
    assert of("PLAUNCH_ROUND", workers) == [before + 2, before + 2]
    agents.finish(host, other)
    assert rounds(host, other)[-1] == before + 2  # no other restart
    assert "its successor has started" in host.stderr


def test_before_the_first_round(agents, endpoint):
    host = agents.start(*options(endpoint, 2, conf="is_host=true"), name="host")
    kill_store(agents, host)
    other = agents.start(*options(endpoint, 2, conf="is_host=false"), name="other")
    until_together(agents, host, other)
    agents.finish(host, other)
    assert rounds(host, other) == [0]


def test_a_node_that_has_succeeded_runs_again(agents, endpoint):
    """In the last seconds: nobody else knows what it has reported."""
    nodes = host, _ = start_two(agents, endpoint)
    until_together(agents, *nodes)
    agents.tell("exit.other", 0)
    agents.until(lambda: has_record(endpoint, lambda keys: keys.done(0)), "it has reported that")
    kill_store(agents, host)
    agents.tell("exit.host", 0)
    assert [node.exit_code() for node in nodes] == [0, 0]


def test_after_the_verdict(agents, endpoint):
    """A node that was suspended at the end learns how the job has ended."""
    nodes = host, other = start_two(agents, endpoint, conf=",keep_alive_interval=0.25")
    until_together(agents, *nodes)
    agents.tell("exit.other", 0)
    agents.until(lambda: has_record(endpoint, lambda keys: keys.done(0)), "it has reported that")
    other.process.send_signal(signal.SIGSTOP)
    agents.tell("exit.host", 0)
    agents.until(lambda: "how the job ended" in host.stderr, "the host waits for the other one")
    kill_store(agents, host)
    other.process.send_signal(signal.SIGCONT)
    assert [node.exit_code() for node in nodes] == [0, 0]
    assert rounds(*nodes) == [0]


@pytest.mark.parametrize("phase", ["waiting", "running"])
def test_one_that_keeps_dying_ends_all_nodes(agents, endpoint, phase):
    nodes = host, _ = start_two(
        agents, endpoint, nnodes="2" if phase == "running" else "3", conf=",refused_timeout=1"
    )

    last = -1
    for deaths in range(3):
        if deaths:
            kill_store(agents, host)
        if phase == "running":
            (worker, _) = until_together(agents, *nodes, after=last)
            last = int(worker["PLAUNCH_ROUND"])
        else:
            agents.until(lambda: has_record(endpoint, lambda keys: keys.joined(0), 2), "both wait")
    pid = store_of(host)
    os.kill(pid, signal.SIGKILL)
    assert [node.exit_code() for node in nodes] == [113, 113]
    assert f"(pid {pid}), which this node hosts, has ended" in host.stderr
    assert "is not replaced again" in host.stderr
    for node in nodes:
        assert "Traceback" not in node.stderr
