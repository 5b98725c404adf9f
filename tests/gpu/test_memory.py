"""The memory of the GPU: after SIGKILL, and as the health check sees it."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from time import monotonic

import pytest

from helpers.processes import is_gone
from helpers.waiting import wait_until

pytestmark = pytest.mark.gpu


def guard_of(launcher):
    """The process id of a launcher's guard; None while there is none."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    names = {int(pid): Path(f"/proc/{pid}/comm") for pid in children}
    return next(
        (pid for pid, comm in names.items() if comm.exists() and "guard" in comm.read_text()), None
    )


@pytest.mark.parametrize("victim", ["worker", "launcher", "guard"])
def test_memory_is_free_after_sigkill(plaunch, gpu, measured, victim):
    before = gpu.memory()
    with plaunch.start("--nproc-per-node=2", "hold.py") as launcher:
        pids = [plaunch.wait_for(launcher, f"hold.{rank}")["pid"] for rank in range(2)]
        if gpu.is_real:
            assert gpu.memory() - before > 2000
        if victim == "guard":
            guard = wait_until(lambda: guard_of(launcher.pid), "a guard")
            os.kill(guard, signal.SIGKILL)
            wait_until(lambda: guard_of(launcher.pid) not in (None, guard), "another guard")
        os.kill(pids[0] if victim == "worker" else launcher.pid, signal.SIGKILL)
        began = monotonic()
        wait_until(lambda: all(map(is_gone, pids)), "the end of the workers")
        gone = monotonic() - began
        freed = gpu.wait_for_memory(before)
        measured(f"workers gone after {gone:.1f} s, memory free {freed:.1f} s later")


def test_the_health_check(plaunch, gpu, measured):
    done = plaunch.run("--health-check=gpu", "where.py")
    assert done.returncode == 0, done.stderr
    found = re.search(r"is healthy: gpu: (.*)", done.stderr)
    assert found, done.stderr
    if gpu.is_real:
        assert f"{gpu.count()} device" in found[1]
    measured(found[1])


def test_the_health_check_finds_used_memory(plaunch, real_gpu, measured):
    before = real_gpu.memory()
    words = ["--max-restarts=1", "--health-check=gpu", "fail_when_told.py"]
    with plaunch.start(*words, PLAUNCH_HEALTH_CHECK_TIMEOUT="5") as launcher:
        plaunch.wait_for(launcher, "up.0")
        with plaunch.start("--nproc-per-node=1", "hold.py") as other:
            plaunch.wait_for(other, "hold.0")
            (plaunch.folder / "fail").touch()
            _, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 115, err
    found = re.search(r"device 0 .* at the start", err)
    assert found, err
    measured(found[0])
    real_gpu.wait_for_memory(before)
