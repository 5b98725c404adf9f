"""The store contract on torch's own TCPStore and FileStore, beyond the conformance suite."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

import pytest
from plaunch.errors import RendezvousConnectionError
from plaunch_network import create_tcp_store
from plaunch_rendezvous_c10d import torch_stores
from plaunch_rendezvous_c10d.endpoint import ConnectBounds
from plaunch_rendezvous_c10d.torch_stores import TcpStore
from torch.distributed import FileStore, TCPStore

from helpers.calls import Call
from helpers.waiting import wait_until


@pytest.fixture(params=["tcp", "file"])
def connect(request, prepare, tmp_path):
    endpoint = str(tmp_path / "store") if request.param == "file" else ""
    with (
        prepare(endpoint, store="torch", store_type=request.param) as backend,
        contextlib.ExitStack() as stack,
    ):

        def open_one():
            store = backend.connect()
            stack.callback(store.close)
            return store

        yield open_one


@pytest.fixture
def store(connect):
    return connect()


class Client:
    """Stands for torch's store, records the names of its calls, and does not show its socket."""

    def __init__(self, client):
        self._client = client
        self.calls = []

    def __getattr__(self, name):
        method = getattr(self._client, name)

        def call(*args):
            self.calls.append(name)
            return method(*args)

        return call


def tcp_store():
    return create_tcp_store(
        TCPStore, host_name="127.0.0.1", port=0, is_master=True, wait_for_workers=False
    )


@pytest.fixture(params=["tcp", "file"])
def counted(request, tmp_path):
    if request.param == "tcp":
        client = Client(tcp_store())
        store = TcpStore(client, "here", 60.0)
    else:
        client = Client(FileStore(str(tmp_path / "store"), -1))
        store = torch_stores.FileStore(client, "here", 60.0)
    client.calls.clear()
    yield store, client.calls
    store.close()


@pytest.mark.parametrize("value", [b"\xff\xfe", "größer".encode(), b"a\0b", b"\n", b"x" * 200_000])
def test_any_bytes_come_back(store, value):
    store.set("set", value)
    assert store.compare_set("compared", None, value) == value
    store.multi_set({"many": value})
    assert store.multi_get(["set", "compared", "many", "gone"]) == [value] * 3 + [None]
    assert store.wait("set", 1) == value


@pytest.mark.parametrize("value", [b"", b"\0"])
def test_values_that_torch_cannot_distinguish_from_nothing_are_rejected(store, value):
    for write in (
        lambda: store.set("key", value),
        lambda: store.compare_set("key", None, value),
        lambda: store.compare_set("key", value, b"x"),
        lambda: store.multi_set({"key": value}),
    ):
        with pytest.raises(ValueError, match="'key'"):
            write()
    assert store.multi_get(["key"]) == [None]


def test_add_counts_from_zero(connect):
    first, second = connect(), connect()
    assert [first.add("n", 1), second.add("n", 2), first.add("n", 0)] == [1, 3, 3]
    assert first.multi_get(["n"]) == [b"3"]


@pytest.mark.parametrize("held", [None, b"old", b"same"])
def test_the_expected_value_may_be_the_desired_one(store, held):
    if held is not None:
        store.set("key", held)
    assert store.compare_set("key", b"same", b"same") == held
    assert store.multi_get(["key"]) == [held]


@pytest.mark.parametrize("count", [0, 1, 3, 4, 9, 100])
@pytest.mark.parametrize("missing", [(), (0,), (2, 3), "all"])
def test_missing_keys_are_read_without_waiting(store, count, missing):
    expected = {
        f"key/{n}": None if missing == "all" or n in missing else b"%d" % n for n in range(count)
    }
    store.multi_set({key: value for key, value in expected.items() if value is not None})
    assert store.multi_get(list(expected)) == list(expected.values())


def test_a_common_read_takes_two_requests(counted):
    store, calls = counted
    store.multi_set({f"{n}": b"x" for n in range(1000)})
    calls.clear()
    assert store.multi_get([f"{n}" for n in range(1000)]) == [b"x"] * 1000
    assert calls == ["check", "multi_get"]


def test_one_missing_key_among_many_is_cheap_to_find(counted):
    store, calls = counted
    store.multi_set({f"{n}": b"x" for n in range(1, 1024)})
    calls.clear()
    assert store.multi_get([f"{n}" for n in range(1024)]) == [None] + [b"x"] * 1023
    assert len(calls) < 40


def test_a_deleted_key_has_no_value(connect):
    first, second = connect(), connect()
    first.delete("never there")
    first.set("key", b"x")
    second.delete("key")
    assert first.multi_get(["key"]) == [None]
    assert first.wait("key", 0.01) is None
    assert first.compare_set("key", None, b"again") == b"again"


@pytest.mark.parametrize("timeout", [-1, 0, 0.0001, 0.2])
def test_a_wait_times_out_and_leaves_the_connection_usable(store, timeout):
    began = time.monotonic()
    assert store.wait("key", timeout) is None
    assert time.monotonic() - began >= timeout
    store.set("key", b"x")
    assert store.wait("key", timeout) == b"x"


def test_a_wait_may_be_longer_than_the_read_timeout(prepare):
    with prepare(read_timeout=0.2, store="torch") as backend:
        store = backend.connect()
        call = Call(store.wait, "key", 30)
        assert not call.ended(1.0)
        backend.connect().set("key", b"x")
        assert call.ended()
        assert call.result == b"x"


def test_close_ends_a_wait_in_another_thread(connect):
    store = connect()
    call = Call(store.wait, "key", 60)
    assert not call.ended(0.2)
    store.close()
    store.close()
    assert call.ended(5)
    assert isinstance(call.error, RendezvousConnectionError)
    with pytest.raises(RendezvousConnectionError, match="closed connection"):
        store.add("n", 1)
    assert connect().add("n", 1) == 1


OPERATIONS = {
    "set": lambda store: store.set("key", b"x"),
    "multi_set": lambda store: store.multi_set({"a": b"x", "b": b"y"}),
    "beat": lambda store: store.beat("key", b"x"),
    "add": lambda store: store.add("n", 1),
    "compare_set": lambda store: store.compare_set("key", None, b"x"),
    "multi_get": lambda store: store.multi_get(["a", "b", "c", "d"]),
    "wait": lambda store: store.wait("never", 60),
    "delete": lambda store: store.delete("key"),
}


def test_sigkill_of_the_host_ends_every_call_with_an_error(start_server):
    server = start_server()
    connector = server.connector()
    blocked = [Call(connector.connect().wait, "never", 60) for _ in range(3)]
    idle = {name: connector.connect() for name in OPERATIONS}
    assert not any(call.ended(0.1) for call in blocked)
    server.process.kill()
    server.process.wait()
    assert all(call.ended(5) for call in blocked)
    for call in blocked:
        assert isinstance(call.error, RendezvousConnectionError)
        assert connector.endpoint.name in str(call.error)
        assert isinstance(call.error.__cause__, RuntimeError)
    # Also the first write after the death, which torch itself loses without an error.
    for name, store in idle.items():
        with pytest.raises(RendezvousConnectionError):
            OPERATIONS[name](store)
    with pytest.raises(RendezvousConnectionError, match="ECONNREFUSED"):
        connector.connect()


def test_after_an_outage_a_new_host_on_the_port_is_reached(start_server):
    server = start_server()
    connector = server.connector()
    connector.connect().set("key", b"x")
    server.process.kill()
    server.process.wait()
    start_server(server.port)
    assert connector.connect().multi_get(["key"]) == [None]


@contextlib.contextmanager
def stopped(process):
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


def connecting():
    return [t for t in threading.enumerate() if t.name == "plaunch-connect"]


def test_a_stopped_host_blocks_no_client(start_server):
    server = start_server()
    connector = server.connector(1.0, bounds=ConnectBounds(timeout=0.5, max_stuck=1))
    stores = {name: connector.connect() for name in OPERATIONS}
    calls = {**OPERATIONS, "wait": lambda store: store.wait("never", 1)}
    with stopped(server.process):
        under_way = {name: Call(calls[name], store) for name, store in stores.items()}
        for _ in range(3):
            with pytest.raises(RendezvousConnectionError, match="does not answer like a TCPStore"):
                connector.connect()
            # An attempt that is stuck in torch is ended, or others do not wait for it.
            wait_until(lambda: len(connecting()) <= 1, "no more than one attempt")
        for name, call in under_way.items():
            assert call.ended(20), name
            # torch does not wait for an answer to a write; this store does.
            assert isinstance(call.error, RendezvousConnectionError), name
    for thread in connecting():
        thread.join(30)
    connector.connect().set("key", b"x")


def test_a_torch_that_does_not_show_its_socket_works_too():
    store = TcpStore(Client(tcp_store()), "here", 60.0)
    store.set("key", b"x")
    assert store.wait("key", 1) == b"x"
    store.close()
