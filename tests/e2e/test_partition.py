"""Real training on three nodes in network namespaces, one of which loses its link."""

from __future__ import annotations

import time

import pytest
from plaunch_rendezvous_etcd.testing import EtcdServer

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.heavy,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

WORKERS, CONTROL = 0, 1  # the two switches; etcd is connected to the second one only


def test_training_continues_during_and_after_a_network_cut(build_network, training):
    network = build_network(3)
    nodes = [
        training.start(
            "--nnodes=2:3",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={network.address(0)}:29400",
            "--rdzv-id=partition",
            "--rdzv-conf=last_call_timeout=5",
            interface="eth0",
            within=network.within(node),
        )
        for node in range(3)
    ]
    training.until_world(3)
    training.until_further(3)
    network.cut(2)
    training.until_world(2)
    training.until_further(3)
    network.mend(2)
    training.until_world(3)
    training.hurry()
    assert [node.exit_code() for node in nodes] == [0, 0, 0]
    assert training.worlds()[-3:] == [3, 2, 3]
    training.check()


@pytest.mark.usefixtures("etcd_server")  # skips without etcd
def test_training_continues_during_and_after_a_cut_from_etcd(build_network, agents, training):
    """Only the link to etcd is cut."""
    pytest.importorskip("grpc")
    pytest.importorskip("google.protobuf")
    network = build_network(3, switches=2)
    with EtcdServer(host=network.own_address(CONTROL)) as server:

        def start(node):
            return training.start(
                "--nnodes=2:3",
                "--rdzv-backend=etcd-v2",
                f"--rdzv-endpoint={server.endpoint}",
                "--rdzv-id=partition",
                "--rdzv-conf=last_call_timeout=5,keep_alive_interval=0.5,keep_alive_max_attempt=8",
                f"--local-addr={network.address(node, WORKERS)}",
                interface=f"eth{WORKERS}",
                within=network.within(node),
            )

        # The first node is the leader; its link goes down.
        nodes = [start(0)]
        agents.until(lambda: server.ask("lease/leases").get("leases"), "the first one is there")
        nodes += [start(1), start(2)]
        training.until_world(3)
        training.until_further(3)
        worlds = training.worlds()
        # A short interruption: its workers continue, and no node reports it as lost.
        network.cut(0, CONTROL)
        time.sleep(1)
        network.mend(0, CONTROL)
        training.until_further(9)  # longer than the time after which a node is lost
        assert training.worlds() == worlds
        # A cut longer than the keep-alive timeout: the others continue without it. Its own workers
        # lose their peers, but that is a failure that costs no restart.
        network.cut(0, CONTROL)
        training.until_world(2)
        training.until_further(3)
        network.mend(0, CONTROL)
        training.until_world(3)
        training.hurry()
        assert [node.exit_code() for node in nodes] == [0, 0, 0]
    assert training.worlds() == [*worlds, 2, 3]
    assert "was lost: no heartbeat" in nodes[1].stderr
    training.check()
