"""Ports that accept connections and send nothing, and what torch prints to stderr then."""

from __future__ import annotations

import contextlib
import os
import socket
import threading

import pytest
from plaunch.errors import RendezvousConnectionError
from plaunch_rendezvous_c10d.endpoint import ConnectBounds

from helpers.programs import run_python
from helpers.waiting import wait_until

from .conftest import tcp_connector


@contextlib.contextmanager
def taking_all_and_saying(nothing=b""):
    """Accept every connection, send `nothing`, and keep it open."""
    kept = []
    server = socket.create_server(("127.0.0.1", 0))

    def accept():
        with contextlib.suppress(OSError):
            while True:
                kept.append(server.accept()[0])
                kept[-1].sendall(nothing)

    thread = threading.Thread(target=accept)
    thread.start()

    def stop():
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        server.close()

    try:
        yield server.getsockname()[1], stop
    finally:
        with contextlib.suppress(OSError):
            stop()
        for sock in kept:
            sock.close()


def connector_to(port):
    """Its attempts time out after a tenth of a second, and few may be stuck."""
    bounds = ConnectBounds(timeout=0.1, min_timeout=0.1, max_stuck=2)
    return tcp_connector(port, bounds=bounds)


def test_a_silent_port_that_becomes_the_store_is_joined(start_server):
    with taking_all_and_saying() as (port, stop):
        connector = connector_to(port)
        for _ in range(6):
            with pytest.raises(RendezvousConnectionError, match="does not answer like a TCPStore"):
                connector.connect()
        stop()
        # Those connections are still open, as behind a proxy that waits for its server.
        start_server(port)

        def joins():
            with contextlib.suppress(RendezvousConnectionError):
                return connector.connect()

        wait_until(joins, "it joins").set("key", b"x")


def test_stuck_attempts_are_ended(capfd):
    with taking_all_and_saying() as (port, _):
        connector = connector_to(port)
        before = threading.active_count()
        for _ in range(4):
            with pytest.raises(RendezvousConnectionError):
                connector.connect()
        wait_until(lambda: threading.active_count() == before, "the threads have ended")
    assert capfd.readouterr().err == ""


def test_a_port_with_another_protocol_is_not_a_store(capfd):
    with taking_all_and_saying(b"HTTP/1.1 400 Bad Request\r\n\r\n") as (port, _):
        with pytest.raises(RendezvousConnectionError):
            connector_to(port).connect()
    assert capfd.readouterr().err == ""


WAITS = """
import os, sys
{first}
from plaunch_rendezvous_c10d import prepare_backend
from plaunch.rendezvous import RendezvousParameters
params = [RendezvousParameters("c10d", "", str(n), 1, 1, store="torch") for n in range(2)]
backends = [prepare_backend(each) for each in params]
for backend in backends:
    assert backend.connect().wait("never", 0.05) is None
    backend.release()
    print("quiet so far", file=sys.stderr)
{last}
"""
NOISE = """
import datetime
from plaunch_network import create_tcp_store
where = {"host_name": "127.0.0.1", "port": 0, "is_master": True, "wait_for_workers": False}
store = create_tcp_store(torch.distributed.TCPStore, **where)
try:
    store.wait(["never"], datetime.timedelta(milliseconds=50))
except RuntimeError:
    pass
"""


def run_waits(first, last="", **environ):
    kept = {name: value for name, value in os.environ.items() if name != "TORCH_CPP_LOG_LEVEL"}
    return run_python(
        "-c", WAITS.format(first=first, last=last), env={**kept, **environ}, check=True
    ).stderr


@pytest.mark.parametrize("first", ["import torch", "import torch.distributed", ""])
def test_waits_print_nothing_however_torch_was_loaded(first):
    assert run_waits(first).splitlines() == ["quiet so far"] * 2


def test_torchs_messages_for_others_are_printed_again_afterwards():
    said = run_waits("import torch", NOISE).splitlines()
    assert said[:2] == ["quiet so far"] * 2
    assert "timed out" in "".join(said[2:])


def test_a_user_who_sets_torchs_log_level_gets_its_messages():
    said = run_waits("import torch", TORCH_CPP_LOG_LEVEL="WARNING")
    assert "timed out" in said
