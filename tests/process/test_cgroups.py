"""The limits of control groups, with files that stand for the kernel's."""

from __future__ import annotations

import pytest
from plaunch.process.cgroups import find_cpu_quota


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"/proc/self/cgroup": "0::/a", "/sys/fs/cgroup/a/cpu.max": "150000 100000"}, 1.5),
        ({"/proc/self/cgroup": "0::/a", "/sys/fs/cgroup/a/cpu.max": "max 100000"}, None),
        (
            {
                "/proc/self/cgroup": "4:cpu,cpuacct:/a",
                "/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "200000",
                "/sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000",
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            2.0,
        ),
    ],
)
def test_the_cpu_quota_is_that_of_the_smallest_group(files, quota):
    assert find_cpu_quota(lambda path: files.get(path, "")) == quota
