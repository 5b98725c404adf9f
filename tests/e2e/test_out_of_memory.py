"""A worker that the kernel kills for lack of memory, in a control group."""

from __future__ import annotations

import subprocess

import pytest

LIMIT = 96 << 20  # bytes; a launcher and two interpreters need half of this
GREEDY = """\
import os, time
if os.environ["RANK"] == "1":
    hoard = [bytearray(b"x" * (1 << 20)) for _ in range(1000)]
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ("0", "out-of-memory killer"),
        ("3,oom:0", "No restart: none is allowed after oom (--max-restarts="),
    ],
)
def test_an_oom_kill_is_reported(memory_group, plaunch, budget, said):
    script = plaunch.write("greedy.py", GREEDY)
    words = ["--nproc-per-node=2", f"--max-restarts={budget}", script]
    with plaunch.popen(
        *words, within=memory_group(LIMIT), stderr=subprocess.PIPE, text=True
    ) as launch:
        _, err = launch.communicate(timeout=60)
    assert launch.returncode == 128 + 9, err
    assert "rank 1" in err
    assert "out-of-memory killer" in err
    assert said in err
