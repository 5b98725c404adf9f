from __future__ import annotations

import socket

import pytest
from plaunch.errors import UsageError
from plaunch.rendezvous import RendezvousParameters
from plaunch_example_plugins.rendezvous import create_handler


@pytest.fixture
def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@pytest.fixture
def hostfile(tmp_path):
    path = tmp_path / "hosts.txt"
    path.write_text("alpha addr=127.0.0.1\nbeta\n")
    return str(path)


def parameters(endpoint, nodes=2, **options):
    return RendezvousParameters("hostfile", endpoint, "job", nodes, nodes, **options)


@pytest.mark.parametrize(("host", "rank"), [("alpha", 0), ("beta", 1)])
def test_each_host_has_the_rank_of_its_line(hostfile, free_port, host, rank):
    handler = create_handler(parameters(hostfile, host=host, port=str(free_port)))
    info = handler.next_rendezvous()
    assert (info.rank, info.world_size) == (rank, 2)
    assert info.bootstrap_store_info.master_addr == "127.0.0.1"
    assert info.bootstrap_store_info.master_port == free_port
    assert handler.get_run_id() == "job"
    assert handler.shutdown()
    assert handler.shutdown()


def test_the_port_is_held_only_by_the_first_host(hostfile, free_port):
    first = create_handler(parameters(hostfile, host="alpha", port=free_port))
    with socket.socket() as sock, pytest.raises(OSError, match="in use"):
        sock.bind(("127.0.0.1", free_port))
    first.shutdown()
    second = create_handler(parameters(hostfile, host="beta", port=free_port))
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", free_port))
    second.shutdown()


def test_the_number_of_nodes_must_match(hostfile):
    with pytest.raises(UsageError, match="give --nnodes=2"):
        create_handler(parameters(hostfile, nodes=3, host="alpha"))


def test_an_unknown_option_is_refused(hostfile):
    with pytest.raises(UsageError, match=r"no option 'prot'.*did you mean 'port'"):
        create_handler(parameters(hostfile, host="alpha", prot="1"))


@pytest.mark.parametrize("port", ["-1", "65536"])
def test_a_port_out_of_range_is_refused(hostfile, port):
    with pytest.raises(UsageError, match="is not between 1 and 65535"):
        create_handler(parameters(hostfile, host="alpha", port=port))
