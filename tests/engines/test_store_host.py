"""`StoreOffer`: the command hosts the rendezvous store if all nodes reach it."""

from __future__ import annotations

import os
import socket

import pytest
from plaunch_engines.node_network import NodeNetwork
from plaunch_engines.plan import OfferedStore
from plaunch_engines.store_host import MAX_ROUND_TRIP, StoreOffer, find_candidates
from plaunch_engines.store_probe import probe_stores
from plaunch_network import interface_addresses, is_loop_back, parse_rendezvous_endpoint

from helpers.clock import Clock

TOKEN = b"0123456789abcdef"
OWN = [a for a in interface_addresses() if not (is_loop_back(a) or a.startswith("fe80:"))]


class FakeNode:
    """A node that tries to reach what it is asked to, or answers as a test says."""

    def __init__(
        self, index=0, *, address="127.0.0.1", addresses=(), client="", misses="", **answer
    ):
        self.index = index
        self.name = f"node{index}"
        self.address = address
        self.asked = []
        self.answer, self.misses = answer, misses
        self.is_alive = True
        self.network = NodeNetwork()
        self.network.add_hello({"addresses": addresses, "client": client})

    def probe(self, endpoints, token, run_id):
        self.asked.append(endpoints)
        self.network.ask(endpoints)
        if self.answer.get("is_silent"):
            return
        found = probe_stores(endpoints, os.fsdecode(token), run_id, timeout=60.0)
        for one in found:
            error = "no route" if self.misses and self.misses in one.endpoint else one.error
            self.network.add_answer(one._replace(error=error)._replace(**self.answer)._asdict())


@pytest.fixture
def offer():
    """Create an offer."""
    offers = []

    def create(clock=None, **fields):
        request = OfferedStore(**{"token": TOKEN, "run_id": "job", **fields})
        offers.append(StoreOffer(request, clock or Clock()))
        return offers[-1]

    yield create
    for one in offers:
        one.close()


def can_connect(host, port):
    try:
        socket.create_connection((host, port), 5).close()
    except OSError:
        return False
    return True


def test_it_hosts_the_store_that_all_nodes_reach(offer):
    hosting, nodes = offer(), [FakeNode(0), FakeNode(1)]
    assert hosting.is_decided(nodes)
    assert hosting.problem == ""
    [found] = probe_stores([hosting.endpoint], os.fsdecode(TOKEN), "job", timeout=60.0)
    assert found.error == ""
    assert 0 < found.microseconds < MAX_ROUND_TRIP * 1e6


def test_it_listens_at_the_chosen_address_only(offer):
    hosting = offer(address="127.0.0.2")
    assert hosting.is_decided([FakeNode()])
    host, port = parse_rendezvous_endpoint(hosting.endpoint, 0)
    assert host == "127.0.0.2"
    assert can_connect("127.0.0.2", port)
    assert not can_connect("127.0.0.1", port)


def test_other_addresses_are_left_after_the_choice(offer):
    """The second node does not reach the first address, as on another network."""

    if not OWN:
        pytest.skip("this machine has no address beside loopback")
    nodes = [FakeNode(0, client="127.0.0.1", address=OWN[0]), FakeNode(1, misses="127.0.0.1")]
    hosting = offer()
    assert hosting.is_decided(nodes)
    host, port = parse_rendezvous_endpoint(hosting.endpoint, 0)
    assert host == OWN[0]
    assert not can_connect("127.0.0.1", port)


def test_a_node_that_does_not_reach_it_is_named_and_nothing_listens(offer):
    hosting = offer()
    nodes = [FakeNode(0), FakeNode(1, error="no route to host"), FakeNode(2, error="no answer")]
    assert hosting.is_decided(nodes)
    assert hosting.endpoint == ""
    assert hosting.problem == "node1 (and 1 more): no route to host"
    [[endpoint]] = nodes[0].asked
    assert not can_connect(*parse_rendezvous_endpoint(endpoint, 0))


def test_a_slow_node_is_named(offer):
    hosting = offer()
    assert hosting.is_decided([FakeNode(0), FakeNode(1, microseconds=80_000)])
    assert hosting.endpoint == ""
    assert hosting.problem.startswith("a round trip to node1 takes 80 ms, and more than 50 ms")


def test_a_slow_node_does_not_matter_if_the_command_must_host_it(offer):
    hosting = offer(is_required=True)
    assert hosting.is_decided([FakeNode(0), FakeNode(1, microseconds=80_000)])
    assert hosting.endpoint


def test_it_waits_for_an_answer_for_some_seconds(offer):
    clock = Clock()
    hosting, nodes = offer(clock), [FakeNode(0), FakeNode(1, is_silent=True)]
    assert not hosting.is_decided(nodes)
    clock.advance(9.9)
    assert not hosting.is_decided(nodes)
    clock.advance(0.2)
    assert hosting.is_decided(nodes)
    assert hosting.problem == "node1: it has not answered"
    assert [len(node.asked) for node in nodes] == [1, 1]


def test_a_node_that_comes_later_must_reach_it_too(offer):
    hosting = offer()
    assert hosting.is_decided([FakeNode()])
    assert hosting.problem_of(FakeNode(1)) == ""
    assert hosting.problem_of(FakeNode(2, error="no route")) == (
        "node2 cannot join, as this command hosts the store: no route"
    )
    assert hosting.problem_of(FakeNode(3, is_silent=True)) is None


def test_a_node_may_come_later_if_another_one_hosts_the_store(offer):
    hosting = offer()
    assert hosting.is_decided([FakeNode(0, error="no route")])
    late = FakeNode(1)
    assert hosting.problem_of(late) == ""
    assert late.asked == []


def test_the_port_is_one_of_the_range(offer):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        hosting = offer(port_range=(port, port))
        assert hosting.is_decided([FakeNode()])
        assert f"none of the 1 ports from {port} to {port}" in hosting.problem
    hosting = offer(port_range=(port, port))
    assert hosting.is_decided([FakeNode()])
    assert hosting.endpoint == f"127.0.0.1:{port}"


def test_a_reason_that_is_known_before_is_given(offer):
    hosting = offer(problem="the token file cannot be read")
    assert hosting.is_decided([FakeNode()])
    assert hosting.problem == "the token file cannot be read"


def test_the_process_has_a_session_of_its_own_and_ends_with_the_offer(offer):
    hosting = offer()
    assert hosting.is_decided([FakeNode()])
    assert os.getsid(hosting.pid) == hosting.pid
    hosting.close()
    assert not can_connect(*parse_rendezvous_endpoint(hosting.endpoint, 0))
    hosting.close()


# --- candidates -----------------------------------------------------------------------------------


def test_the_users_address_is_the_only_one():
    assert find_candidates([FakeNode(addresses=OWN)], "192.0.2.77") == ["192.0.2.77"]


def test_the_address_that_ssh_has_used_comes_first():
    node = FakeNode(client="127.0.0.3", address="127.0.0.1")
    assert find_candidates([node]) == ["127.0.0.3", "127.0.0.1"]


@pytest.mark.parametrize("client", ["", "198.51.100.7", "UNKNOWN"])
def test_a_client_that_is_not_this_machine_is_not_one(client):
    """Behind network address translation, or with a jump host."""
    assert find_candidates([FakeNode(client=client)]) == ["127.0.0.1"]


def test_nodes_on_loopback_need_no_other_address():
    assert find_candidates([FakeNode(addresses=OWN)]) == ["127.0.0.1"]


def test_a_node_with_a_name_is_found_at_its_addresses():
    assert find_candidates([FakeNode(address="node7", addresses=["127.0.0.9"])]) == ["127.0.0.1"]


def test_a_bridge_that_both_machines_have_is_not_a_route():
    """127.0.0.1 has the part of the bridge, and 127.0.0.9 that of the network."""
    node = FakeNode(address="node7", addresses=["127.0.0.9", OWN[0] if OWN else "127.0.0.1"])
    assert find_candidates([node]) == ["127.0.0.1"]
