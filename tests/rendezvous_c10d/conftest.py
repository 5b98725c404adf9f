"""Real stores: a server in this process, a server in another process, a file."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import pytest

pytest.importorskip("torch.distributed")

from plaunch.rendezvous import RendezvousParameters
from plaunch_rendezvous_c10d import prepare_backend
from plaunch_rendezvous_c10d.endpoint import CONNECT_BOUNDS, StoreEndpoint
from plaunch_rendezvous_c10d.tcp_connecting import TcpStoreConnector

from helpers.programs import running_python

SERVER = """
import sys
from plaunch_rendezvous_c10d.hosting import listen
from plaunch_rendezvous_c10d.tcp_hosting import HostedTcpStore
host = HostedTcpStore(listen("localhost", int(sys.argv[1]), is_local=True))
print(host.port, flush=True)
sys.stdin.read()
"""


def parameters(endpoint="", max_nodes=1, local_addr=None, **config):
    return RendezvousParameters("c10d", endpoint, "job", 1, max_nodes, local_addr, **config)


def port_of(backend):
    return int(backend.endpoint.rpartition(":")[2])


@contextlib.contextmanager
def prepared(*args, bounds=CONNECT_BOUNDS, **config):
    backend = prepare_backend(parameters(*args, **config), bounds)
    try:
        yield backend
    finally:
        backend.release()


def tcp_connector(port, read_timeout=60.0, run_id="", **options):
    endpoint = StoreEndpoint("127.0.0.1", port, **options)
    return TcpStoreConnector(endpoint, read_timeout, run_id)


@dataclass
class Server:
    process: object
    port: int

    def connector(self, read_timeout=60.0, **options):
        return tcp_connector(self.port, read_timeout, **options)


@pytest.fixture
def start_server():
    with contextlib.ExitStack() as stack:

        def start(port=0):
            process = stack.enter_context(running_python("-c", SERVER, port))
            return Server(process, int(process.stdout.readline()))

        yield start


@pytest.fixture
def prepare():
    return prepared


@pytest.fixture
def params_of():
    return parameters
