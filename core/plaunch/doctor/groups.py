"""Files of the control groups that this process is in, of both versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plaunch.doctor.context import DoctorContext

_MOUNT = "/sys/fs/cgroup"


def group_files(context: DoctorContext, controller: str, new: str, old: str) -> list[str]:
    """The contents of a file in this process's control group, and in those above it.

    Args:
        context: where to look.
        controller: `memory`, `cpu` or `pids`.
        new: the file's name in version 2.
        old: its name in version 1.
    """
    found: list[str] = []
    for line in context.read("/proc/self/cgroup").splitlines():
        # "0::/user.slice" in version 2, "4:cpu,cpuacct:/docker/ab12" in version 1
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            folders, name = _up(_MOUNT, path), new
        elif controller in controllers.split(","):
            folders, name = _up(f"{_MOUNT}/{controllers}", path), old
            folders += _up(f"{_MOUNT}/{controller}", path)
        else:
            continue
        texts = (context.read(f"{folder}/{name}") for folder in dict.fromkeys(folders))
        found += [text for text in texts if text]
    return found


def _up(mount: str, path: str) -> list[str]:
    """The folder of a group and those above it, itself first.

    Inside a container `path` may be the host's; then only the mount point itself is there.
    """
    folders = [mount]
    for part in path.split("/"):
        if part and part != "..":
            folders.append(f"{folders[-1]}/{part}")
    return folders[::-1]
