"""Real training on three nodes with a network of their own each, one of which loses its cable."""

from __future__ import annotations

import pytest

pytest.importorskip("torch.distributed")


@pytest.mark.exhaustive
@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_training_goes_on_while_a_cable_is_cut_and_after(build_network, training):
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
