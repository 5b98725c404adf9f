"""Nodes with repeated failures are excluded: real agents, each with its own host name."""

from __future__ import annotations

import signal

import pytest

from helpers.nodes import of, options

HOST_NAMED = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"')


pytestmark = pytest.mark.needs("namespaces")


@pytest.fixture
def start(agents):
    def start(host, *words, name=""):
        name = name or host
        argv = [*words, agents.script, host]
        return agents.launch(argv, name, {"LOGLEVEL": "INFO"}, (*HOST_NAMED, host))

    return start


@pytest.fixture(params=["c10d", "etcd-v2"])
def words(request, endpoint_of):
    return [
        *("--nnodes=2:3", "--nproc-per-node=1", f"--rdzv-backend={request.param}", "--rdzv-id=job"),
        # The round waits for the third node.
        *(f"--rdzv-endpoint={endpoint_of(request.param)}", "--rdzv-conf=last_call_timeout=60"),
        *("--max-restarts=9", "--exclude-node-after=2"),
    ]


def test_the_spare_takes_the_place_of_a_host_that_has_failed_twice(agents, start, words):
    a = start("node-a", *words)
    # With c10d it then hosts the store, and the others may leave.
    agents.until(
        lambda: "hosts the rendezvous store" in a.stderr or "etcd" in words[2], "the store"
    )
    b, c = (start(host, *words) for host in ("node-b", "node-c"))
    first = agents.until_round(0, a, b, c)
    ranks = dict(zip((worker["host"] for worker in first), of("RANK", first), strict=True))
    spare = start("node-d", *words)
    agents.until(lambda: "waits for a place" in spare.stderr, "the spare")
    agents.tell("exit.node-b", 17)
    third = agents.until_round(2, a, c, spare)
    assert {worker["host"]: int(worker["RANK"]) for worker in third} == {
        "node-a": ranks["node-a"],
        "node-c": ranks["node-c"],
        "node-d": ranks["node-b"],
    }
    why = "restart 2 of 9, without node-b: 2 failures have begun there (--exclude-node-after=2)"
    assert b.exit_code() == 115
    assert f"job 'job' has excluded node node-b: {why}" in b.stderr
    assert why in a.stderr

    again = start("node-b", *words, name="again")
    assert again.exit_code() == 115
    assert f"job 'job' has excluded node node-b: {why}" in again.stderr
    assert not again.workers()
    agents.finish(a, c, spare)


def test_an_excluded_host_of_the_store_stays_for_the_others(agents, start, endpoint_of):
    """Without its store they would have to stop."""
    words = [
        *options(endpoint_of("c10d"), "1:2"),
        *("--nproc-per-node=1", "--max-restarts=9", "--exclude-node-after=1"),
    ]
    host = start("node-a", *words)
    agents.until(lambda: "is hosted" in host.stderr or len(host.workers()) == 1, "the host")
    other = start("node-b", *words)
    agents.until(lambda: any(w["WORLD_SIZE"] == "2" for w in other.workers()), "both")
    agents.tell("exit.node-a", 17)
    agents.until(lambda: any(w["WORLD_SIZE"] == "1" for w in other.workers()), "the other alone")
    agents.until(lambda: "this node is excluded and hosts the store" in host.stderr, "its word")
    assert host.process.poll() is None
    agents.finish(other)
    assert host.exit_code() == 115


def test_a_lost_node_may_end_the_job(agents, start, endpoint_of):
    words = [
        *options(endpoint_of("etcd-v2"), "1:2", backend="etcd-v2", conf="keep_alive_interval=0.3"),
        # Another test may have had a job in the same store.
        *("--nproc-per-node=1", "--max-restarts=3,node:0", "--rdzv-id=lost"),
    ]
    a, b = (start(host, *words) for host in ("node-a", "node-b"))
    agents.until_round(0, a, b)
    b.kill()
    assert a.exit_code() == 128 + signal.SIGKILL
    assert "plaunch: node node-b (index " in a.stderr
    assert "pid 0" not in a.stderr
    assert "No restart: none is allowed after node (--max-restarts=node:0)" in a.stderr
