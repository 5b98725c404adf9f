"""Nodes with given ranks that tell each other what they run, over real sockets."""

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
from plaunch_rendezvous_static import create_static_handler, meeting

from helpers.ports import free_port
from helpers.waiting import wait_until

STORE_CLIENT = b"\0" + (0x3C85F7CE).to_bytes(4, "little") + b"\0\0\0\0"


@pytest.fixture
def pool():
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        yield pool


@pytest.fixture
def nodes(pool, monkeypatch):
    """Starts nodes of one job; each gives a future of its round."""
    monkeypatch.delenv("TORCH_ELASTIC_WORKER_IDENTICAL", raising=False)
    nodes = Nodes(pool)
    yield nodes
    nodes.close()


class Nodes:
    def __init__(self, pool):
        self.port = free_port()
        self.handlers = []
        self._pool = pool

    def create(self, rank, workers=1, role="trainer", count=2, run_id="job", **config):
        endpoint = f"127.0.0.1:{self.port}"
        config = {"rank": rank, "join_timeout": 30, **config}
        handler = create_static_handler(
            RendezvousParameters("static", endpoint, run_id, count, count, **config)
        )
        handler.prepare(NodeSettings(role, workers, 0, 0.0))
        self.handlers.append(handler)
        return handler

    def start(self, *words, **options):
        return self._pool.submit(self.create(*words, **options).next_rendezvous)

    def reach(self):
        """A connection to node 0, once it listens."""
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


def test_unlike_nodes_learn_their_ranks_whoever_comes_first(nodes):
    third = nodes.start(2, 3, "reader", 3)
    first = nodes.start(0, 2, "trainer", 3)
    second = nodes.start(1, 1, "trainer", 3)
    assert [node.result(20).ranks for node in (first, second, third)] == [
        WorldRanks(0, 6, 0, 3),
        WorldRanks(2, 6, 2, 3),
        WorldRanks(3, 6, 0, 3),
    ]


def test_the_port_is_free_afterwards_also_for_those_who_do_not_share_it(nodes):
    first, second = nodes.start(0), nodes.start(1)
    first.result(20), second.result(20)
    nodes.close()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", nodes.port))


def test_they_meet_once(nodes):
    first, second = nodes.create(0, 1), nodes.create(1, 2)
    nodes._pool.submit(first.next_rendezvous)
    assert second.next_rendezvous().ranks == WorldRanks(1, 3, 1, 3)
    assert second.next_rendezvous().ranks == WorldRanks(1, 3, 1, 3)  # a restart of its own


def test_nobody_waits_where_nodes_are_promised_to_be_alike(nodes, monkeypatch):
    monkeypatch.setenv("TORCH_ELASTIC_WORKER_IDENTICAL", "1")
    for rank in range(2):
        assert nodes.create(rank, 2).next_rendezvous().ranks is None


def test_who_does_not_come_is_named_to_those_who_wait(nodes):
    first = nodes.start(0, count=4, join_timeout=1)
    third = nodes.start(2, count=4)
    for node in (first, third):
        with pytest.raises(RendezvousTimeoutError, match=r"within 1 s .*missing: index 1, 3"):
            node.result(20)


@pytest.mark.parametrize("option", ["join_timeout", "timeout"])
def test_a_node_0_that_does_not_come_is_named(nodes, option):
    node = nodes.create(1, **{"join_timeout": None, option: 0.3})
    with pytest.raises(RendezvousTimeoutError, match=r"127.0.0.1:\d+ has not answered within 0.3"):
        node.next_rendezvous()


def test_the_time_to_start_limits_the_wait():
    where, job = f"127.0.0.1:{free_port()}", JobSettings(start_timeout=0.2)
    handler = create_static_handler(
        RendezvousParameters("static", where, "job", 2, 2, job=job, rank=1)
    )
    handler.prepare(NodeSettings("trainer", 1, 0, 0.0))
    with pytest.raises(RendezvousTimeoutError, match=r"within 0\.2 s"):
        handler.next_rendezvous()


def test_the_wait_is_described_and_ends_with_the_handler(nodes):
    first, second = nodes.create(0, count=3), nodes.create(2, count=3)
    waits = [nodes._pool.submit(handler.next_rendezvous) for handler in (first, second)]
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
def test_a_node_of_another_job_is_refused_and_the_others_go_on(nodes, wrong, message):
    first = nodes.start(0)
    with pytest.raises(RendezvousClosedError, match=message):
        nodes.start(1, **wrong).result(20)
    nodes.start(1).result(20)
    first.result(20)


def test_a_rank_that_somebody_has_is_refused_until_that_one_has_gone(nodes):
    first, early = nodes.create(0, count=3), nodes.create(1, count=3)
    met, left = (nodes._pool.submit(handler.next_rendezvous) for handler in (first, early))
    wait_until(lambda: first.describe_wait().endswith("index 2"), first.describe_wait)
    with pytest.raises(RendezvousClosedError, match=r"rank 1 .*is one too many: .* the same rank"):
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
def test_strangers_are_sent_away(nodes, said):
    first = nodes.start(0)
    with nodes.reach() as silent, nodes.reach() as stranger:
        stranger.sendall(said)
        with contextlib.suppress(ConnectionError):
            assert stranger.recv(100) == b""
        nodes.start(1).result(20)
        first.result(20)
        assert silent.recv(100) == b""


def test_many_strangers_do_not_keep_a_node_out(nodes, monkeypatch):
    monkeypatch.setattr(meeting, "_MOST_STRANGERS", 4)
    first = nodes.start(0)
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            with contextlib.suppress(ConnectionError):
                stack.enter_context(nodes.reach()).sendall(b"{")
        assert nodes.start(1).result(20).ranks == WorldRanks(1, 2, 1, 2)
    first.result(20)


@pytest.mark.parametrize("answer", [b"\n[1]\n", b'\n{"ranks": {"first": 1}}\n', b"SSH-2.0\n"])
def test_something_else_that_answers_is_no_node_0(nodes, answer):
    with socket.create_server(("127.0.0.1", nodes.port)) as server:
        node = nodes.start(1)
        with server.accept()[0] as connection:
            connection.sendall(answer)
            with pytest.raises(RendezvousConnectionError, match="not its ranks"):
                node.result(20)


def test_a_node_0_that_comes_again_takes_the_others_for_alike(nodes, monkeypatch, caplog):
    """Workers of other nodes look for their store: nobody is going to come."""
    monkeypatch.setattr(meeting, "_RUNNING_WAIT", 0.2)
    first = nodes.start(0, 2)
    with nodes.reach() as client:
        client.sendall(STORE_CLIENT)
        assert first.result(20).ranks is None
    assert "as many workers as this one (2)" in caplog.text


def test_a_node_that_comes_again_takes_the_others_for_alike(nodes, monkeypatch, caplog):
    """Where node 0 was is the workers' store, which says nothing to those who do not know it."""
    monkeypatch.setattr(meeting, "_RUNNING_WAIT", 0.2)
    monkeypatch.setattr(meeting, "_SEAT_WAIT", 0.1)
    with socket.create_server(("127.0.0.1", nodes.port)):
        assert nodes.start(1, 2).result(20).ranks is None
    assert "as many workers as this one (2)" in caplog.text


def test_a_launcher_that_has_come_shows_that_the_workers_do_not_run(nodes, monkeypatch):
    """Whatever else has looked for a store before."""
    monkeypatch.setattr(meeting, "_RUNNING_WAIT", 0.3)
    first, second = nodes.create(0, 1, count=3), nodes.create(1, 2, count=3)
    met = [nodes._pool.submit(first.next_rendezvous)]
    with nodes.reach() as client:
        client.sendall(STORE_CLIENT)
        assert client.recv(100) == b""
    met.append(nodes._pool.submit(second.next_rendezvous))
    wait_until(lambda: first.describe_wait().endswith("index 2"), first.describe_wait)
    time.sleep(0.5)
    met.append(nodes.start(2, 3, count=3))
    assert [node.result(20).ranks.first_global for node in met] == [0, 1, 3]


def test_a_proxy_in_front_of_a_node_0_that_is_late_is_no_store(nodes, monkeypatch):
    """It closes connections for a while."""
    monkeypatch.setattr(meeting, "_LONGEST_PAUSE", 0.05)
    with socket.create_server(("127.0.0.1", nodes.port)) as proxy:
        second = nodes.start(1, 2)
        for _ in range(3):
            proxy.accept()[0].close()
    time.sleep(0.1)
    first = nodes.start(0, 1)
    assert second.result(20).ranks == WorldRanks(1, 3, 1, 3)
    first.result(20)


def test_a_port_that_is_taken_meanwhile(nodes):
    handler = nodes.create(0)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", nodes.port))
        sock.listen()
        with pytest.raises(RendezvousConnectionError, match="cannot listen for the other nodes"):
            handler.next_rendezvous()
