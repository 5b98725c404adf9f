"""The store of a round, for programs that read it: torch's `PrefixStore`, shared by the nodes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from plaunch.rendezvous import RendezvousParameters
from plaunch_network import count_connections
from plaunch_rendezvous_c10d import create_c10d_handler
from plaunch_torchrun.elastic.utils import barrier, synchronize
from torch.distributed import PrefixStore

from helpers.calls import Call
from helpers.ports import free_port


@pytest.fixture(params=["job", "tcp", "file"])
def endpoint(request, tmp_path):
    if request.param == "file":
        return {"endpoint": str(tmp_path / "store"), "store_type": "file"}
    store = "job" if request.param == "job" else "torch"
    return {"endpoint": f"localhost:{free_port()}", "store": store}


@pytest.fixture
def create():
    handlers = []

    def create(endpoint, nodes=2, **config):
        params = RendezvousParameters("c10d", endpoint, "job", nodes, nodes, **config)
        handlers.append(create_c10d_handler(params))
        return handlers[-1]

    yield create
    for handler in handlers:
        handler.leave()


def join(nodes):
    return [call.get() for call in [Call(node.next_rendezvous) for node in nodes]]


def test_nodes_share_the_store_of_a_round(create, endpoint):
    nodes = [create(**endpoint), create(**endpoint)]
    stores = [info.store for info in join(nodes)]
    assert all(isinstance(store, PrefixStore) for store in stores)
    stores[0].set("key", "value")
    assert stores[1].get("key") == b"value"
    assert [store.add("count", 1) for store in stores] == [1, 2]
    stores[1].wait(["key"], timedelta(seconds=10))
    with pytest.raises(Exception, match=r"(?i)time"):
        stores[1].wait(["missing"], timedelta(milliseconds=10))
    calls = [Call(lambda s=store: barrier(s, 2, "all", 20)) for store in stores]
    assert [call.get() for call in calls] == [None, None]
    calls = [
        Call(lambda s=store, r=rank: synchronize(s, b"%d" % r, r, 2, "data"))
        for rank, store in enumerate(stores)
    ]
    assert [call.get() for call in calls] == [[b"0", b"1"]] * 2


def test_every_round_has_its_own_keys(create, endpoint):
    nodes = [create(**endpoint), create(**endpoint)]
    first = [info.store for info in join(nodes)]
    first[0].set("key", "first")
    nodes[0].request_round("a test")
    second = [info.store for info in join(nodes)]
    assert not second[0].check(["key"])
    second[1].set("key", "second")
    assert (first[1].get("key"), second[0].get("key")) == (b"first", b"second")


def test_it_connects_once_and_only_when_it_is_read(create):
    port = free_port()
    (info,) = join([create(f"localhost:{port}", nodes=1, store="torch")])
    before = count_connections(port)
    assert info.store is info.store
    assert count_connections(port) == before + 1
