"""Finds the files of this process's control groups, and their limit of CPUs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_CGROUPS = "/sys/fs/cgroup"


def group_paths(groups: str, controller: str, new: str, old: str) -> list[str]:
    """Return the possible paths of a control group's file, then those of its parents'.

    Args:
        groups: the content of /proc/self/cgroup.
        controller: `memory`, `cpu` or `pids`.
        new: the file's name in version 2.
        old: its name in version 1.
    """
    found: list[str] = []
    for line in groups.splitlines():
        # "0::/user.slice" in version 2, "4:cpu,cpuacct:/docker/ab12" in version 1
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            folders, name = _folders(_CGROUPS, path.strip()), new
        elif controller in controllers.split(","):
            folders, name = _folders(f"{_CGROUPS}/{controllers}", path.strip()), old
            folders += _folders(f"{_CGROUPS}/{controller}", path.strip())
        else:
            continue
        found += [f"{folder}/{name}" for folder in dict.fromkeys(folders)]
    return found


def find_cpu_quota(read: Callable[[str], str]) -> float | None:
    """Find the smallest CPU quota of this process's groups, in CPUs; None if unlimited.

    Args:
        read: returns the text of a file without white space around it; empty if it cannot be read.
    """
    quotas: list[float] = []
    groups = read("/proc/self/cgroup")
    for path in group_paths(groups, "cpu", "cpu.max", "cpu.cfs_quota_us"):
        # Version 2 has "150000 100000" or "max 100000"; version 1 has a file for each number.
        quota, _, period = read(path).partition(" ")
        period = period or read(f"{os.path.dirname(path)}/cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(quota) and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _folders(mount: str, path: str) -> list[str]:
    """Return the folder of a group and its parents, in this order.

    In a container `path` may be the host's; then only the mount point exists.
    """
    folders = [mount]
    for part in path.split("/"):
        if part and part != "..":
            folders.append(f"{folders[-1]}/{part}")
    return folders[::-1]
