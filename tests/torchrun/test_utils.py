"""torchrun's `elastic.utils`, control plane and health check."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import types
from datetime import timedelta

import pytest
from plaunch.errors import UsageError
from plaunch_network import create_tcp_store
from plaunch_torchrun import health, stores
from plaunch_torchrun.elastic import utils
from plaunch_torchrun.elastic.control_plane import worker_main


def test_a_variable_that_must_be_there(monkeypatch):
    monkeypatch.setenv("SOME", "x")
    assert utils.get_env_variable_or_raise("SOME") == "x"
    monkeypatch.delenv("SOME")
    with pytest.raises(ValueError, match="SOME"):
        utils.get_env_variable_or_raise("SOME")


def bind(address):
    with socket.socket() as other:
        other.bind(address)


def test_a_port_is_reserved_on_all_addresses():
    with utils.get_socket_with_port() as reserved:
        port = reserved.getsockname()[1]
        for address in ("127.0.0.1", "127.0.0.2"):
            with pytest.raises(OSError, match="in use"):
                bind((address, port))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=10)
    bind(("127.0.0.1", port))
    assert 0 < utils.get_free_port() < 65536


def test_a_host_without_ipv6(monkeypatch):
    class OnlyFour(socket.socket):
        def __init__(self, family, kind):
            if family == socket.AF_INET6:
                raise OSError("no IPv6")
            super().__init__(family, kind)

    monkeypatch.setattr(socket, "socket", OnlyFour)
    with utils.get_socket_with_port() as reserved:
        assert reserved.family == socket.AF_INET


def test_no_port_to_reserve(monkeypatch):
    class Refusing(socket.socket):
        def bind(self, address):
            raise OSError("no")

    monkeypatch.setattr(socket, "socket", Refusing)
    with pytest.raises(OSError, match="no port can be reserved on this host: no") as raised:
        utils.get_socket_with_port()
    assert isinstance(raised.value, RuntimeError), "as torchrun's"


def test_loggers(monkeypatch):
    monkeypatch.delenv("LOGLEVEL", raising=False)
    assert utils.get_logger("plaunch-test").level == logging.WARNING
    monkeypatch.setenv("LOGLEVEL", "DEBUG")
    assert utils.get_logger("plaunch-test").level == logging.DEBUG
    assert utils.get_logger().name == __name__


def test_the_state_of_a_process():
    assert utils.read_proc_state(os.getpid()) in ("R", "S")
    assert utils.read_proc_state(2**22 + 1) is None
    assert utils.is_uninterruptible_state("D")
    assert not utils.is_uninterruptible_state("S")
    assert not utils.is_uninterruptible_state(None)


def tcp_store(port, **options):
    from torch.distributed import TCPStore

    options |= {"host_name": "localhost", "port": port, "timeout": timedelta(seconds=20)}
    return create_tcp_store(TCPStore, **options)


@pytest.fixture
def store():
    pytest.importorskip("torch.distributed")
    return tcp_store(0, is_master=True)


def clients(store, count):
    return [tcp_store(store.port) for _ in range(count)]


def in_threads(function, count):
    results = [None] * count

    def call(rank):
        results[rank] = function(rank)

    threads = [threading.Thread(target=call, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def test_exchanging_data(store):
    them = clients(store, 3)
    results = in_threads(
        lambda rank: stores.synchronize(them[rank], str(rank).encode(), rank, 3, "data"), 3
    )
    assert results == [[b"0", b"1", b"2"]] * 3


def test_a_barrier(store):
    them = clients(store, 2)
    before = them[0].timeout
    in_threads(lambda rank: stores.barrier(them[rank], 2, "first", 20, rank), 2)
    in_threads(lambda rank: stores.barrier(them[rank], 2, "second", 20), 2)
    assert them[0].timeout == before


def test_a_barrier_with_a_missing_rank(store):
    from torch.distributed import DistStoreError

    (client,) = clients(store, 1)
    before = client.timeout
    with pytest.raises(DistStoreError, match="missing: host1, host2"):
        stores.barrier(client, 3, "b", 0.1, 0, lambda rank: f"host{rank}", trace_timeout=0.1)
    assert client.timeout == before
    with pytest.raises(DistStoreError):
        stores.barrier(client, 3, "c", 0.1)


def test_a_decoder_without_a_rank():
    with pytest.raises(UsageError, match="rank"):
        stores.barrier(None, 1, "b", rank_tracing_decoder=str)


def test_a_worker_without_a_control_plane(monkeypatch, tmp_path):
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    monkeypatch.delenv("TORCH_WORKER_SERVER_SOCKET", raising=False)

    @worker_main()
    def main():
        raise ValueError("gone")

    with pytest.raises(ValueError, match="gone"):
        main()
    assert json.loads(path.read_text())["message"]["message"] == "ValueError: gone"


def test_a_worker_with_a_control_plane(monkeypatch):
    said = []

    class Server:
        def __init__(self, path):
            said.append(path)

        def shutdown(self):
            said.append("shutdown")

    pytest.importorskip("torch.distributed")
    fake = types.ModuleType("torch._C._distributed_c10d")
    fake._WorkerServer = Server
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", fake)
    monkeypatch.setenv("TORCH_WORKER_SERVER_SOCKET", "/tmp/some")
    with worker_main():
        assert said == ["/tmp/some"]
    assert said == ["/tmp/some", "shutdown"]


def test_a_health_check_of_a_site(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_HEALTH_CHECK_PORT", raising=False)
    assert health.find_server(lambda: 7) is None
    monkeypatch.setenv("TORCHELASTIC_HEALTH_CHECK_PORT", "1234")
    assert health.find_server(lambda: 7) is None  # torchrun's own serves nothing
    made = []
    monkeypatch.setattr(health, "create_healthcheck_server", lambda *given: made.append(given))
    health.find_server(len)
    monkeypatch.setenv("TORCHELASTIC_HEALTH_CHECK_PORT", "here")
    health.find_server(len)
    assert made == [(len, 1234, 60)]


def test_a_health_check_that_serves_nothing_logs_that(caplog):
    server = health.HealthCheckServer(lambda: 7, 1234, 60)
    assert server.alive_callback() == 7
    with caplog.at_level(logging.INFO, "plaunch"):
        server.start()
        server.stop()
    assert "port 1234" in caplog.text
