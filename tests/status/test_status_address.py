"""The address of the status pages."""

from __future__ import annotations

import os
import socket

import pytest
from plaunch.errors import UsageError
from plaunch_status.address import listen, parse_address


@pytest.mark.parametrize(
    ("value", "host", "port"),
    [
        (9400, "", 9400),
        ("9400", "", 9400),
        ("0", "", 0),
        ("0.0.0.0:9400", "0.0.0.0", 9400),
        ("node7:1", "node7", 1),
        ("[::1]:65535", "::1", 65535),
    ],
)
def test_addresses(value, host, port):
    assert parse_address(value, "here") == (host, port)


@pytest.mark.parametrize(
    "value", ["", "x", ":9400", "host:", "host:x", "::1:9400", "[]x:1", "65536", -1, "1:2:3", "٣"]
)
def test_invalid_addresses(value):
    with pytest.raises(UsageError, match=r"here is .*HOST:PORT"):
        parse_address(value, "here")


def test_by_default_only_this_host_can_connect():
    with listen("", 0, "here") as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
        assert not listener.get_inheritable()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
@pytest.mark.parametrize(("host", "reached"), [("::1", "::1"), ("::", "127.0.0.1")])
def test_ipv6_and_all_addresses_of_both_kinds(host, reached):
    with listen(host, 0, "here") as listener:
        port = listener.getsockname()[1]
        with socket.create_connection((reached, port), timeout=5) as client:
            assert client.getpeername()[:2] == (reached, port)


def test_a_port_that_is_taken_names_its_owner():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UsageError) as caught:
            listen("", port, "--metrics-port")
    said = str(caught.value)
    assert said.startswith(f"--metrics-port cannot serve at 127.0.0.1:{port}: the port is taken")
    assert f"pid {os.getpid()}" in said


@pytest.mark.parametrize(
    ("host", "said"),
    [("192.0.2.1", "this host has no such address"), ("no such name", "has no address")],
)
def test_an_address_that_cannot_be_used(host, said):
    with pytest.raises(UsageError, match=said):
        listen(host, 0, "here")
