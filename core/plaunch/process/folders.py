"""Folders that users name: whether files can be created in them, found out without creating one."""

from __future__ import annotations

import os

# They show what the kernel knows. The superuser may write to their folders, but not create files.
_OF_THE_KERNEL = frozenset(
    {
        *("binfmt_misc", "bpf", "cgroup", "cgroup2", "debugfs", "devpts", "efivarfs", "fusectl"),
        *("mqueue", "proc", "pstore", "securityfs", "sysfs", "tracefs"),
    }
)


def why_not_writable(folder: str) -> str:
    """Return why no file can be created in a folder; empty if nothing is known.

    The text is a predicate, for a message whose subject is the folder.
    """
    if not os.path.isdir(folder):
        return "is not a folder" if os.path.lexists(folder) else "does not exist"
    if not os.access(folder, os.W_OK | os.X_OK):
        return "is not writable for this user"
    kind = _file_system_of(folder)
    if kind in _OF_THE_KERNEL:
        return f"belongs to the kernel ({kind}), which takes no files there"
    return ""


def _file_system_of(folder: str) -> str:
    """Return the type of the file system without a disk that a folder is on; else empty."""
    try:
        device = os.stat(folder).st_dev
        if os.major(device) != 0:
            return ""
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            lines = [line.split() for line in mounts]
    except OSError:
        return ""
    number = f"{os.major(device)}:{os.minor(device)}"
    # 36 35 0:21 / /proc rw,nosuid shared:5 - proc proc rw
    kinds = (words[words.index("-") + 1] for words in lines if words[2] == number)
    return next(kinds, "")
