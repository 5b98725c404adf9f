"""A GPU that never finishes: hang reports, stacks, and the flight recorder."""

from __future__ import annotations

import contextlib
import pickle
import re

import pytest

from helpers.processes import is_gone
from helpers.stacks import readable_stacks  # noqa: F401 - a fixture
from helpers.waiting import wait_until

pytestmark = pytest.mark.gpu


@pytest.mark.usefixtures("readable_stacks")
def test_an_endless_kernel(plaunch, gpu, measured):
    before = gpu.memory()
    done = plaunch.run(
        *("--nproc-per-node=1", "--hang-timeout=3s", "--on-hang=restart"),
        *("--max-restarts=1", "--log-dir=logs", "endless.py"),
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"1 rank: 0 synchronize .*", done.stderr)
    assert found, done.stderr
    (stacks,) = plaunch.folder.glob("logs/*/hang-*/rank_0.txt")
    assert "endless.py" in stacks.read_text()
    assert plaunch.said("endless.1.0")["work"] == 256.0
    assert is_gone(plaunch.said("endless.0.0")["pid"])
    gpu.wait_for_memory(before)
    measured(found[0])


def test_the_flight_recorder(plaunch, real_gpu, measured):
    before = real_gpu.memory()
    with plaunch.start("--flight-recorder", "--log-dir=logs", "stuck_collective.py") as launcher:
        assert plaunch.wait_for(launcher, "collective")["sum"] == 8.0
        # NCCL may wait for the kernel when it ends the worker, and the kernel does not end.
        names = wait_until(lambda: dumped_operations(plaunch.folder), "a dump of rank 0")
    assert any("all_reduce" in name for name in names)
    real_gpu.wait_for_memory(before)
    measured(f"{len(names)} operations in the dump")


def dumped_operations(folder):
    """The names of the operations in the dump of rank 0; empty until it is complete."""
    for path in folder.glob("logs/*/flight_recorder/attempt_0-round_0/rank_0"):
        with contextlib.suppress(EOFError, pickle.UnpicklingError):
            return [entry["profiling_name"] for entry in pickle.loads(path.read_bytes())["entries"]]
    return []
