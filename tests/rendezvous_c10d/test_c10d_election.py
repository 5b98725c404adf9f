"""Which of the agents of one machine hosts the store."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import socket

import pytest
from plaunch.errors import RendezvousConnectionError, UsageError
from plaunch_membership import StoreNotListeningError
from plaunch_network import HeldPort
from plaunch_rendezvous_c10d import hosting
from plaunch_rendezvous_c10d.election import HostElection
from plaunch_rendezvous_c10d.hosting import DECISIONS, HostingDecision, PortState, decide_hosting

from helpers.faults import refuse_to_bind
from helpers.ports import free_port, outgoing_connection


@pytest.fixture(params=["job", "torch"])
def store(request):
    return request.param


@contextlib.contextmanager
def state_of_port(state, port, monkeypatch):
    with contextlib.ExitStack() as stack:
        if state is PortState.SERVED:
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        elif state is PortState.BUSY:
            stack.enter_context(outgoing_connection(port))
        elif state is PortState.FORBIDDEN:
            refuse_to_bind(monkeypatch, PermissionError(errno.EACCES, "Permission denied"))
        yield


@pytest.mark.parametrize("is_requested", [False, True])
@pytest.mark.parametrize("state", PortState)
def test_the_table_is_complete_and_used(monkeypatch, state, is_requested):
    expected, port = DECISIONS[state, is_requested], free_port()
    with state_of_port(state, port, monkeypatch):

        def decide():
            return decide_hosting("127.0.0.1", port, is_local=True, is_requested=is_requested)

        if expected is HostingDecision.FAIL:
            with pytest.raises(UsageError):
                decide()
            return
        decision, listener = decide()
    assert decision is expected
    assert (listener is not None) == (decision is HostingDecision.HOST)
    if listener is not None:
        listener.close()


def test_a_socket_that_is_bound_and_does_not_listen_is_no_obstacle():
    """The sockets of two agents that have both lost are in this state, until they are closed."""
    with contextlib.closing(HeldPort.any()) as bound:
        decision, listener = decide_hosting(
            "127.0.0.1", bound.port, is_local=True, is_requested=False
        )
        assert decision is HostingDecision.HOST
        listener.close()


@pytest.fixture
def lose(monkeypatch):
    """Let the next calls of `listen` end as the kernel ends two at the same moment."""
    listen, left = hosting.listen, itertools.count()

    def start(count):
        nonlocal left
        left = iter(range(count))

    def try_to_listen(host, port, *, is_local):
        if next(left, None) is None:
            return listen(host, port, is_local=is_local)
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))

    monkeypatch.setattr(hosting, "listen", try_to_listen)
    return start


@pytest.mark.parametrize("is_host", [None, True])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", os.uname().nodename])
def test_two_agents_that_both_lose_try_again(prepare, store, lose, host, is_host):
    endpoint = f"{host}:{free_port()}"
    config = {"store": store} if is_host is None else {"store": store, "is_host": is_host}
    lose(2)
    with (
        prepare(endpoint, max_nodes=2, **config) as first,
        prepare(endpoint, max_nodes=2, store=store) as second,
    ):
        assert not first.hosts_store()
        assert not second.hosts_store()
        first.connect().set("key", b"x")
        assert second.connect().multi_get(["key"]) == [b"x"]
        assert (first.hosts_store(), second.hosts_store()) == (True, False)
        assert first.endpoint == second.endpoint == endpoint


def test_they_may_lose_again_and_again(prepare, lose):
    endpoint = f"127.0.0.1:{free_port()}"
    lose(6)
    with prepare(endpoint, max_nodes=2) as first, prepare(endpoint, max_nodes=2) as second:
        for _ in range(2):
            for backend in (first, second):
                with pytest.raises(StoreNotListeningError, match="tries to host it again"):
                    backend.connect()
        second.connect().set("key", b"x")
        assert first.connect().multi_get(["key"]) == [b"x"]
        assert (first.hosts_store(), second.hosts_store()) == (False, True)


@pytest.mark.parametrize("is_host", [None, True])
def test_a_connection_that_has_the_port_is_only_a_delay(prepare, is_host):
    port = free_port()
    config = {} if is_host is None else {"is_host": is_host}
    with contextlib.ExitStack() as stack:
        with outgoing_connection(port):
            backend = stack.enter_context(prepare(f"localhost:{port}", max_nodes=2, **config))
            for _ in range(2):
                with pytest.raises(StoreNotListeningError, match="its port is in use"):
                    backend.connect()
        backend.connect().set("key", b"x")
        assert backend.hosts_store()


def test_one_that_should_host_joins_an_agent_that_was_faster(prepare, lose):
    endpoint = f"127.0.0.1:{free_port()}"
    lose(1)
    with prepare(endpoint, max_nodes=2, is_host=True) as first, prepare(endpoint, max_nodes=2):
        first.connect().set("key", b"x")
        assert not first.hosts_store()


def test_of_two_that_should_host_one_joins(prepare, store):
    """torchrun's second agent fails then, and the first one waits for it."""
    endpoint = f"localhost:{free_port()}"
    config = {"store": store, "is_host": True}
    with (
        prepare(endpoint, max_nodes=2, **config) as first,
        prepare(endpoint, max_nodes=2, **config) as second,
    ):
        first.connect().set("key", b"x")
        assert second.connect().multi_get(["key"]) == [b"x"]
        assert (first.hosts_store(), second.hosts_store()) == (True, False)


def test_a_node_that_no_host_answers_any_more_takes_over_before_it_has_joined(prepare, store):
    endpoint = f"127.0.0.1:{free_port()}"
    with contextlib.ExitStack() as stack:
        with prepare(endpoint, max_nodes=2, store=store):
            second = stack.enter_context(prepare(endpoint, max_nodes=2, store=store))
        second.connect().set("key", b"x")
        assert second.hosts_store()


def test_a_node_that_has_joined_never_hosts(prepare, store):
    """The job was in the store that has ended."""
    endpoint = f"127.0.0.1:{free_port()}"
    with contextlib.ExitStack() as stack:
        with prepare(endpoint, max_nodes=2, store=store):
            second = stack.enter_context(prepare(endpoint, max_nodes=2, store=store))
            second.connect()
        with pytest.raises(RendezvousConnectionError):
            second.connect().set("key", b"x")
        assert not second.hosts_store()


def test_a_released_node_does_not_host(prepare, lose):
    lose(1)
    with prepare(f"127.0.0.1:{free_port()}", max_nodes=2) as backend:
        pass
    with pytest.raises(RendezvousConnectionError):
        backend.connect()
    assert not backend.hosts_store()


class FakeConnector:
    """A connector whose store reports losses."""

    def __init__(self):
        self.listeners = []
        self.is_closed = False

    def subscribe(self, listener):
        self.listeners.append(listener)

    def connect(self):
        return self

    def close(self):
        self.is_closed = True


class FakeHosted:
    def __init__(self):
        self.connector = FakeConnector()

    def has_guests(self):
        return True

    def close(self):
        self.connector.close()


def test_losses_are_reported_whoever_hosts_the_store():
    joined, hosted, seen, checked = FakeConnector(), FakeHosted(), [], []
    decisions = iter([(HostingDecision.JOIN, None), (HostingDecision.HOST, object())])
    election = HostElection(
        lambda: next(decisions), lambda listener: hosted, joined, check=checked.append
    )
    election.subscribe(lambda: seen.append("loss"))
    election.try_to_host()
    assert not election.has_guests()
    joined.listeners[0]()
    assert seen == ["loss"]
    assert election.connect() is hosted.connector
    assert election.connect() is hosted.connector
    assert checked == [hosted]
    assert election.has_guests()
    hosted.connector.listeners[0]()
    assert seen == ["loss", "loss"]
    election.close()
    assert joined.is_closed
    assert hosted.connector.is_closed
