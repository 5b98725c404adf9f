"""The health check `network`, on loopback, and on interfaces simulated by files."""

from __future__ import annotations

import socket

import pytest
from plaunch_doctor.network import Network, NetworkCheck

from helpers.occasions import RESTART, START
from helpers.ports import free_port


@pytest.fixture
def interfaces(tmp_path):
    """Write the state of interfaces; return the root of that file system."""

    def write(**states):
        for name, files in states.items():
            folder = tmp_path / "sys/class/net" / name
            folder.mkdir(parents=True, exist_ok=True)
            for file, text in files.items():
                (folder / file).write_text(f"{text}\n")
        return str(tmp_path)

    return write


@pytest.fixture
def elsewhere(monkeypatch):
    """Treat this machine's addresses as those of another machine."""
    monkeypatch.setattr(Network, "is_own", lambda network, address: False)


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def refusing():
    return f"127.0.0.1:{free_port()}"


def check(context, endpoint="", backend="c10d", root="/", **more):
    settings = {"rdzv_endpoint": endpoint, "rdzv_backend": backend, "max_nodes": 2, **more}
    return NetworkCheck(context(**settings), root)


# --- the interface --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"operstate": "unknown", "carrier": "1"}, "lo with 127.0.0.1 is up"),
        ({"operstate": "up", "carrier": "1"}, "lo with 127.0.0.1 is up"),
        ({"operstate": "down"}, "! lo with 127.0.0.1 is down"),
        ({"operstate": "lowerlayerdown"}, "! lo with 127.0.0.1 is lowerlayerdown"),
        ({"operstate": "up", "carrier": "0"}, "! lo with 127.0.0.1 has no carrier"),
    ],
)
def test_the_interface_of_the_local_address(context, run, interfaces, files, found):
    asked = check(context, root=interfaces(lo=files), local_addr="127.0.0.1")
    assert run(asked) == [found]


def test_an_interface_of_ipv6(context, run, interfaces, tmp_path):
    root = interfaces(ib0={"operstate": "down"})
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/if_inet6").write_text("fd" + "0" * 29 + "7 02 40 00 80      ib0\n")
    asked = check(context, root=root, local_addr="fd00::7")
    assert run(asked) == ["! ib0 with fd00::7 is down"]


def test_an_address_without_an_interface_is_not_checked(context, run):
    found = run(check(context, local_addr="192.0.2.9"))
    assert found == ["no interface has 192.0.2.9: not checked"]


def test_one_node_needs_its_loopback_only(context, run):
    assert run(check(context, max_nodes=1)) == ["lo with 127.0.0.1 is up"]


# --- the endpoint ---------------------------------------------------------------------------------


def of_endpoint(run, asked, occasion=START):
    return run(asked, occasion)[1]


def test_an_endpoint_that_listens(context, run, elsewhere, listener):
    found = of_endpoint(run, check(context, f"127.0.0.1:{listener}"))
    assert found == f"127.0.0.1:{listener} accepts connections"


def test_the_host_of_the_endpoint_does_not_connect(context, run):
    where = refusing()
    assert of_endpoint(run, check(context, where), RESTART) == f"{where} is this node"


def test_a_refused_connection_is_only_a_warning_at_the_start(context, run, elsewhere):
    where = refusing()
    said = f"{where} cannot be reached: {where} has refused"
    asked = check(context, where)
    assert of_endpoint(run, asked) == f"? {said}"
    assert of_endpoint(run, asked, RESTART) == f"! {said}"


def test_static_listens_nowhere_between_rounds(context, run, elsewhere):
    where = refusing()
    found = of_endpoint(run, check(context, where, "static"), RESTART)
    assert found == f"{where} can be reached; nothing listens there between rounds"


def test_one_member_of_etcd_suffices_and_one_is_needed(context, run, listener):
    dead, living = refusing(), f"127.0.0.1:{listener}"
    asked = check(context, f"http://{dead}/,{living}", "etcd-v2")
    assert of_endpoint(run, asked) == f"{living} accepts connections"
    asked = check(context, dead, "acme:etcd")
    assert of_endpoint(run, asked) == f"! {dead} cannot be reached: {dead} has refused"


def test_an_unknown_name(context, run):
    found = of_endpoint(run, check(context, "no-such-host.invalid:1"), RESTART)
    assert found.startswith("! ")
    assert "no-such-host.invalid" in found


def test_a_backend_without_a_known_port(context, run):
    found = of_endpoint(run, check(context, "node0", "gossip"))
    assert found == "node0 names no port: not connected to"


def test_a_file_store_has_no_endpoint_to_connect_to(context, run, tmp_path):
    asked = check(context, f"{tmp_path}/store:1", rdzv_configs={"store_type": "file"})
    assert len(run(asked)) == 1
