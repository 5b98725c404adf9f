"""Names, interfaces, endpoints and ports."""

from __future__ import annotations

import socket

import pytest
from plaunch.doctor import Status
from plaunch.errors import RendezvousConnectionError
from plaunch.plugin import RENDEZVOUS, PluginManager
from plaunch.rendezvous import BackendTraits, traits_of
from plaunch_doctor.endpoint import check_endpoint, check_ports
from plaunch_doctor.host import check_host_name, check_interfaces
from plaunch_doctor.network import ACCEPTED, FORBIDDEN, FREE, REFUSED, SILENT, TAKEN, Network
from plaunch_network.address import SocketAddress

OK, WARNING, PROBLEM = Status.OK, Status.WARNING, Status.PROBLEM
GLOO = {"GLOO_SOCKET_IFNAME": "eth0"}


@pytest.mark.parametrize(
    ("numbers", "max_nodes", "environ", "status", "said"),
    [
        (["10.0.0.7"], 2, {}, OK, "node7 -> 10.0.0.7"),
        (["127.0.1.1"], 2, {}, PROBLEM, "loopback only (Debian"),
        (["127.0.1.1"], 2, GLOO, OK, "loopback only"),
        (["127.0.1.1"], 1, {}, OK, "127.0.1.1"),
        (["127.0.1.1", "10.0.0.7"], 2, {}, OK, "10.0.0.7"),
        (["10.9.9.9"], 2, {}, PROBLEM, "not an address of this machine"),
        (["10.9.9.9"], 1, {}, WARNING, "not an address of this machine"),
        (["10.0.0.7", "10.9.9.9"], 2, {}, WARNING, "10.9.9.9 is not"),
        (None, 2, {}, PROBLEM, "no address here"),
        (None, 2, GLOO, WARNING, "no address here"),
        (None, 1, {}, WARNING, "no address here"),
    ],
)
def test_the_addresses_of_the_host_name(node, numbers, max_nodes, environ, status, said):
    node.network.hosts = {} if numbers is None else {"node7": numbers}
    given = {"settings": {"max_nodes": max_nodes}, "environ": environ}
    node.check_says(status, said, check_host_name, "host name", **given)


@pytest.mark.parametrize(
    ("names", "status", "said"),
    [
        (["node7.example"], OK, "10.0.0.7 -> node7.example"),
        (["NODE7"], OK, "NODE7"),
        (["localhost"], OK, "localhost"),
        ([], OK, "no name"),
        (["ip-10-0-0-7.internal"], WARNING, "which is not node7"),
    ],
)
def test_the_name_of_the_address(node, names, status, said):
    node.network.names = {"10.0.0.7": names}
    node.check_says(status, said, check_host_name, "reverse name")


def test_a_name_server_that_does_not_answer(node):
    def silent(address, timeout):
        raise RendezvousConnectionError(f"no answer within {timeout:g} s")

    node.network.names_of = silent
    assert node.only(check_host_name, "reverse name").status is WARNING


@pytest.mark.parametrize(
    ("variable", "value", "status"),
    [
        ("GLOO_SOCKET_IFNAME", "eth0", OK),
        ("GLOO_SOCKET_IFNAME", "eth", PROBLEM),
        ("GLOO_SOCKET_IFNAME", "eth0,ib0", PROBLEM),
        ("NCCL_SOCKET_IFNAME", "eth", OK),  # a prefix
        ("NCCL_SOCKET_IFNAME", "=eth", PROBLEM),
        ("NCCL_SOCKET_IFNAME", "=eth0", OK),
        ("NCCL_SOCKET_IFNAME", "ib,eth", OK),  # one of them suffices
        ("NCCL_SOCKET_IFNAME", "ib", PROBLEM),
        ("NCCL_SOCKET_IFNAME", "^docker", OK),
    ],
)
def test_interfaces_that_variables_name(node, variable, value, status):
    for name in ("eth0", "lo"):
        node.write(f"/sys/class/net/{name}")
    assert node.only(check_interfaces, environ={variable: value}).status is status


def settings(backend, endpoint="", max_nodes=2, **configs):
    return {
        "rdzv_backend": backend,
        "rdzv_endpoint": endpoint,
        "max_nodes": max_nodes,
        "rdzv_configs": configs,
    }


MANAGER = PluginManager.create(environ={}, first_party_only=True)


def endpoint_of(node, given, traits=None):
    backend = given.get("rdzv_backend", "acme")
    if traits is None:
        is_ours = not backend.startswith("acme")
        traits = traits_of(MANAGER.get(RENDEZVOUS, backend)) if is_ours else BackendTraits()
    found = node.check(check_endpoint, settings=given, traits=traits)
    found = [finding for finding in found if finding.what == "endpoint"]
    assert all(bool(f.advice) == (f.status is not OK) for f in found)
    return found


@pytest.mark.parametrize(
    ("options", "environ", "said"),
    [
        (
            {},
            {},
            "none, and several nodes; every program that reaches the endpoint can read",
        ),
        ({"token_file": "/secret"}, {}, "given"),
        ({}, {"PLAUNCH_RDZV_TOKEN": "x" * 16}, "given"),
    ],
)
def test_the_job_token_is_described(node, options, environ, said):
    given = settings("c10d", "10.0.0.7:29400", **options)
    traits = traits_of(MANAGER.get(RENDEZVOUS, "c10d"))
    found = node.check(check_endpoint, settings=given, traits=traits, environ=environ)
    (token,) = (finding for finding in found if finding.what == "job token")
    assert token.status is (OK if said == "given" else WARNING)
    assert said in token.found


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        ({}, OK, "not known"),
        (settings("static", max_nodes=1), OK, "not needed"),
        (settings("acme"), OK, "is not known"),
        (settings("c10d", "host:port"), PROBLEM, "'port'"),
        (settings("c10d", "elsewhere:29400"), PROBLEM, "no address"),
        (settings("c10d", "10.0.0.7:29400"), OK, "the port is free"),
        (settings("c10d", "10.0.0.7:29401"), WARNING, "pid 12 (python) listens"),
        (settings("c10d", "10.0.0.7:80"), PROBLEM, "may not listen"),
        (settings("c10d", "10.0.0.1:29400"), OK, "accepts connections"),
        (settings("c10d", "10.0.0.1"), OK, "accepts connections"),
        (settings("c10d", "10.0.0.2:29400"), WARNING, "nothing listens"),
        (settings("c10d", "10.0.0.3:29400"), PROBLEM, "does not answer"),
        (settings("static", "10.0.0.7:29400", rank=0), OK, "the port is free"),
        (settings("static", "10.0.0.7:29401", rank=0), PROBLEM, "taken by pid 12"),
        (settings("static", "10.0.0.1:29400", rank=0), PROBLEM, "this is node 0"),
        (settings("static", "10.0.0.2:29400", rank=1), WARNING, "nothing listens"),
        # Node 0 is on this machine too, and listens.
        (settings("static", "10.0.0.7:29400", rank=1), WARNING, "nothing listens"),
        (settings("acme:gossip", "10.0.0.1:29400"), OK, "accepts connections"),
    ],
)
def test_the_endpoint(node, given, status, said):
    node.network.ports = {29401: TAKEN, 80: FORBIDDEN}
    node.network.answers = {"10.0.0.1:29400": ACCEPTED, "10.0.0.2:29400": REFUSED}
    node.network.answers["10.0.0.7:29400"] = REFUSED
    (found,) = endpoint_of(node, given)
    assert found.status is status
    assert said in found.found


@pytest.mark.parametrize(
    ("traits", "answer", "said"),
    [
        (BackendTraits(default_port=7000), "10.0.0.1:7000", "10.0.0.1:7000 accepts connections"),
        (BackendTraits(), "10.0.0.1:29400", "'10.0.0.1' names no port"),
    ],
)
@pytest.mark.parametrize("backend", ["acme:gossip", "acme:etcd"])
def test_the_backend_declares_the_default_port(node, backend, traits, answer, said):
    node.network.answers = {answer: ACCEPTED}
    (found,) = endpoint_of(node, settings(backend, "10.0.0.1"), traits)
    assert (found.status, said in found.found) == (OK, True)


def test_a_loopback_endpoint_for_several_nodes_is_a_warning(node):
    found = endpoint_of(node, settings("c10d", "127.0.0.1:29400"))
    assert [finding.status for finding in found] == [WARNING, OK]
    assert "loopback" in found[0].found


def test_an_ipv6_endpoint_on_a_node_without_ipv6(node):
    given = settings("c10d", "[2001:db8::7]:29400")
    (found,) = endpoint_of(node, given)
    assert (found.status, "IPv6 is disabled" in found.found) == (PROBLEM, True)
    node.write("/proc/net/if_inet6", "1 line")
    node.write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1\n")
    assert endpoint_of(node, given)[0].found == found.found
    node.write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "0\n")
    assert "does not answer" in endpoint_of(node, given)[0].found


@pytest.mark.parametrize("backend", ["etcd", "etcd-v2", "plaunch:etcd"])
@pytest.mark.parametrize(
    ("endpoint", "statuses"),
    [
        ("10.0.0.1:2379", [OK]),
        ("http://10.0.0.1:2379/,10.0.0.3", [OK, WARNING]),
        ("10.0.0.3,10.0.0.4", [PROBLEM, PROBLEM]),
        ("nowhere", [PROBLEM]),
        ("10.0.0.1:x", [PROBLEM]),
    ],
)
def test_the_members_of_etcd(node, backend, endpoint, statuses):
    node.network.answers = {"10.0.0.1:2379": ACCEPTED}
    found = endpoint_of(node, settings(backend, endpoint))
    assert [finding.status for finding in found] == statuses


def test_proxies_are_mentioned_for_etcd(node):
    environ = {"HTTPS_PROXY": "http://proxy", "PATH": "/bin"}
    etcd = settings("etcd", "10.0.0.1")
    assert node.only(check_endpoint, "proxies", settings=etcd, environ=environ).status is OK
    assert not [f for f in node.check(check_endpoint, settings=etcd) if f.what == "proxies"]


@pytest.mark.parametrize(("folder", "status"), [("", OK), ("missing", PROBLEM)])
def test_a_store_that_is_a_file(node, tmp_path, folder, status):
    given = settings("c10d", str(tmp_path / folder / "store"), store_type="file")
    assert endpoint_of(node, given)[0].status is status


def sockets(ports):
    rows = [f"  {n}: 00000000:{port:04X} 0:0 0A" for n, port in enumerate(ports)]
    return "\n".join(["  sl  local_address", *rows])


@pytest.mark.parametrize(("last", "status"), [(60999, OK), (33000, WARNING)])
def test_ephemeral_ports(node, last, status):
    node.write("/proc/sys/net/ipv4/ip_local_port_range", f"32768\t{last}\n")
    node.write("/proc/net/tcp", sockets([32768, 32769, 22]))
    node.write("/proc/net/tcp6", sockets([32769]))
    found = node.only(check_ports, "free ports")
    assert found.status is status
    assert found.found.startswith(f"{last - 32768 + 1 - 2} of {last - 32768 + 1} ")


def test_no_port_at_all(node):
    node.network.ports = {0: TAKEN}
    assert node.only(check_ports, "free ports").status is PROBLEM


def test_a_master_port_in_the_ephemeral_range(node):
    node.write("/proc/sys/net/ipv4/ip_local_port_range", "32768 60999")
    found = node.only(check_ports, "master port", options={"master_port": 40000})
    assert found.status is WARNING
    node.write("/proc/sys/net/ipv4/ip_local_reserved_ports", "40000")
    for options in ({"master_port": 29500}, {"master_port": 40000}):
        found = node.check(check_ports, options=options)
        assert "master port" not in [finding.what for finding in found]


@pytest.mark.parametrize(("free", "status"), [(0, PROBLEM), (1, WARNING), (2, OK)])
def test_a_range_of_ports(node, free, status):
    node.network.ports = dict.fromkeys(range(29500 + free, 29600), TAKEN)
    found = node.only(check_ports, "port range", options={"port_range": (29500, 29599)})
    assert (found.status, found.found[:2]) == (status, f"{free} ")


def test_only_some_ports_of_a_large_range_are_tried(node):
    node.check(check_ports, options={"port_range": (1024, 65535)})
    assert len(node.network.tried) < 300


# --- the real network -----------------------------------------------------------------------------


def test_a_port_with_a_listener_is_taken_and_accepts():
    network = Network()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        address = SocketAddress(socket.AF_INET, ("127.0.0.1", port))
        assert network.bind(port) == TAKEN
        assert network.connect(address, 5.0) == (ACCEPTED, "")
        assert "pid" in network.owner(port)
        assert network.is_own(address)
    assert network.bind(port) == FREE
    assert network.connect(address, 5.0)[0] == REFUSED


def test_an_address_without_a_route_is_silent():
    address = SocketAddress(socket.AF_INET, ("255.255.255.255", 9))
    assert Network().connect(address, 1.0)[0] == SILENT


def test_loopback_is_resolved_in_time():
    assert isinstance(Network().names_of("127.0.0.1", 30.0), list)


def test_a_hanging_resolver_is_abandoned(monkeypatch, gate):
    def hang(address):
        gate.wait(60)
        raise OSError

    monkeypatch.setattr(socket, "gethostbyaddr", hang)
    with pytest.raises(RendezvousConnectionError, match="not answered"):
        Network().names_of("10.0.0.7", 0.05)
