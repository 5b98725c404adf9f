"""Held ports, on real sockets."""

from __future__ import annotations

import contextlib
import os
import socket

import pytest
from plaunch.errors import UsageError
from plaunch.rendezvous import HeldPort
from plaunch.rendezvous.ports import port_owner


@contextlib.contextmanager
def listening(port=0, family=socket.AF_INET, host="127.0.0.1"):
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen()
        yield sock.getsockname()[1]


def test_a_server_that_names_the_port_gets_it():
    with contextlib.closing(HeldPort.any()) as held, listening(held.port) as port:
        assert port == held.port


def test_the_kernel_gives_a_held_port_to_nobody_else():
    with contextlib.closing(HeldPort.any()) as held, contextlib.ExitStack() as stack:
        given = set()
        for _ in range(200):
            sock = stack.enter_context(socket.socket())
            sock.bind(("", 0))
            given.add(sock.getsockname()[1])
        assert held.port not in given


def test_torchs_store_can_be_hosted_on_a_held_port():
    distributed = pytest.importorskip("torch.distributed")
    with contextlib.closing(HeldPort.any()) as held:
        store = distributed.TCPStore("127.0.0.1", held.port, is_master=True)
        store.set("key", "value")
        assert store.get("key") == b"value"


def test_a_given_port_is_held():
    with contextlib.closing(HeldPort.any()) as free:
        port = free.port
    with contextlib.closing(HeldPort.given(port, "--master-port")) as held:
        assert held.port == port


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_taken_port_is_named_with_its_owner(host):
    with listening(host=host) as port:
        with pytest.raises(UsageError, match=rf"port {port} \(--master-port\) is taken") as caught:
            HeldPort.given(port, "--master-port")
        assert f"pid {os.getpid()}" in str(caught.value)


def test_nobody_owns_a_free_port():
    with contextlib.closing(HeldPort.any()) as held:
        assert port_owner(held.port) == ""


def test_closing_twice_is_fine():
    held = HeldPort.any()
    held.close()
    held.close()
