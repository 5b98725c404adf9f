"""Paths of the files of this process's control groups, of version 1 and 2."""

from __future__ import annotations

_MOUNT = "/sys/fs/cgroup"


def group_paths(groups: str, controller: str, new: str, old: str) -> list[str]:
    """Return the possible paths of a control group's file, then those of its parents' files.

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
            folders, name = _up(_MOUNT, path.strip()), new
        elif controller in controllers.split(","):
            folders, name = _up(f"{_MOUNT}/{controllers}", path.strip()), old
            folders += _up(f"{_MOUNT}/{controller}", path.strip())
        else:
            continue
        found += [f"{folder}/{name}" for folder in dict.fromkeys(folders)]
    return found


def _up(mount: str, path: str) -> list[str]:
    """Return the folder of a group and its parents, in this order.

    In a container `path` may be the host's; then only the mount point exists.
    """
    folders = [mount]
    for part in path.split("/"):
        if part and part != "..":
            folders.append(f"{folders[-1]}/{part}")
    return folders[::-1]
