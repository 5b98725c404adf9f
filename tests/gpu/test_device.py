"""Counting, choosing and binding, compared with `nvidia-smi`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu


def test_devices_are_counted(plaunch, gpu, measured):
    done = plaunch.run(f"--nproc-per-node={gpu.kind}", "where.py")
    assert done.returncode == 0, done.stderr
    said = plaunch.said("where.0")
    assert (int(said["workers"]), said["devices"]) == (gpu.count(), gpu.count())
    measured(f"{gpu.count()} GPU(s)")


@pytest.mark.parametrize("words", [[], ["--virtual-local-rank"]], ids=["all", "virtual"])
def test_a_device_is_chosen(plaunch, gpu, words):
    done = plaunch.run("--devices=0", *words, "where.py", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert done.returncode == 0, done.stderr
    said = plaunch.said("where.0")
    assert (said["visible"], said["local_rank"], said["devices"]) == ("0", "0", 1)
    assert said["uuid"] in gpu.uuid
    assert bool(said["uuid"]) == gpu.is_real


def test_a_device_that_is_not_there(plaunch, real_gpu):
    missing = real_gpu.count() + 7
    done = plaunch.run(f"--devices={missing}", "where.py")
    assert done.returncode == 2, done.stderr
    assert str(missing) in done.stderr
    assert os.listdir(plaunch.folder) == []


def test_workers_are_bound(plaunch, real_gpu, measured):
    node = Path(f"/sys/bus/pci/devices/{real_gpu.bus_id}/numa_node")
    if not node.exists():
        pytest.skip(f"the kernel does not show where the GPU is: there is no {node}")
    number = max(0, int(node.read_text()))  # -1: there is one node only
    ours = _numbers(Path(f"/sys/devices/system/node/node{number}/cpulist").read_text())
    done = plaunch.run("--nproc-per-node=1", "--numa-binding=node", "where.py")
    assert done.returncode == 0, done.stderr
    bound = set(plaunch.said("where.0")["processors"])
    assert bound == ours & os.sched_getaffinity(0)
    measured(f"node {number}, {len(bound)} processors")


def _numbers(text):
    """The processors in a list of the kernel, as 0-3,8."""
    found = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
