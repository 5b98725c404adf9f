"""Counting the CPUs that this process may use."""

from __future__ import annotations

import os

from plaunch_devices.kernel import read_text


def count_cpu(*, root: str = "/", affinity: int | None = None) -> int:
    """Count the CPUs that workers can use, at least 1.

    torchrun uses the number of CPUs of the machine. In a container, or under a scheduler that binds
    jobs to cores, this is less: the minimum of the affinity mask and the CPU quota of the control
    groups (versions 1 and 2), rounded down.

    Args:
        root: the root of the file system.
        affinity: the number of CPUs in the affinity mask; by default that of this process.
    """
    count = affinity if affinity is not None else _count_affinity()
    quota = _read_quota(root)
    if quota is not None:
        count = min(count, int(quota))
    return max(count, 1)


def _count_affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _read_quota(root: str) -> float | None:
    """The smallest CPU quota of the control groups of this process, in CPUs; None if unlimited."""
    quotas: list[float] = []
    for line in read_text(os.path.join(root, "proc/self/cgroup")).splitlines():
        # "0::/user.slice" in version 2, "4:cpu,cpuacct:/docker/ab12" in version 1
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            for folder in _ancestors(os.path.join(root, "sys/fs/cgroup"), path):
                quotas.append(_quota_v2(folder))
        elif "cpu" in controllers.split(","):
            for name in {controllers, "cpu"}:
                for folder in _ancestors(os.path.join(root, "sys/fs/cgroup", name), path):
                    quotas.append(_quota_v1(folder))
    return min((quota for quota in quotas if quota > 0), default=None)


def _ancestors(mount: str, path: str) -> list[str]:
    """The folders of a control group and its ancestors.

    In a container, `path` may be that of the host; then only the mount point exists.
    """
    folders = [mount]
    for part in path.split("/"):
        if part and part != "..":
            folders.append(os.path.join(folders[-1], part))
    return folders


def _quota_v2(folder: str) -> float:
    """The CPUs of one group, from `cpu.max` ("150000 100000"); 0 if unlimited or unknown."""
    quota, _, period = read_text(os.path.join(folder, "cpu.max")).strip().partition(" ")
    return _divide(quota, period)


def _quota_v1(folder: str) -> float:
    """The CPUs of one group; 0 if unlimited (a quota of -1) or unknown."""
    return _divide(
        read_text(os.path.join(folder, "cpu.cfs_quota_us")).strip(),
        read_text(os.path.join(folder, "cpu.cfs_period_us")).strip(),
    )


def _divide(quota: str, period: str) -> float:
    if not (quota.isdecimal() and period.isdecimal() and int(period)):
        return 0.0
    return int(quota) / int(period)
