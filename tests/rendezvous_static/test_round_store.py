"""The store of a round of the static backend, for programs that read it, on real sockets."""

from __future__ import annotations

import socket
from datetime import timedelta

import pytest

pytest.importorskip("torch.distributed")

from plaunch.errors import RendezvousConnectionError
from plaunch.rendezvous import RendezvousParameters
from plaunch_network import create_tcp_store
from plaunch_rendezvous_static import create_static_handler
from torch.distributed import PrefixStore, TCPStore

from helpers.calls import Call
from helpers.ports import free_port
from helpers.programs import run_python


@pytest.fixture
def create():
    handlers = []

    def create(endpoint="", max_nodes=1, **config):
        params = RendezvousParameters("static", endpoint, "job", 1, max_nodes, **config)
        handlers.append(create_static_handler(params))
        return handlers[-1]

    yield create
    for handler in handlers:
        handler.shutdown()


def is_open(port):
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def test_one_node_has_a_store_of_each_round_once_it_is_read(create):
    handler = create()
    first, second = handler.next_rendezvous(), handler.next_rendezvous()
    assert not is_open(second.bootstrap_store_info.master_port)
    assert not handler.hosts_worker_store
    assert isinstance(second.store, PrefixStore)
    assert second.store is second.store
    assert handler.hosts_worker_store
    second.store.set("key", "second")
    first.store.set("key", "first")
    assert second.store.get("key") == b"second"
    where = second.bootstrap_store_info
    workers = create_tcp_store(
        TCPStore, host_name=where.master_addr, port=where.master_port, is_master=False
    )
    assert PrefixStore("job", workers).get("key") == b"second"  # they share it, as with torchrun
    assert handler.next_rendezvous().bootstrap_store_info.master_port != where.master_port
    assert not handler.hosts_worker_store


def test_nodes_with_given_ranks_share_the_store(create):
    endpoint = f"127.0.0.1:{free_port()}"
    nodes = [create(endpoint, max_nodes=2, rank=rank) for rank in range(2)]
    rounds = [node.next_rendezvous() for node in nodes]
    other = Call(lambda: rounds[1].store)  # waits for node 0
    stores = [rounds[0].store, other.get()]
    stores[0].set("key", "value")
    assert stores[1].get("key") == b"value"
    assert [store.add("count", 1) for store in stores] == [1, 2]
    with pytest.raises(Exception, match=r"(?i)timeout"):
        stores[1].wait(["missing"], timedelta(milliseconds=10))
    # Their agents restart alone, so a further round of one of them has the same keys.
    assert nodes[1].next_rendezvous().store.get("key") == b"value"
    assert nodes[0].next_rendezvous().store.get("key") == b"value"
    assert [node.hosts_worker_store for node in nodes] == [True, False]


def test_an_unreachable_store_is_an_error_and_retried(create):
    port = free_port()
    node = create(f"127.0.0.1:{port}", max_nodes=2, rank=1, timeout=0.3)
    info = node.next_rendezvous()
    with pytest.raises(RendezvousConnectionError, match=rf"127.0.0.1:{port}.*cannot be opened"):
        _ = info.store
    host = create(f"127.0.0.1:{port}", max_nodes=2, rank=0).next_rendezvous()
    host.store.set("key", "value")
    assert info.store.get("key") == b"value"


AGENT = """
import sys
from plaunch_torchrun.elastic.agent import LocalElasticAgent, WorkerSpec
from plaunch_torchrun.elastic.multiprocessing import DefaultLogsSpecs
from plaunch_torchrun.elastic.rendezvous import RendezvousParameters, get_rendezvous_handler

class Agent(LocalElasticAgent):
    def _start_workers(self, worker_group):
        if "before" in sys.argv:
            worker_group.store.set("key", "before")
        return super()._start_workers(worker_group)

    def _monitor_workers(self, worker_group):
        if "before" not in sys.argv:
            assert worker_group.store.add("key", 1)
        return super()._monitor_workers(worker_group)

WORKER = '''
import os
from plaunch_network import create_tcp_store
from torch.distributed import PrefixStore, TCPStore
where = {"host_name": os.environ["MASTER_ADDR"], "port": int(os.environ["MASTER_PORT"])}
store = PrefixStore("job", create_tcp_store(TCPStore, **where, is_master=False))
print(store.get("key").decode() if store.check(["key"]) else "alone", flush=True)
'''
handler = get_rendezvous_handler(RendezvousParameters("static", "", "job", 1, 1, rank=0))
spec = WorkerSpec(
    "default", 1, entrypoint=sys.executable, args=("-c", WORKER), rdzv_handler=handler
)
print(Agent(spec, DefaultLogsSpecs()).run().state.name)
"""


@pytest.mark.parametrize(("when", "found"), [("before", "before"), ("later", "alone")])
def test_an_agent_reads_it_and_shares_it_with_workers_that_start_later(when, found):
    done = run_python("-c", AGENT, when)
    assert done.stdout.split() == [found, "SUCCEEDED"], done.stderr


def test_an_ordinary_launch_neither_opens_it_nor_imports_torch():
    program = (
        "import sys, plaunch\n"
        "config = plaunch.LaunchConfig(1, 1, 1)\n"
        "plaunch.elastic_launch(config, sys.executable)('-c', '')\n"
        "assert 'torch' not in sys.modules\n"
        "assert 'plaunch_rendezvous_static.round_store' not in sys.modules\n"
    )
    done = run_python("-c", program)
    assert done.returncode == 0, done.stderr
