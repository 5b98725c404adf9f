"""Which node hosts the store, and connecting to it."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
import time

import pytest
from plaunch.errors import (
    PluginLoadError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    UsageError,
)
from plaunch.rendezvous import RendezvousParameters
from plaunch_network import interface_addresses, is_loop_back
from plaunch_rendezvous_c10d import hosting, prepare_backend, tcp_connecting
from plaunch_rendezvous_c10d.endpoint import ConnectBounds
from plaunch_rendezvous_c10d.tcp_hosting import HostedTcpStore

from helpers.faults import refuse_to_bind
from helpers.ports import free_port
from helpers.programs import run_python
from helpers.waiting import wait_until

from .conftest import port_of, tcp_connector

FOREIGN = "192.0.2.77"
QUICK = ConnectBounds(timeout=0.2)


@pytest.fixture(params=["job", "torch"])
def store(request):
    return request.param


def listeners(port):
    """The local addresses, in the kernel's hexadecimal notation, that listen on a port."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table, encoding="ascii") as lines:
            for line in list(lines)[1:]:
                _, local, _, state, *_ = line.split()
                host, _, number = local.rpartition(":")
                if int(number, 16) == port and state == "0A":
                    found.add(host)
    return found


def prepare_for_two(endpoint, **config):
    return prepare_backend(RendezvousParameters("c10d", endpoint, "job", 1, 2, **config))


def test_one_node_hosts_on_loop_back_only_and_on_any_port(prepare, store, caplog):
    with prepare(store=store) as backend:
        assert not caplog.records  # the port of a job of one node is not reported
        assert backend.hosts_store()
        assert backend.address == "127.0.0.1"
        assert not backend.outlives_job
        assert listeners(port_of(backend)) == {"0100007F"}
        backend.connect().set("key", b"x")
    assert not listeners(port_of(backend))


def test_two_jobs_of_one_node_do_not_meet(prepare, store):
    with prepare(store=store) as first, prepare(store=store) as second:
        assert first.endpoint != second.endpoint
        first.connect().set("key", b"x")
        assert second.connect().multi_get(["key"]) == [None]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.1.1", "[::1]", "localhost"])
@pytest.mark.parametrize("max_nodes", [1, 2])
def test_loop_back_in_any_spelling_is_hosted_and_joined(prepare, host, max_nodes):
    endpoint = f"{host}:{free_port()}"
    with (
        prepare(endpoint, max_nodes=max_nodes) as first,
        prepare(endpoint, max_nodes=max_nodes) as second,
    ):
        assert (first.hosts_store(), second.hosts_store()) == (True, False)
        assert first.endpoint == second.endpoint == endpoint
        first.connect().set("key", b"x")
        assert second.connect().multi_get(["key"]) == [b"x"]


def test_several_nodes_are_served_on_all_interfaces(prepare):
    with prepare(f"{os.uname().nodename}:0", max_nodes=2, is_host=True) as backend:
        assert listeners(port_of(backend)) == {"0" * 32}


@pytest.mark.parametrize(
    ("host", "listens"),
    [
        ("localhost", "0100007F"),
        ("LocalHost", "0100007F"),
        ("127.0.0.1", "0100007F"),
        ("127.0.1.1", "0101007F"),
        ("[::1]", "0" * 24 + "01000000"),
    ],
)
@pytest.mark.parametrize("is_host", [None, True])
def test_an_endpoint_on_loop_back_is_served_there_alone(prepare, host, listens, is_host):
    config = {} if is_host is None else {"is_host": is_host}
    with prepare(f"{host}:0", max_nodes=2, **config) as backend:
        assert listeners(port_of(backend)) == {listens}
        backend.connect().set("key", b"x")


def test_an_interface_of_this_machine_is_hosted(prepare):
    own = next((a for a in interface_addresses() if not is_loop_back(a) and ":" not in a), None)
    if own is None:
        pytest.skip("this machine has loopback only")
    endpoint = f"{own}:{free_port()}"
    with prepare(endpoint, max_nodes=2) as host, prepare(endpoint, max_nodes=2) as other:
        assert (host.hosts_store(), other.hosts_store()) == (True, False)
        assert host.address == other.address == own
        other.connect().set("key", b"x")
        assert host.connect().multi_get(["key"]) == [b"x"]


def test_a_machine_without_ipv6_serves_the_other_family(prepare, monkeypatch):
    error = OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
    refuse_to_bind(monkeypatch, error, socket.AF_INET6)
    with prepare(f"{os.uname().nodename}:0", max_nodes=2, is_host=True) as backend:
        assert listeners(port_of(backend)) == {"00000000"}
        backend.connect().set("key", b"x")


def test_port_0_picks_a_port_and_reports_it(prepare, caplog):
    with prepare("localhost:0", max_nodes=2) as backend:
        assert port_of(backend) > 0
        assert f"--rdzv-endpoint={backend.endpoint}" in caplog.text
        assert "WARNING" in caplog.text
    with pytest.raises(UsageError, match="has no port that all nodes know; give the port"):
        prepare_for_two(f"{FOREIGN}:0")


def test_a_foreign_endpoint_is_joined_not_hosted(prepare, store):
    began = time.monotonic()
    with prepare(f"{FOREIGN}:29400", max_nodes=2, bounds=QUICK, store=store) as backend:
        assert not backend.hosts_store()
        with pytest.raises(RendezvousConnectionError) as caught:
            backend.connect()
    assert time.monotonic() - began < 30
    for part in (f"{FOREIGN}:29400", os.uname().nodename, "is_host=true"):
        assert part in str(caught.value)


def test_is_host_false_never_hosts(prepare, store):
    endpoint = f"localhost:{free_port()}"
    with prepare(endpoint, max_nodes=2, is_host="false", store=store) as backend:
        assert not backend.hosts_store()
        with pytest.raises(RendezvousConnectionError, match="ECONNREFUSED"):
            backend.connect()
        with prepare(endpoint, max_nodes=2, store=store):
            backend.connect().set("key", b"x")


def test_a_port_of_another_program(prepare):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UsageError, match=rf"port is taken by pid {os.getpid()} "):
            prepare_for_two(f"localhost:{port}", is_host=True)
        # Without is_host, this node takes that program for the host until it does not answer.
        with prepare(f"127.0.0.1:{port}", max_nodes=2, bounds=QUICK) as backend:
            assert not backend.hosts_store()
            with pytest.raises(UsageError, match=rf"port is taken by pid {os.getpid()} "):
                backend.connect()


def test_a_port_that_may_not_be_bound(monkeypatch):
    refuse_to_bind(monkeypatch, PermissionError(errno.EACCES, "Permission denied"))
    with pytest.raises(UsageError, match="'localhost:80' cannot be hosted: Permission denied"):
        prepare_for_two("localhost:80")


def test_a_host_behind_a_service_address(prepare, store):
    """The endpoint cannot be reached from here, so the check passes."""
    with prepare(f"{FOREIGN}:0", max_nodes=2, is_host=True, bounds=QUICK, store=store) as backend:
        assert backend.hosts_store()
        backend.connect().set("key", b"x")


def test_two_hosts_for_one_endpoint(prepare):
    with prepare("127.0.0.1:0", max_nodes=2, store="torch") as first:
        other = HostedTcpStore(hosting.listen("127.0.0.1", 0, is_local=True))
        try:
            hosting.check_sole_host(other, tcp_connector(other.port))
            with pytest.raises(RendezvousError, match="two hosts for one rendezvous") as caught:
                hosting.check_sole_host(other, tcp_connector(port_of(first)))
            assert not isinstance(caught.value, RendezvousConnectionError)
            assert other.identity in str(caught.value)
            assert str(caught.value).count(f"pid {os.getpid()}") == 2
        finally:
            other.close()


def test_a_name_that_resolves_to_loop_back_here(prepare, monkeypatch):
    """As with Debian's /etc/hosts; other nodes get another address."""
    port, look_up = free_port(), socket.getaddrinfo

    def from_hosts(host, *args, **options):
        return look_up("127.0.1.1" if host == "node0" else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", from_hosts)
    with prepare(f"node0:{port}", max_nodes=2) as backend:
        assert backend.hosts_store()
        assert backend.endpoint == f"node0:{port}"
        assert listeners(port) == {"0" * 32}
        others = [a for a in interface_addresses() if not is_loop_back(a)]
        assert backend.address in others or not others


@pytest.mark.parametrize(
    ("own", "host", "expected"),
    [
        ("worker-0", "worker-0.job.cluster.invalid", True),
        ("worker-1", "worker-0.job.cluster.invalid", False),
        ("worker-0.invalid", "worker-0.invalid", True),
    ],
)
def test_a_full_name_that_does_not_resolve_yet(monkeypatch, own, host, expected):
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("", own, "", "", "")))
    assert hosting.is_this_machine(host, 1) is expected


def test_connections_query_no_name_server(prepare, monkeypatch):
    from plaunch_rendezvous_c10d import resolver

    calls = []
    forget = resolver.forget_name_servers
    monkeypatch.setattr(tcp_connecting, "forget_name_servers", lambda: calls.append(forget()))
    with prepare(store="torch") as backend:
        backend.connect()
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("endpoint", "config", "message"),
    [
        ("", {"store_type": "redis"}, r"'store_type'.*'redis'; choose from file, tcp"),
        ("", {"store": "redis"}, r"'store'.*'redis'; choose from job, torch"),
        ("", {"store": "job", "store_type": "file"}, "in a file with torch only"),
        ("", {"read_timeout": "soon"}, "not a number"),
        ("", {"read_timeout": "0"}, r"'read_timeout'.*above 0"),
        ("", {"read_timeout": "inf"}, r"'read_timeout'.*above 0"),
        ("", {"is_host": "maybe"}, "not a boolean"),
        ("/", {"store_type": "file"}, "it is a folder"),
        ("/no/such/folder/x", {"store_type": "file"}, "'/no/such/folder' does not exist"),
        ("node0:http", {}, "port 'http'"),
    ],
)
def test_invalid_settings(endpoint, config, message):
    with pytest.raises(UsageError, match=message):
        prepare_for_two(endpoint, **config)


def test_a_temporary_file_is_removed_and_a_given_one_stays(prepare, tmp_path):
    with prepare(store_type="FILE") as backend:
        path = backend.endpoint
        backend.connect().set("key", b"x")
        assert os.path.exists(path)
        assert not backend.outlives_job
    assert not os.path.exists(os.path.dirname(path))
    given = str(tmp_path / "store")
    with prepare(given, max_nodes=2, store_type="file") as backend:
        assert (backend.endpoint, backend.hosts_store(), backend.outlives_job) == (
            given,
            False,
            True,
        )
        backend.connect().set("key", b"x")
    with prepare(given, max_nodes=2, store_type="file") as backend:
        assert backend.connect().multi_get(["key"]) == [b"x"]


def run_code(code, **env):
    return run_python("-c", code, env={**os.environ, **env}, check=True)


IMPORTS = """
import os, sys
from plaunch_rendezvous_c10d import prepare_backend
from plaunch.rendezvous import RendezvousParameters
assert "torch" not in sys.modules
"""


def test_torch_is_loaded_with_the_backend_and_stays_silent():
    code = IMPORTS + (
        "os.environ.pop('TORCH_CPP_LOG_LEVEL', None)\n"
        "before = dict(os.environ)\n"
        "backend = prepare_backend(RendezvousParameters('c10d', '', 'job', 1, 1, store='torch'))\n"
        "assert 'torch' in sys.modules\n"
        "print(backend.connect().wait('never', 0.1), dict(os.environ) == before)\n"
        "backend.release()"
    )
    shown = run_code(code)
    assert shown.stdout.split() == ["None", "True"]
    assert shown.stderr == ""


def test_a_log_level_of_the_user_is_kept():
    code = IMPORTS + (
        "prepare_backend(RendezvousParameters('c10d', '', 'job', 1, 1, store='torch')).release()\n"
        "print(os.environ['TORCH_CPP_LOG_LEVEL'])"
    )
    assert run_code(code, TORCH_CPP_LOG_LEVEL="FATAL").stdout.split() == ["FATAL"]


def test_a_missing_torch_is_reported_with_the_command_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "torch.distributed")
    with pytest.raises(PluginLoadError, match=r"pip install 'plaunch\[c10d\]'"):
        prepare_for_two("", store="torch")
    prepare_for_two("localhost:0").release()


def test_a_guest_names_the_host_of_a_store_that_is_lost(prepare):
    """The endpoint may be an address that says nothing to people."""
    endpoint = f"127.0.0.1:{free_port()}"
    with (
        prepare(endpoint, max_nodes=2, is_host=True) as host,
        prepare(endpoint, max_nodes=2, is_host=False) as guest,
    ):
        is_lost = threading.Event()
        guest.subscribe(is_lost.set)
        guest.connect().close()
        host.release()
        assert is_lost.wait(30)
        with pytest.raises(RendezvousConnectionError) as caught:
            guest.connect()
    hosted = f"hosted by {os.uname().nodename} (pid {os.getpid()}, "
    assert str(caught.value).startswith(f"rendezvous store '{endpoint}', {hosted}")


def test_the_host_says_whom_its_store_has_refused(prepare, caplog, tmp_path):
    (tmp_path / "token").write_text("a token of sixteen bytes or more")
    endpoint = f"127.0.0.1:{free_port()}"
    with (
        prepare(endpoint, 2, token_file=str(tmp_path / "token"), is_host="true"),
        prepare(endpoint, 2, is_host="false") as guest,
    ):
        with pytest.raises(RendezvousClosedError, match="needs the token"):
            guest.connect()
        wait_until(lambda: "has refused" in caplog.text, "the host has logged it")
    assert "127.0.0.1" in caplog.text
    assert "the node has no token, and this job has one; give all nodes the same" in caplog.text
