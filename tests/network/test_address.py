"""Addresses, on this machine's real interfaces and in network namespaces."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from functools import partial

import pytest
from plaunch.errors import RendezvousConnectionError, UsageError
from plaunch_network.address import (
    SocketAddress,
    find_node_address,
    interface_addresses,
    is_loop_back,
    is_own_address,
    join_host_port,
    names_this_machine,
    parse_rendezvous_endpoint,
    resolve_host,
)

from helpers.machine_parts import need
from helpers.network import ip

FOREIGN = "192.0.2.77"  # reserved for documentation


def v4(host, port=1):
    return SocketAddress(socket.AF_INET, (host, port))


@pytest.fixture
def namespace():
    """Run code in a network namespace of its own, which has 10.9.0.1/24 and 10.9.0.2/24."""
    name = f"plaunch-{os.getpid()}"
    need("networks")
    ip("netns", "add", name)

    def run(code):
        code = f"from plaunch_network.address import *\n{code}"
        command = ["ip", "netns", "exec", name, sys.executable, "-c", code]
        return subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=60
        ).stdout.split()

    within = partial(ip, "-n", name)
    try:
        within("link", "set", "lo", "up")
        within("link", "add", "d0", "type", "veth", "peer", "name", "d1")
        for number in (1, 2):
            within("addr", "add", f"10.9.0.{number}/24", "dev", "d0")
        for device in ("d0", "d1"):
            within("link", "set", device, "up")
        yield within, run
    finally:
        ip("netns", "del", name)


@pytest.mark.parametrize(
    ("host", "port", "text"),
    [("a", 1, "a:1"), ("10.0.0.1", 2, "10.0.0.1:2"), ("::1", 3, "[::1]:3")],
)
def test_an_endpoint_is_formatted(host, port, text):
    assert join_host_port(host, port) == text


def test_literals_are_resolved_without_a_thread(monkeypatch):
    monkeypatch.setattr(threading, "Thread", None)
    assert resolve_host("127.0.0.1", 7) == (v4("127.0.0.1", 7),)
    (found,) = resolve_host("::1", 7)
    assert (found.family, found.host, found.port, str(found)) == (
        socket.AF_INET6,
        "::1",
        7,
        "[::1]:7",
    )


def test_names_are_resolved():
    assert all(is_loop_back(address.host) for address in resolve_host("localhost", 7))


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 70])
def test_an_unknown_name(host):
    with pytest.raises(RendezvousConnectionError, match=repr(host)):
        resolve_host(host, 1, timeout=30)


def test_a_silent_name_server_is_not_waited_for(monkeypatch):
    gone = threading.Event()
    look_up = socket.getaddrinfo

    def stuck(*words, flags=0, **options):
        if flags:
            return look_up(*words, flags=flags, **options)
        gone.wait(30)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", stuck)
    with pytest.raises(RendezvousConnectionError, match=r"not answered for 'node0' within 0\.01 s"):
        resolve_host("node0", 1, timeout=0.01)
    gone.set()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.0.1.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("::", False),
        ("fe80::1", False),
    ],
)
def test_loop_back(address, expected):
    assert is_loop_back(address) is expected


def test_own_and_foreign_addresses():
    assert is_own_address(v4("127.0.1.1"))
    assert not is_own_address(v4(FOREIGN))
    for text in interface_addresses():
        (address,) = resolve_host(text, 1)
        if not text.startswith("fe80:"):  # needs the interface's name
            assert is_own_address(address), text


def test_interfaces_end_with_loop_back():
    found = interface_addresses()
    assert "127.0.0.1" in found
    order = [is_loop_back(address) for address in found]
    assert order == sorted(order)


def test_with_nonlocal_bind_the_interfaces_decide(namespace):
    _, run = namespace
    code = (
        "import socket\n"
        "open('/proc/sys/net/ipv4/ip_nonlocal_bind', 'w').write('1')\n"
        "with socket.socket() as sock: sock.bind(('10.9.0.77', 0))\n"
        "for host in ('10.9.0.1', '10.9.0.2', '10.9.0.77'):\n"
        "    print(is_own_address(SocketAddress(socket.AF_INET, (host, 1))))"
    )
    assert run(code) == ["True", "True", "False"]


@pytest.mark.parametrize("local_addr", ["10.1.2.3", "node7"])
def test_a_given_address_is_used_unchanged(local_addr):
    assert find_node_address("localhost", 1, max_nodes=2, local_addr=local_addr) == local_addr


def test_one_node_stays_on_loop_back():
    assert find_node_address(FOREIGN, 1, max_nodes=1) == "127.0.0.1"


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("localhost", ("127.0.0.1", "::1"))],
)
def test_an_endpoint_on_loop_back(host, expected):
    found = find_node_address(host, 1, max_nodes=2)
    assert found == expected or found in expected


def test_the_interface_towards_the_endpoint(namespace):
    within, run = namespace
    within("route", "add", "10.20.0.0/16", "via", "10.9.0.99", "src", "10.9.0.2")
    within("route", "add", "default", "via", "10.9.0.99", "src", "10.9.0.1")
    code = (
        "for host in ('10.20.1.1', '10.30.1.1', ''): print(find_node_address(host, 1, max_nodes=2))"
    )
    assert run(code) == ["10.9.0.2", "10.9.0.1", "10.9.0.1"]


def test_a_name_that_only_this_machine_resolves_to_loop_back(namespace, monkeypatch):
    within, run = namespace
    within("route", "add", "default", "via", "10.9.0.99", "src", "10.9.0.1")
    code = (
        "import socket\n"
        "look_up = socket.getaddrinfo\n"
        "def from_hosts(host, *words, **options):\n"
        "    return look_up('127.0.1.1' if host == 'node0' else host, *words, **options)\n"
        "socket.getaddrinfo = from_hosts\n"
        "print(find_node_address('node0', 1, max_nodes=2))"
    )
    assert run(code) == ["10.9.0.1"]


def test_without_a_route_an_interface_is_used(namespace):
    _, run = namespace
    assert run("print(find_node_address('10.30.1.1', 1, max_nodes=2))") == ["10.9.0.1"]


def test_without_interfaces_the_hostname_is_used(namespace):
    within, run = namespace
    within("addr", "flush", "dev", "d0", "scope", "global")  # link-local addresses stay
    assert run("print(find_node_address(max_nodes=2))") == [socket.gethostname()]


def test_this_machine_by_name(monkeypatch):
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("", "Node0.example.org", "", "", "")))
    for host in ("node0.example.org", "NODE0.example.org.", "node0"):
        assert names_this_machine(host)
    for host in ("node1", "node0.other.org", ""):
        assert not names_this_machine(host)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, ("localhost", 29400)),
        ("", ("localhost", 29400)),
        ("  ", ("localhost", 29400)),
        ("node0", ("node0", 29400)),
        ("node0:1234", ("node0", 1234)),
        (" node0:0 ", ("node0", 0)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535)),
        ("[::1]:1234", ("::1", 1234)),
        ("[fe80::1]", ("fe80::1", 29400)),
        ("fe80::1", ("fe80::1", 29400)),
        ("[fe80::1%eth0]:7", ("fe80::1%eth0", 7)),
        ("my_host.example.org", ("my_host.example.org", 29400)),
        ("größe:1", ("größe", 1)),
    ],
)
def test_endpoints(text, expected):
    assert parse_rendezvous_endpoint(text, 29400) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("node0:", "node0:abc", "node0:65536", "node0:-1", ":1234", "[::1", "[::1]1234", "n:²"),
        *("tcp://localhost:0", "http://", "~:123", "a:1:2", "my node:1", "a,b:1", "[]:1", "a\0:1"),
        *("[a:b]:1", "::1%", "::1%a/b", "user@node0:1"),
    ],
)
def test_malformed_endpoints(text):
    with pytest.raises(UsageError, match="endpoint"):
        parse_rendezvous_endpoint(text, 29400)
