"""Reserved ports, on real sockets."""

from __future__ import annotations

import contextlib
import errno
import os
import socket

import pytest
from plaunch.errors import UsageError
from plaunch_network import HeldPort, ports
from plaunch_network.ports import port_owner

from helpers.faults import refuse_to_bind
from helpers.ports import free_port
from helpers.programs import run_python


@contextlib.contextmanager
def listening(port=0, family=socket.AF_INET, host="127.0.0.1"):
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen()
        yield sock.getsockname()[1]


def test_a_server_that_binds_the_port_by_number_gets_it():
    with contextlib.closing(HeldPort.any()) as held, listening(held.port) as port:
        assert port == held.port


def test_the_kernel_never_assigns_a_held_port():
    with contextlib.closing(HeldPort.any()) as held, contextlib.ExitStack() as stack:
        given = set()
        for _ in range(200):
            sock = stack.enter_context(socket.socket())
            sock.bind(("", 0))
            given.add(sock.getsockname()[1])
        assert held.port not in given


@pytest.mark.needs("libuv")
def test_torchs_store_can_be_hosted_on_a_held_port():
    distributed = pytest.importorskip("torch.distributed")
    with contextlib.closing(HeldPort.any()) as held:
        store = distributed.TCPStore("127.0.0.1", held.port, is_master=True)
        store.set("key", "value")
        assert store.get("key") == b"value"


def test_a_given_port_is_held():
    port = free_port()
    with contextlib.closing(HeldPort.given(port, "--master-port")) as held:
        assert held.port == port


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_taken_port_is_reported_with_its_owner(host):
    with listening(host=host) as port:
        with pytest.raises(UsageError, match=rf"port {port} \(--master-port\) is taken") as caught:
            HeldPort.given(port, "--master-port")
        assert f"pid {os.getpid()}" in str(caught.value)


def test_a_free_port_has_no_owner():
    with contextlib.closing(HeldPort.any()) as held:
        assert port_owner(held.port) == ""
        held.close()  # and once more at the end


# --- ranges ---------------------------------------------------------------------------------------


def free_range(count):
    """Return a range of currently free ports outside of those that the kernel assigns."""
    for first in range(20000, 30000, count):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    sock = stack.enter_context(socket.socket())
                    sock.bind(("", port))
            except OSError:
                continue
            return first, first + count - 1
    pytest.skip("there are no free ports in a row")


def test_all_ports_of_a_range_are_used():
    first, last = free_range(3)
    with contextlib.ExitStack() as stack:

        def hold():
            return stack.enter_context(contextlib.closing(HeldPort.any((first, last))))

        held = [hold() for _ in range(3)]
        assert {port.port for port in held} == {first, first + 1, last}
        with pytest.raises(UsageError, match=rf"none of the 3 ports from {first} to {last} \(--p"):
            hold()
        held[1].close()
        assert hold().port == held[1].port


def test_two_launchers_never_hold_one_port_of_a_range():
    """Although each would let the other bind it."""
    first, last = free_range(1)
    code = f"from plaunch_network import HeldPort\nHeldPort.any(({first}, {last}))"
    with contextlib.closing(HeldPort.any((first, last))) as held:
        assert held.port == first
        assert "none of the 1 ports" in run_python("-c", code).stderr
    run_python("-c", code, check=True)


def test_ports_with_a_listener_are_skipped():
    first, last = free_range(2)
    with listening(first, host=""):
        for _ in range(8):  # it starts at a random port
            with contextlib.closing(HeldPort.any((first, last))) as held:
                assert held.port == last


def test_a_server_gets_its_port_of_a_range_too():
    with contextlib.closing(HeldPort.any(free_range(2))) as held, listening(held.port) as port:
        assert port == held.port


def test_a_range_that_may_not_be_bound(monkeypatch):
    refuse_to_bind(monkeypatch, PermissionError(errno.EACCES, "Permission denied"))
    with pytest.raises(UsageError, match=r"80 of 80-80 \(--port-range\) cannot be bound: P"):
        HeldPort.any((80, 80))


ROW = "   0: 0100007F:{port:04X} 00000000:0000 {state} 0 0 0 0 0 {inode} 1\n"


def test_only_sockets_that_listen_are_read_to_find_one(tmp_path, monkeypatch):
    """A host may have very many connections, which the kernel lists behind them."""
    table = tmp_path / "tcp"
    rows = [ROW.format(port=29400, state="0A", inode=7), ROW.format(port=9, state="0A", inode=8)]
    rows += [ROW.format(port=29401, state="01", inode=9), "a row\n"]
    table.write_text("".join(["  sl  local_address\n", *rows]))
    monkeypatch.setattr(ports, "_TABLES", (str(table), str(tmp_path / "tcp6")))
    assert [ports.has_listener(port) for port in (29400, 9, 29401, 10)] == [
        True,
        True,
        False,
        False,
    ]
    with pytest.raises(IndexError):
        ports.count_connections(29401)
    monkeypatch.setattr(ports, "_TABLES", (str(tmp_path / "none"),))
    assert ports.has_listener(10)
    assert ports.count_connections(10) == 0
