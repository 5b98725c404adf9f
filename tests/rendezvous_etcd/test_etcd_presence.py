"""Heartbeats by leases: a running job writes nothing, and only dead nodes are lost."""

from __future__ import annotations

import base64

import pytest
from plaunch.rendezvous import ChangeKind
from plaunch_testing.conformance.nodes import eventually, meet

QUICK = {"keep_alive_interval": 0.25, "keep_alive_max_attempt": 8, "last_call_timeout": 0.1}


@pytest.fixture
def nodes(own_etcd_server, make_nodes):
    """Two nodes that are in a round, on a server of their own."""
    found = make_nodes(own_etcd_server.endpoint, 2, 1, **QUICK)
    meet(*found)
    for node in found:
        beats_pass([node], 3)  # until the heartbeats do not change any more
    return found


def beats_pass(nodes, count):
    """Wait until each node has sent this many further heartbeats."""
    seen = [node.connections.operations["beat"] + count for node in nodes]
    eventually(
        lambda: all(
            n.connections.operations["beat"] >= s for n, s in zip(nodes, seen, strict=True)
        ),
        "heartbeats",
    )


def beats(server):
    """The heartbeats in etcd: for each key its lease and its last revision."""
    everything = base64.b64encode(b"\0").decode()
    answer = server.ask("kv/range", key=everything, range_end=everything)
    keys = {base64.b64decode(kv["key"]).decode(): kv for kv in answer.get("kvs", ())}
    return {k: (kv["lease"], kv["mod_revision"]) for k, kv in keys.items() if "/beat/" in k}


def revision(server):
    key = base64.b64encode(b"none").decode()
    return int(server.ask("kv/range", key=key)["header"]["revision"])


def changes_of(nodes):
    return [change for node in nodes for change in (*node.changes, *node.job.changes())]


def test_a_running_job_adds_nothing_to_etcds_data(nodes, own_etcd_server):
    server = own_etcd_server
    before, there = revision(server), beats(server)
    assert len(there) == 2
    beats_pass(nodes, 20)  # five seconds, more than twice the duration of a lease
    assert revision(server) == before
    assert beats(server) == there
    assert changes_of(nodes) == []


def test_a_revoked_lease_only_makes_a_living_node_suspect(nodes, own_etcd_server):
    server = own_etcd_server
    for _ in range(3):
        before = beats(server)
        for lease, _ in before.values():
            server.ask("lease/revoke", ID=lease)
        eventually(lambda: len(beats(server)) == 2, "there are new ones")
        after = beats(server)
        assert {lease for lease, _ in after.values()}.isdisjoint(
            lease for lease, _ in before.values()
        )
        beats_pass(nodes, 10)  # more than a node may miss
        assert changes_of(nodes) == []


def test_a_heartbeat_that_another_client_deletes_is_written_again(nodes, own_etcd_server):
    server = own_etcd_server
    for key in beats(server):
        server.ask("kv/deleterange", key=base64.b64encode(key.encode()).decode())
    eventually(lambda: len(beats(server)) == 2, "there are new ones")
    beats_pass(nodes, 10)
    assert changes_of(nodes) == []


@pytest.mark.parametrize("victim", [0, 1])
def test_a_dead_node_is_lost_even_the_leader(nodes, victim):
    nodes[victim].kill()
    change = nodes[1 - victim].wait_for(ChangeKind.LOST)
    assert "no heartbeat for" in change.reason
