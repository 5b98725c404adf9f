"""Real training on three nodes with a network of their own each, one of which loses its cable."""

from __future__ import annotations

import re
import secrets
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch.distributed")
pytest.importorskip("sklearn")

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
EPOCHS = 150

# The example as it is, but slower by what a file says, so that it is still at work when the cable
# is plugged in again, however long everything takes.
SCRIPT = f"""\
import sys, time
sys.path.insert(0, {str(EXAMPLES)!r})
import train_ddp
train_epoch = train_ddp.train_epoch
def paced(*args):
    with open("pace") as file:
        time.sleep(float(file.read()))
    return train_epoch(*args)
train_ddp.train_epoch = paced
if __name__ == "__main__":
    train_ddp.main()
"""


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


class Network:
    """Nodes on one switch; a cable leads from each node to it."""

    def __init__(self, count):
        self._id = secrets.token_hex(3)
        self._switch = f"plb{self._id}"
        self._count = count

    def namespace(self, node):
        return f"plaunch-{self._id}-{node}"

    def cable(self, node):
        return f"plv{self._id}{node}"

    def address(self, node):
        return f"10.111.0.{node + 1}"

    def build(self):
        ip("link", "add", self._switch, "type", "bridge")
        ip("link", "set", self._switch, "up")
        for node in range(self._count):
            space, cable = self.namespace(node), self.cable(node)
            ip("netns", "add", space)
            ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("link", "set", cable, "master", self._switch, "up")
            ip("-n", space, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
            ip("-n", space, "link", "set", "lo", "up")

    def remove(self):
        """Take away what is there of it; a cable goes with its namespace."""
        for words in (
            *(("link", "del", self.cable(node)) for node in range(self._count)),
            *(("netns", "del", self.namespace(node)) for node in range(self._count)),
            ("link", "del", self._switch),
        ):
            subprocess.run(["ip", *words], check=False, capture_output=True, timeout=20)


@pytest.fixture
def network():
    network = Network(3)
    try:
        network.build()
    except (OSError, subprocess.CalledProcessError) as error:
        network.remove()
        pytest.skip(f"no networks can be made here: {getattr(error, 'stderr', error)!r}")
    yield network
    network.remove()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_training_goes_on_while_a_cable_is_cut_and_after(network, agents):
    (agents.folder / "pace").write_text("0.3")
    script = agents.folder / "train.py"
    script.write_text(SCRIPT)
    argv = [
        "--nnodes=2:3",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={network.address(0)}:29400",
        "--rdzv-id=partition",
        "--rdzv-conf=last_call_timeout=5",
        str(script),
        f"--epochs={EPOCHS}",
    ]
    nodes = [
        agents.launch(
            argv,
            f"node{node}",
            {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"},
            within=("ip", "netns", "exec", network.namespace(node)),
        )
        for node in range(3)
    ]

    def said():
        """What rank 0 has said, wherever it was."""
        return "".join(node.stdout for node in nodes)

    def worlds():
        return [int(size) for size in re.findall(r"^(\d) workers on cpu", said(), re.M)]

    def epochs():
        return [int(number) for number in re.findall(r"^epoch +(\d+)/", said(), re.M)]

    agents.until(lambda: worlds()[-1:] == [3] and epochs()[-1:] > [2], "three nodes train")
    ip("link", "set", network.cable(2), "down")
    agents.until(lambda: worlds()[-1:] == [2], "two nodes go on")
    before = epochs()[-1]
    agents.until(lambda: epochs()[-1] > before + 2, "two nodes train")
    ip("link", "set", network.cable(2), "up")
    agents.until(lambda: worlds()[-1:] == [3], "the third one is back")
    (agents.folder / "pace").write_text("0")
    assert [node.exit_code() for node in nodes] == [0, 0, 0]

    assert worlds()[-3:] == [3, 2, 3]
    assert f"done: {EPOCHS} epochs" in said()
    # Nobody began anew: each world went on after the last epoch that was saved.
    resumed = [int(epoch) for epoch in re.findall(r"continuing after epoch (\d+)", said())]
    assert resumed == sorted(resumed)
    assert len(resumed) == len(worlds()) - 1
    assert sorted(set(epochs())) == list(range(1, EPOCHS + 1))
    assert "restart 1 of" not in "".join(node.stderr for node in nodes)
