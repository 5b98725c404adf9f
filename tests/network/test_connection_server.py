"""A server of any protocol; its limits are tested with `plaunch_status`."""

from __future__ import annotations

import socket
import threading

from plaunch_network import ConnectionServer, connection_server

from helpers.programs import run_python
from helpers.waiting import wait_until

# A forked process, as workers may be, outlives the server.
FORKED = """\
import os, socket
from plaunch_network import ConnectionServer

listener = socket.create_server(("127.0.0.1", 0))
listener.setblocking(False)
address = listener.getsockname()
server = ConnectionServer(listener, lambda connection: connection.sendall(b"hello"), name="test")
over, end = os.pipe()
child = os.fork()
if not child:
    os.close(end)
    os.read(over, 1)
    os._exit(0)
server.start()
with socket.create_connection(address) as asking:
    print(asking.recv(99).decode())
server.stop()
try:
    socket.create_connection(address, 5).close()
    print("listens")
except ConnectionRefusedError:
    print("refused")
os.close(end)
os.waitpid(child, 0)
"""


def test_a_forked_process_does_not_keep_the_address():
    run = run_python("-c", FORKED)
    assert (run.stdout.split(), run.stderr) == (["hello", "refused"], "")


def test_a_connection_that_was_cut_off_is_waited_for(monkeypatch):
    """Its thread must have ended before the process may fork."""
    monkeypatch.setattr(connection_server, "_REST_WAIT", 60.0)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    address = listener.getsockname()
    may_end = threading.Event()
    has_ended = threading.Event()

    def answer(connection):
        may_end.wait()
        has_ended.set()

    server = ConnectionServer(listener, answer, name="test", timeout=0.01)
    server.start()
    with socket.create_connection(address) as asking:
        assert asking.recv(1) == b""  # it is late
        resting = threading.Thread(target=server.stop)
        resting.start()
        wait_until(lambda: server._thread is None, "the stop has begun")
        resting.join(2 * connection_server._ANSWER_WAIT)
        assert resting.is_alive()
        may_end.set()
        resting.join()
    assert has_ended.is_set()
