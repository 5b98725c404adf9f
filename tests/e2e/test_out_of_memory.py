"""A worker that the kernel kills for want of memory, in a control group of the test's own."""

from __future__ import annotations

import os
import subprocess

import pytest

LIMIT = 96 << 20  # bytes; a launcher and two interpreters need half of it
GREEDY = """\
import os, time
if os.environ["RANK"] == "1":
    hoard = [bytearray(b"x" * (1 << 20)) for _ in range(1000)]
time.sleep(60)
"""


@pytest.fixture
def memory_group():
    """A group with little memory, as a folder; skips where this user may not make one."""
    for root, limit in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max"),
    ):
        group = f"{root}/plaunch_test_{os.getpid()}"
        try:
            os.mkdir(group)
        except OSError:
            continue
        try:
            with open(f"{group}/{limit}", "w", encoding="ascii") as file:
                file.write(str(LIMIT))
        except OSError:
            os.rmdir(group)
            continue
        yield group
        os.rmdir(group)
        return
    pytest.skip("no memory control group can be made here")


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ("0", "out-of-memory killer"),
        ("3,oom:0", "No restart: none is allowed after oom (--max-restarts="),
    ],
)
def test_a_worker_without_memory_is_said_to_be_one(memory_group, plaunch, budget, said):
    script = plaunch.write("greedy.py", GREEDY)
    within = ["sh", "-c", f'echo $$ > {memory_group}/cgroup.procs && exec "$@"', "sh"]
    words = ["--nproc-per-node=2", f"--max-restarts={budget}", script]
    with plaunch.popen(*words, within=within, stderr=subprocess.PIPE, text=True) as launch:
        _, err = launch.communicate(timeout=60)
    assert launch.returncode == 128 + 9, err
    assert "rank 1" in err
    assert "out-of-memory killer" in err
    assert said in err
