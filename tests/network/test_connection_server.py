"""A server of any protocol; its limits are tested with `plaunch_status`."""

from __future__ import annotations

from helpers.programs import run_python

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
