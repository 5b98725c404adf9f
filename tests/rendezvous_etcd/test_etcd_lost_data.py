"""An etcd that loses its data: all nodes of a job detect it, and form one world again."""

from __future__ import annotations

import time

import pytest
from plaunch.rendezvous import ChangeKind
from plaunch_testing.conformance.nodes import eventually, meet

JOB_TTL = 7200


def incarnations(nodes):
    return {node.handler.membership.keys.incarnation for node in nodes}


def are_in_one_world(nodes):
    rounds = [node.current_round for node in nodes]
    return (
        None not in rounds
        and len({one.bootstrap_store_info for one in rounds}) == 1
        and sorted(one.rank for one in rounds) == [0, 1]
        and all((one.world_size, one.attempt) == (2, 0) for one in rounds)
    )


@pytest.fixture
def job(own_etcd_server, make_nodes):
    """Two nodes that rejoin after changes, in one world, and the job's incarnation."""

    def job(min_nodes):
        nodes = [node.follow() for node in make_nodes(own_etcd_server.endpoint, 2, min_nodes)]
        eventually(lambda: are_in_one_world(nodes), "both are in one world")
        (incarnation,) = incarnations(nodes)
        return nodes, incarnation

    return job


def check(nodes, incarnation):
    """Check that both have detected the loss, are in one world, and stay in it."""

    def has_started_again():
        return (
            are_in_one_world(nodes)
            and len(incarnations(nodes)) == 1
            and incarnation not in incarnations(nodes)
        )

    eventually(has_started_again, "both have started again, in one world")
    send_notice(nodes)
    assert has_started_again()


def send_notice(nodes):
    """Write another state of the job."""
    nodes[0].job.send_notice(10)
    eventually(
        lambda: nodes[1].handler.membership.state.event.kind == "notice",
        "the other one has it",
    )


def end_lease_of_the_job(server):
    """Expire the lease of the job's keys, as when all agents were away for `job_ttl`."""
    for lease in server.ask("lease/leases")["leases"]:
        if int(server.ask("lease/timetolive", ID=lease["ID"])["grantedTTL"]) >= JOB_TTL:
            server.ask("lease/revoke", ID=lease["ID"])


@pytest.mark.parametrize("min_nodes", [1, 2])
@pytest.mark.parametrize("seconds", [0.0, 0.3])
def test_a_server_that_comes_back_empty(job, own_etcd_server, min_nodes, seconds):
    nodes, incarnation = job(min_nodes)
    own_etcd_server.forget()
    time.sleep(seconds)  # in which no node may send a request
    own_etcd_server.start()
    check(nodes, incarnation)


@pytest.mark.parametrize("min_nodes", [1, 2])
def test_the_keys_of_the_job_expire_on_a_running_server(job, own_etcd_server, min_nodes):
    nodes, incarnation = job(min_nodes)
    end_lease_of_the_job(own_etcd_server)
    check(nodes, incarnation)


@pytest.mark.parametrize("min_nodes", [1, 2])
def test_an_older_snapshot_is_restored(job, own_etcd_server, min_nodes):
    nodes, incarnation = job(min_nodes)
    saved = own_etcd_server.save()
    send_notice(nodes)
    own_etcd_server.restore(saved)
    own_etcd_server.start()
    check(nodes, incarnation)


def test_all_nodes_get_the_reason(own_etcd_server, make_nodes):
    nodes = make_nodes(own_etcd_server.endpoint, 2)
    meet(*nodes)
    end_lease_of_the_job(own_etcd_server)
    for node in nodes:
        change = node.wait_for(ChangeKind.LOST)
        assert "lost" in change.reason
