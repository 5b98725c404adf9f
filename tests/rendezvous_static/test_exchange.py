"""Nodes with given ranks that exchange their numbers of workers, over real sockets."""

from __future__ import annotations

import concurrent.futures
import contextlib
import socket
import time

import pytest
from plaunch.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
)
from plaunch.rendezvous import JobSettings, NodeSettings, RendezvousParameters, WorldRanks
from plaunch_rendezvous_static import create_static_handler
from plaunch_rendezvous_static.exchange import ExchangeBounds
from plaunch_rendezvous_static.handler import StaticRendezvous

from helpers.ports import free_port
from helpers.waiting import wait_until

STORE_CLIENT = b"\0" + (0x3C85F7CE).to_bytes(4, "little") + b"\0\0\0\0"


@pytest.fixture
def pool():
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        yield pool


@pytest.fixture
def nodes(pool, monkeypatch):
    """Start nodes of one job; each returns a future of its round."""
    monkeypatch.delenv("TORCH_ELASTIC_WORKER_IDENTICAL", raising=False)
    nodes = Nodes(pool)
    yield nodes
    nodes.close()


class Nodes:
    def __init__(self, pool):
        self.port = free_port()
        self.handlers = []
        self.pool = pool

    def create(self, rank, workers=1, role="trainer", count=2, run_id="job", bounds=None, **config):
        if bounds is None:
            endpoint = f"127.0.0.1:{self.port}"
            config = {"rank": rank, "join_timeout": 30, **config}
            handler = create_static_handler(
                RendezvousParameters("static", endpoint, run_id, count, count, **config)
            )
        else:
            where = "127.0.0.1", self.port
            handler = StaticRendezvous(run_id, *where, rank, count, 30.0, bounds=bounds)
        handler.prepare(NodeSettings(role, workers, 0, 0.0))
        self.handlers.append(handler)
        return handler

    def start(self, *words, **options):
        return self.pool.submit(self.create(*words, **options).next_rendezvous)

    def reach(self):
        """Connect to node 0, once it listens."""
        connected = []

        def connect():
            with contextlib.suppress(ConnectionRefusedError):
                connected.append(socket.create_connection(("127.0.0.1", self.port)))
            return connected

        wait_until(connect, "node 0 listens")
        connected[0].settimeout(10)
        return connected[0]

    def close(self):
        for handler in self.handlers:
            handler.shutdown()


def test_different_nodes_learn_their_ranks_in_any_order_of_arrival(nodes):
    third = nodes.start(2, 3, "reader", 3)
    first = nodes.start(0, 2, "trainer", 3)
    second = nodes.start(1, 1, "trainer", 3)
    assert [node.result(20).ranks for node in (first, second, third)] == [
        WorldRanks(0, 6, 0, 3),
        WorldRanks(2, 6, 2, 3),
        WorldRanks(3, 6, 0, 3),
    ]


def test_the_port_is_free_afterwards_even_without_reuse(nodes):
    first, second = nodes.start(0), nodes.start(1)
    first.result(20), second.result(20)
    nodes.close()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", nodes.port))


def test_they_exchange_introductions_once(nodes):
    first, second = nodes.create(0, 1), nodes.create(1, 2)
    nodes.pool.submit(first.next_rendezvous)
    assert second.next_rendezvous().ranks == WorldRanks(1, 3, 1, 3)
    assert second.next_rendezvous().ranks == WorldRanks(1, 3, 1, 3)  # its own restart


def test_identical_nodes_do_not_wait(nodes, monkeypatch):
    monkeypatch.setenv("TORCH_ELASTIC_WORKER_IDENTICAL", "1")
    for rank in range(2):
        assert nodes.create(rank, 2).next_rendezvous().ranks is None


def test_waiting_nodes_name_the_missing_ones(nodes):
    first = nodes.start(0, count=4, join_timeout=1)
    third = nodes.start(2, count=4)
    for node in (first, third):
        with pytest.raises(RendezvousTimeoutError, match=r"within 1 s .*missing: index 1, 3"):
            node.result(20)


@pytest.mark.parametrize("option", ["join_timeout", "timeout"])
def test_a_missing_node_0_is_named(nodes, option):
    node = nodes.create(1, **{"join_timeout": None, option: 0.3})
    with pytest.raises(RendezvousTimeoutError, match=r"127.0.0.1:\d+ has not answered within 0.3"):
        node.next_rendezvous()


def test_the_start_timeout_limits_the_wait():
    where, job = f"127.0.0.1:{free_port()}", JobSettings(start_timeout=0.2)
    handler = create_static_handler(
        RendezvousParameters("static", where, "job", 2, 2, job=job, rank=1)
    )
    handler.prepare(NodeSettings("trainer", 1, 0, 0.0))
    with pytest.raises(RendezvousTimeoutError, match=r"within 0\.2 s"):
        handler.next_rendezvous()


def test_the_wait_is_described_and_ends_with_the_handler(nodes):
    first, second = nodes.create(0, count=3), nodes.create(2, count=3)
    waits = [nodes.pool.submit(handler.next_rendezvous) for handler in (first, second)]
    wait_until(lambda: first.describe_wait() == "3 nodes; missing: index 1", first.describe_wait)
    wait_until(
        lambda: second.describe_wait().endswith(": it waits for other nodes"), second.describe_wait
    )
    nodes.close()
    for wait in waits:
        with pytest.raises(RendezvousClosedError, match="stopped waiting"):
            wait.result(20)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"run_id": "other"}, r"belongs to job 'other', and node 0 to 'job' \(--rdzv-id\)"),
        ({"count": 3}, r"is of 3 nodes, and node 0 of 2 \(--nnodes\)"),
    ],
)
def test_a_node_of_another_job_is_rejected_and_the_others_continue(nodes, wrong, message):
    first = nodes.start(0)
    with pytest.raises(RendezvousClosedError, match=message):
        nodes.start(1, **wrong).result(20)
    nodes.start(1).result(20)
    first.result(20)


def test_a_duplicate_rank_is_rejected_until_the_first_node_has_exited(nodes):
    first, early = nodes.create(0, count=3), nodes.create(1, count=3)
    met, left = (nodes.pool.submit(handler.next_rendezvous) for handler in (first, early))
    wait_until(lambda: first.describe_wait().endswith("index 2"), first.describe_wait)
    with pytest.raises(RendezvousClosedError, match=r"rank 1 .*is a duplicate: .* the same rank"):
        nodes.start(1, count=3).result(20)
    early.shutdown()
    assert left.exception(20) is not None
    wait_until(lambda: first.describe_wait().endswith("index 1, 2"), first.describe_wait)
    nodes.start(1, 5, count=3), nodes.start(2, count=3)
    assert met.result(20).ranks == WorldRanks(0, 7, 0, 7)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"{}\n",
        b'{"run_id": 1, "role": "", "host": "", "nodes": 2, "rank": 1, "local_world_size": 0}\n',
        b'{"run_id": 1, "role": "", "host": "", "nodes": 2, "rank": Infinity}\n',
        b'{"run_id": ' + b"[" * 8000 + b"\n",
        b"{" + b"x" * 20_000,
        b"[]\n",
    ],
)
def test_unknown_clients_are_disconnected(nodes, said):
    first = nodes.start(0)
    with nodes.reach() as silent, nodes.reach() as stranger:
        stranger.sendall(said)
        with contextlib.suppress(ConnectionError):
            assert stranger.recv(100) == b""
        nodes.start(1).result(20)
        first.result(20)
        assert silent.recv(100) == b""


def test_many_unknown_clients_do_not_block_a_node(nodes):
    first = nodes.start(0, bounds=ExchangeBounds(max_unknown=4))
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            with contextlib.suppress(ConnectionError):
                stack.enter_context(nodes.reach()).sendall(b"{")
        assert nodes.start(1).result(20).ranks == WorldRanks(1, 2, 1, 2)
    first.result(20)


@pytest.mark.parametrize("answer", [b"\n[1]\n", b'\n{"ranks": {"first": 1}}\n', b"SSH-2.0\n"])
def test_another_program_that_answers_is_not_node_0(nodes, answer):
    with socket.create_server(("127.0.0.1", nodes.port)) as server:
        node = nodes.start(1)
        with server.accept()[0] as connection:
            connection.sendall(answer)
            with pytest.raises(RendezvousConnectionError, match="not answered with ranks"):
                node.result(20)


def test_a_restarted_node_0_assumes_identical_nodes(nodes, caplog):
    """Workers of other nodes look for their store, so no other node will connect."""
    first = nodes.start(0, 2, bounds=ExchangeBounds(running_wait=0.2))
    with nodes.reach() as client:
        client.sendall(STORE_CLIENT)
        assert first.result(20).ranks is None
    assert "as many workers as this one (2)" in caplog.text


def test_a_restarted_node_assumes_identical_nodes(nodes, caplog):
    """At node 0's address is the workers' store, which does not answer introductions."""
    bounds = ExchangeBounds(accept_timeout=0.1, running_wait=0.2)
    with socket.create_server(("127.0.0.1", nodes.port)):
        assert nodes.start(1, 2, bounds=bounds).result(20).ranks is None
    assert "as many workers as this one (2)" in caplog.text


def test_a_connected_launcher_shows_that_no_workers_run(nodes):
    """Even if other clients have looked for a store before."""
    first = nodes.create(0, 1, count=3, bounds=ExchangeBounds(running_wait=0.3))
    second = nodes.create(1, 2, count=3)
    met = [nodes.pool.submit(first.next_rendezvous)]
    with nodes.reach() as client:
        client.sendall(STORE_CLIENT)
        assert client.recv(100) == b""
    met.append(nodes.pool.submit(second.next_rendezvous))
    wait_until(lambda: first.describe_wait().endswith("index 2"), first.describe_wait)
    time.sleep(0.5)
    met.append(nodes.start(2, 3, count=3))
    assert [node.result(20).ranks.first_global for node in met] == [0, 1, 3]


def test_a_proxy_in_front_of_a_late_node_0_is_not_a_store(nodes):
    """It closes connections for a while."""
    with socket.create_server(("127.0.0.1", nodes.port)) as proxy:
        second = nodes.start(1, 2, bounds=ExchangeBounds(longest_pause=0.05))
        for _ in range(3):
            proxy.accept()[0].close()
    time.sleep(0.1)
    first = nodes.start(0, 1)
    assert second.result(20).ranks == WorldRanks(1, 3, 1, 3)
    first.result(20)


def test_a_port_that_was_taken_meanwhile(nodes):
    handler = nodes.create(0)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", nodes.port))
        sock.listen()
        with pytest.raises(RendezvousConnectionError, match="cannot listen for the other nodes"):
            handler.next_rendezvous()
