"""Outages of etcd: no living node is lost, and no written record is."""

from __future__ import annotations

import time

import pytest
from plaunch.errors import RendezvousConnectionError
from plaunch.rendezvous import ChangeKind
from plaunch_rendezvous_etcd.client import EtcdBounds
from plaunch_testing.conformance.nodes import BOUND, eventually, meet

from helpers.calls import Call, at_once


@pytest.fixture
def job(make_nodes):
    """Nodes that are in a round."""

    def job(endpoint, count, **config):
        nodes = make_nodes(endpoint, count, **config)
        meet(*nodes)
        return nodes

    return job


def assert_all_is_well(nodes):
    """Check that no node was lost, and that all nodes receive a notice."""
    time.sleep(4)  # long enough to lose a node: eight intervals
    for node in nodes:
        node.changes += node.job.changes()
        assert node.changes == []
    nodes[0].job.send_notice(10)
    for node in nodes[1:]:
        assert node.wait_for(ChangeKind.NOTICE).signum == 10
        assert node.changes == []


# --- connections ----------------------------------------------------------------------------------


def test_a_dead_server_is_detected_at_once_and_a_restarted_one_found(prepare, own_etcd_server):
    server = own_etcd_server
    backend = prepare(server.endpoint)
    store = backend.connect()
    store.set("key", b"x")
    store.beat("sign", b"x")
    assert store.add("n", 1) == 1
    server.kill()
    for operation in (
        lambda: store.set("key", b"y"),
        lambda: store.add("n", 1),
        lambda: store.multi_get(["key"]),
        lambda: store.beat("sign", b"y"),
        lambda: store.wait("never", 60),
        backend.connect,
    ):
        began = time.monotonic()
        with pytest.raises(RendezvousConnectionError):
            operation()
        assert time.monotonic() - began < 5
    server.start()
    again = backend.connect()
    assert again.multi_get(["key", "sign"]) == [b"x", b"x"]
    assert again.add("n", 1) == 2


def test_a_wait_continues_after_a_restart(open_session, own_etcd_server):
    server = own_etcd_server
    backend = open_session(server.endpoint, bounds=EtcdBounds(stream=BOUND))
    calls = [Call(backend.connect().wait, f"key/{n}", BOUND) for n in range(3)]
    assert not any(call.ended(0.2) for call in calls)
    for _ in range(2):
        server.kill()
        assert not any(call.ended(0.5) for call in calls)
        server.start()
    # One is written by another client, which reconnects before the stream does.
    other = open_session(server.endpoint).connect()
    other.multi_set({f"key/{n}": b"%d" % n for n in range(3)})
    assert all(call.ended() for call in calls)
    assert [call.result for call in calls] == [b"0", b"1", b"2"]


def test_a_wait_ends_if_the_server_stays_away(open_session, own_etcd_server):
    backend = open_session(own_etcd_server.endpoint, bounds=EtcdBounds(stream=1.0))
    call = Call(backend.connect().wait, "key", 10 * BOUND)
    assert not call.ended(0.2)
    own_etcd_server.kill()
    assert call.ended()
    assert isinstance(call.error, RendezvousConnectionError)
    assert own_etcd_server.endpoint in str(call.error)


def test_nothing_spins_while_the_server_is_away(open_session, own_etcd_server):
    backend = open_session(own_etcd_server.endpoint, bounds=EtcdBounds(stream=BOUND))
    calls = [Call(backend.connect().wait, "key", BOUND) for _ in range(3)]
    assert not calls[0].ended(0.2)
    own_etcd_server.kill()
    began, used = time.monotonic(), time.process_time()
    assert not calls[0].ended(3)
    share = (time.process_time() - used) / (time.monotonic() - began)
    assert share < 0.2


def test_a_suspended_server_blocks_no_client(open_session, own_etcd_server):
    bounds = EtcdBounds(connect=2.0, answer=2.0)
    backend = open_session(own_etcd_server.endpoint, bounds=bounds, read_timeout=0.5)
    backend.connect()
    link = backend.link()
    own_etcd_server.pause()
    began = time.monotonic()
    for _ in range(4):
        with pytest.raises(RendezvousConnectionError):
            backend.connect().set("key", b"x")
    assert time.monotonic() - began < 15
    own_etcd_server.resume()
    eventually(lambda: _reads(backend, "never") is None, "it answers")
    backend.connect().set("key", b"x")
    assert backend.link() is not link


def test_a_late_answer_does_not_close_the_connection(open_session, own_etcd_server):
    backend = open_session(own_etcd_server.endpoint, read_timeout=0.5)
    store = backend.connect()
    link = backend.link()
    own_etcd_server.pause()
    with pytest.raises(RendezvousConnectionError, match="DEADLINE_EXCEEDED"):
        store.set("key", b"x")
    own_etcd_server.resume()
    store.set("key", b"x")
    assert backend.link() is link
    assert backend.call_timeout > 0.5
    for _ in range(10):
        store.set("key", b"x")
    assert backend.call_timeout == 0.5


def test_a_suspended_member_is_replaced_by_another(prepare, etcd_cluster):
    backend = prepare(etcd_cluster.endpoint, read_timeout=1.0)
    store = backend.connect()
    store.set("key", b"x")
    for member in etcd_cluster.members:
        member.pause()
        try:
            # It may be the leader, this client's member, both or neither.
            eventually(lambda: _reads(backend, "key") == b"x", "another one answers")
        finally:
            member.resume()
        etcd_cluster.leader()


def _reads(backend, key):
    try:
        return backend.connect().multi_get([key])[0]
    except RendezvousConnectionError:
        return None


# --- jobs -----------------------------------------------------------------------------------------


def test_a_job_survives_a_restart(own_etcd_server, job):
    nodes = job(own_etcd_server.endpoint, 3)
    own_etcd_server.kill()
    time.sleep(3)  # longer than a node may be silent
    own_etcd_server.start()
    assert_all_is_well(nodes)


def test_a_job_survives_a_suspension_that_expires_all_leases(own_etcd_server, job):
    nodes = job(own_etcd_server.endpoint, 3)
    own_etcd_server.pause()
    time.sleep(5)
    own_etcd_server.resume()
    assert_all_is_well(nodes)


def test_a_job_survives_the_loss_of_the_leader(etcd_cluster, job):
    nodes = job(etcd_cluster.endpoint, 3)
    leader = etcd_cluster.leader()
    leader.kill()
    etcd_cluster.leader()
    assert_all_is_well(nodes)
    leader.start()
    etcd_cluster.leader().pause()
    assert_all_is_well(nodes)


@pytest.mark.parametrize(
    "seconds", [5, pytest.param(60, marks=(pytest.mark.exhaustive, pytest.mark.timeout(240)))]
)
def test_a_job_survives_the_loss_of_the_quorum(etcd_cluster, job, seconds):
    nodes = job(etcd_cluster.endpoint, 3, unreachable_timeout=120)
    for member in etcd_cluster.members[:2]:
        member.kill()
    time.sleep(seconds)
    at_once(*(member.start for member in etcd_cluster.members[:2]))
    etcd_cluster.leader()
    assert_all_is_well(nodes)


def test_the_job_is_notified_of_an_outage_beyond_the_timeout(own_etcd_server, job):
    nodes = job(own_etcd_server.endpoint, 2, unreachable_timeout=2)
    own_etcd_server.kill()
    for node in nodes:
        change = node.wait_for(ChangeKind.UNREACHABLE)
        assert "unreachable_timeout=2" in change.reason
        assert own_etcd_server.endpoint in change.reason


def test_a_dead_node_is_still_lost_after_an_outage(own_etcd_server, job):
    nodes = job(own_etcd_server.endpoint, 3)
    own_etcd_server.kill()
    nodes[2].kill()
    time.sleep(1)
    own_etcd_server.start()
    for node in nodes[:2]:
        node.wait_for(ChangeKind.LOST)
