from __future__ import annotations

import os

import pytest
from plaunch_devices import count_cpu

from helpers.programs import run_python

V1 = "5:memory:/docker/ab12\n4:cpu,cpuacct:/docker/ab12\n1:name=systemd:/x\n"


def v2(group="0::/a/b\n", **quotas):
    """Control groups of version 2: this process's, and the quotas by the names of groups."""
    files = {"proc/self/cgroup": group}
    for name, quota in quotas.items():
        folder = "sys/fs/cgroup/" + {"root": "", "a": "a/", "b": "a/b/"}[name]
        files[f"{folder}cpu.max"] = f"{quota}\n"
    return files


def v1(folder, quota, groups=V1):
    """Control groups of version 1, of which one has a quota in microseconds."""
    return {
        "proc/self/cgroup": groups,
        f"sys/fs/cgroup/{folder}/cpu.cfs_quota_us": f"{quota}\n",
        f"sys/fs/cgroup/{folder}/cpu.cfs_period_us": "100000\n",
    }


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        # only the mask
        ({}, 8),
        (v2(), 8),
        # version 2
        (v2(b="400000 100000"), 4),
        (v2(b="max 100000"), 8),
        (v2(b="250000 100000"), 2),
        (v2(b="50000 100000"), 1),
        (v2(b="1600000 100000"), 8),
        # a group above is stricter, below it is laxer
        (v2(a="300000 100000", b="600000 100000"), 3),
        # in a container without a namespace of its own the path is the host's
        (v2(root="200000 100000"), 2),
        (v2("0::/../x\n", root="200000 100000"), 2),
        # version 1, under either name of the mount
        (v1("cpu,cpuacct/docker/ab12", 300000), 3),
        (v1("cpu", 200000), 2),
        (v1("cpu", -1), 8),
        # the quota of another controller is ignored
        (v1("cpuset,memory", 100000, "4:cpuset,memory:/\n"), 8),
        # rubbish is no quota
        (v2(b="lots"), 8),
        (v2(b="100000 0"), 8),
        (v2("\n:\nx\n", root=""), 8),
    ],
)
def test_mask_and_quota(root, files, expected):
    assert count_cpu(root=root(files), affinity=8) == expected


def test_there_is_never_less_than_one(root):
    assert count_cpu(root=root({}), affinity=0) == 1


def test_the_real_mask_is_respected(tmp_path):
    allowed = sorted(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, {{{allowed[0]}}})\n"
        f"from plaunch_devices import count_cpu; print(count_cpu(root={str(tmp_path)!r}))"
    )
    assert run_python("-c", code, check=True).stdout == "1\n"
    assert count_cpu(root=str(tmp_path)) == len(allowed)


def test_this_machine_has_a_count():
    assert 1 <= count_cpu() <= os.cpu_count()
