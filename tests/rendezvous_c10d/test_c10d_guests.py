"""The clients of a hosted store, and the job that it belongs to."""

from __future__ import annotations

import signal

from helpers.ports import free_port
from helpers.programs import running_python
from helpers.waiting import wait_until

from .conftest import port_of, tcp_connector

GUEST = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))):
    print("here", flush=True)
    sys.stdin.read()
"""


def test_another_process_is_a_guest_while_it_is_connected(prepare):
    with prepare("127.0.0.1:0", max_nodes=2, store="torch") as backend:
        assert not backend.has_guests()
        own = backend.connect()
        own.set("key", b"x")
        assert not backend.has_guests()
        with running_python("-c", GUEST, port_of(backend)) as guest:
            assert guest.stdout.readline() == "here\n"
            wait_until(backend.has_guests, "the guest")
            guest.send_signal(signal.SIGSTOP)
            assert backend.has_guests()
        wait_until(lambda: not backend.has_guests(), "no guest is left")
        own.close()


def connect(port, run_id):
    store = tcp_connector(port, run_id=run_id).connect()
    store.set("key", b"x")
    store.close()


def test_a_store_of_another_job_is_warned_about_with_its_run_id(prepare, caplog):
    with prepare(
        f"localhost:{free_port()}", max_nodes=2, store="torch"
    ) as backend:  # of the job 'job'
        connect(port_of(backend), "job")
        assert caplog.text == ""
        connect(port_of(backend), "job2")
    assert "another job, 'job'" in caplog.text
    assert "'job2' would then end with exit code 113" in caplog.text
    assert "--rdzv-endpoint" in caplog.text


def test_the_warning_is_logged_once(prepare, caplog):
    with prepare(f"localhost:{free_port()}", max_nodes=2, store="torch") as backend:
        connector = tcp_connector(port_of(backend), run_id="another")
        for _ in range(3):
            connector.connect().close()
    assert len(caplog.records) == 1


def test_a_store_without_a_run_id_gets_no_warning(start_server, caplog):
    connect(start_server().port, "another")
    assert caplog.text == ""
