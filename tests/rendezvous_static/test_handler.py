"""The static backend: one node on loopback, or nodes with given ranks."""

from __future__ import annotations

import logging
import socket

import pytest
from plaunch.cli import parse
from plaunch.errors import UsageError
from plaunch.rendezvous import ObservableRendezvous, RendezvousParameters
from plaunch_rendezvous_static import create_static_handler
from plaunch_rendezvous_static.handler import fill_in

from helpers.ports import free_port


def create(endpoint="", max_nodes=1, local_addr=None, **config):
    return create_static_handler(
        RendezvousParameters("static", endpoint, "job", 1, max_nodes, local_addr, **config)
    )


def test_one_node_has_a_fresh_port_on_loop_back_in_every_round():
    handler = create()
    first, second = handler.next_rendezvous(), handler.next_rendezvous()
    for info in (first, second):
        assert (info.rank, info.world_size, info.agent_store) == (0, 1, None)
        assert info.bootstrap_store_info.master_addr == "127.0.0.1"
    assert first.bootstrap_store_info.master_port != second.bootstrap_store_info.master_port
    assert handler.shutdown()


@pytest.mark.parametrize(
    ("endpoint", "local_addr", "address"),
    [("127.0.0.1:0", None, "127.0.0.1"), ("", "10.1.2.3", "10.1.2.3")],
)
def test_one_node_may_ask_for_any_port_at_an_address(endpoint, local_addr, address):
    handler = create(endpoint, local_addr=local_addr)
    where = handler.next_rendezvous().bootstrap_store_info
    assert (where.master_addr, where.master_port > 0) == (address, True)
    handler.shutdown()


def test_the_port_of_the_round_can_be_bound_and_is_released_at_the_end():
    handler = create()
    port = handler.next_rendezvous().bootstrap_store_info.master_port
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
        sock.listen()
    handler.shutdown()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", port))


@pytest.mark.parametrize("rank", [0, 2])
def test_several_nodes_have_the_ranks_of_the_command_line(rank):
    port = free_port()
    handler = create(f"node0:{port}", max_nodes=3, rank=str(rank))
    for _ in range(2):
        info = handler.next_rendezvous()
        assert (info.rank, info.world_size, info.agent_store) == (rank, 3, None)
        assert info.bootstrap_store_info.master_addr == "node0"
        assert info.bootstrap_store_info.master_port == port
    handler.shutdown()


def test_nothing_ever_changes():
    handler = create()
    assert isinstance(handler, ObservableRendezvous)
    assert handler.fileno() == -1
    assert handler.changes() == ()
    assert handler.num_nodes_waiting() == 0
    handler.set_closed()
    assert not handler.is_closed()
    assert handler.use_agent_store
    assert not handler.hosts_worker_store
    assert (handler.get_backend(), handler.get_run_id()) == ("static", "job")
    assert handler.shutdown()
    assert handler.shutdown()
    assert handler.leave()


def test_only_node_0_needs_the_port():
    with socket.socket() as sock:
        sock.bind(("", 0))
        sock.listen()
        port = sock.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port}.*is taken"):
            create(f"node0:{port}", max_nodes=2, rank=0)
        create(f"node0:{port}", max_nodes=2, rank=1).shutdown()


@pytest.mark.parametrize(
    ("endpoint", "max_nodes", "config", "message"),
    [
        ("node0:29500", 2, {"rank": 2}, r"node rank 2 .* outside the job of 2 nodes"),
        ("node0:29500", 2, {"rank": -1}, r"node rank -1 .* outside"),
        ("node0:29500", 2, {"rank": "two"}, "not an integer"),
        ("node0", 2, {}, "has no port that all nodes know"),
        ("node0:0", 2, {}, "has no port that all nodes know"),
        ("", 1, {"ranks": 0}, "no option 'ranks'.*did you mean 'rank'"),
    ],
)
def test_invalid_settings(endpoint, max_nodes, config, message):
    with pytest.raises(UsageError, match=message):
        create(endpoint, max_nodes, **config)


def test_options_of_other_backends_are_warned_about(caplog):
    create(timeout=900).shutdown()
    assert "does not need option 'timeout'" in caplog.text


# --- the endpoint, from the options ---------------------------------------------------------------

STATIC = ("--nnodes=2", "--node-rank=0", "--master-addr=node0")
AT_NODE_0 = ("--rdzv-endpoint=node0:7",)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--nnodes=1:3", "--master-addr=a", "--master-port=0"], "or --rdzv-backend=c10d"),
        (["--nnodes=2", "--master-addr=a", "--master-port=0"], "--master-port=0 leaves 2 nodes"),
    ],
)
def test_rejected_options(argv, message):
    with pytest.raises(UsageError, match=message) as caught:
        fill_in(parse([*argv, "x.py"], {}))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--nnodes=2", "--master-addr=a"], "this node is node 0, as --node-rank was not given"),
        (["--nnodes=1:2", *STATIC[1:]], "it waits for all 2"),
        ([*STATIC, "--rdzv-endpoint=b:1"], "--rdzv-endpoint=b:1 is used, and --master-addr is not"),
        ([*STATIC, *AT_NODE_0, "--master-port=8"], "--master-addr, --master-port is not"),
    ],
)
def test_options_that_torchrun_ignores_are_warned_about(argv, message, caplog):
    fill_in(parse([*argv, "x.py"], {}))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert message in record.getMessage()


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--nnodes=2"],  # rejected by the launcher
        STATIC,
        # The same address, given twice.
        [*STATIC, *AT_NODE_0],
        [*STATIC, *AT_NODE_0, "--master-port=7"],
        ["--nnodes=2", "--node-rank=1", "--rdzv-endpoint=a:1"],
    ],
)
def test_compatible_options(argv, caplog):
    fill_in(parse([*argv, "x.py"], {}))
    assert caplog.text == ""
