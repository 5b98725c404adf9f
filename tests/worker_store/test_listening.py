"""The address at which the launcher listens for the workers."""

from __future__ import annotations

import contextlib
import errno
import socket

import pytest
from plaunch.errors import WorkerStoreError
from plaunch_network import HeldPort
from plaunch_worker_store.listening import listen, own_address

from helpers.faults import refuse_to_bind
from helpers.ports import free_port


def where(name, *, nodes):
    with contextlib.closing(listen(name, free_port(), nodes=nodes)) as sock:
        port = sock.getsockname()[1]
        socket.create_connection((own_address(sock), port), 5).close()
        return sock.getsockname()[0]


@pytest.fixture
def names(monkeypatch):
    """Set the addresses to which names resolve."""

    def say(*hosts):
        look_up = socket.getaddrinfo

        def resolve(host, *words, flags=0, **options):
            if flags & socket.AI_NUMERICHOST or host != "a-name":
                return look_up(host, *words, flags=flags, **options)
            if not hosts:
                raise socket.gaierror(socket.EAI_NONAME, "unknown")
            return [found for one in hosts for found in look_up(one, *words, **options)]

        monkeypatch.setattr(socket, "getaddrinfo", resolve)

    return say


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("number", ["127.0.0.1", "127.0.0.7", "::1"])
def test_a_numeric_address_of_this_machine_is_used_unchanged(number, nodes):
    assert where(number, nodes=nodes) == number


@pytest.mark.parametrize("number", ["192.0.2.1", "2001:db8::1"])
def test_a_foreign_numeric_address_means_all_interfaces(number):
    assert where(number, nodes=2) in ("::", "0.0.0.0")


@pytest.mark.parametrize(
    ("hosts", "bound"),
    [
        (["127.0.1.1"], "127.0.1.1"),
        (["127.0.0.1", "::1"], "::1"),
        (["192.0.2.1"], "::"),
        (["127.0.0.1", "192.0.2.1"], "::"),
        ([], "::"),
    ],
)
def test_a_name_on_one_node(names, hosts, bound):
    names(*hosts)
    assert where("a-name", nodes=1) == bound


def test_with_several_nodes_a_name_means_all_interfaces(names):
    names("127.0.1.1")
    assert where("a-name", nodes=2) == "::"


def test_a_held_port_can_be_listened_on():
    held = HeldPort.any()
    with contextlib.closing(held), contextlib.closing(listen("127.0.0.1", held.port, nodes=1)):
        socket.create_connection(("127.0.0.1", held.port), 5).close()


def test_the_owner_of_a_taken_port_is_named():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(WorkerStoreError, match=rf"127\.0\.0\.1:{port} .* taken by pid \d+"):
            listen("127.0.0.1", port, nodes=1)


def test_an_invalid_port():
    with pytest.raises(WorkerStoreError, match=r"there is no such port; choose another port$"):
        listen("127.0.0.1", 70000, nodes=1)


def test_a_privileged_port_is_not_offered_to_a_worker(monkeypatch):
    refuse_to_bind(monkeypatch, PermissionError(errno.EACCES, "Permission denied"))
    with pytest.raises(WorkerStoreError, match=r"Permission denied; choose another port$"):
        listen("127.0.0.1", 80, nodes=1)
