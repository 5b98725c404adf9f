from __future__ import annotations

import os
import subprocess
import sys

import pytest
from plaunch_devices import count_cpu

V2 = "0::/a/b\n"
V1 = "5:memory:/docker/ab12\n4:cpu,cpuacct:/docker/ab12\n1:name=systemd:/x\n"


@pytest.mark.parametrize(
    ("files", "affinity", "expected"),
    [
        # nothing but the mask
        ({}, 8, 8),
        ({"proc/self/cgroup": V2}, 8, 8),
        # version 2
        ({"proc/self/cgroup": V2, "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n"}, 8, 4),
        ({"proc/self/cgroup": V2, "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, 8, 8),
        ({"proc/self/cgroup": V2, "sys/fs/cgroup/a/b/cpu.max": "250000 100000\n"}, 8, 2),
        ({"proc/self/cgroup": V2, "sys/fs/cgroup/a/b/cpu.max": "50000 100000\n"}, 8, 1),
        ({"proc/self/cgroup": V2, "sys/fs/cgroup/a/b/cpu.max": "1600000 100000\n"}, 8, 8),
        # a group above is stricter, below it is laxer
        (
            {
                "proc/self/cgroup": V2,
                "sys/fs/cgroup/a/cpu.max": "300000 100000\n",
                "sys/fs/cgroup/a/b/cpu.max": "600000 100000\n",
            },
            8,
            3,
        ),
        # in a container without a namespace of its own the path is the host's
        ({"proc/self/cgroup": V2, "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 8, 2),
        ({"proc/self/cgroup": "0::/../x\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 8, 2),
        # version 1, under either name of the mount
        (
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/cpu,cpuacct/docker/ab12/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/ab12/cpu.cfs_period_us": "100000\n",
            },
            8,
            3,
        ),
        (
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            8,
            2,
        ),
        (
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            8,
            8,
        ),
        # another controller's quota is not ours
        (
            {
                "proc/self/cgroup": "4:cpuset,memory:/\n",
                "sys/fs/cgroup/cpuset,memory/cpu.cfs_quota_us": "100000\n",
                "sys/fs/cgroup/cpuset,memory/cpu.cfs_period_us": "100000\n",
            },
            8,
            8,
        ),
        # rubbish is no quota
        ({"proc/self/cgroup": V2, "sys/fs/cgroup/a/b/cpu.max": "lots\n"}, 8, 8),
        ({"proc/self/cgroup": V2, "sys/fs/cgroup/a/b/cpu.max": "100000 0\n"}, 8, 8),
        ({"proc/self/cgroup": "\n:\nx\n", "sys/fs/cgroup/cpu.max": ""}, 8, 8),
        # never less than one
        ({}, 0, 1),
    ],
)
def test_mask_and_quota(root, files, affinity, expected):
    assert count_cpu(root=root(files), affinity=affinity) == expected


def test_the_real_mask_is_respected(tmp_path):
    allowed = sorted(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, {{{allowed[0]}}})\n"
        f"from plaunch_devices import count_cpu; print(count_cpu(root={str(tmp_path)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)
    assert done.stdout == b"1\n"
    assert count_cpu(root=str(tmp_path)) == len(allowed)


def test_a_system_without_masks_counts_the_machine(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert count_cpu(root=str(tmp_path)) == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert count_cpu(root=str(tmp_path)) == 1


def test_this_machine_has_a_count():
    assert 1 <= count_cpu() <= os.cpu_count()
