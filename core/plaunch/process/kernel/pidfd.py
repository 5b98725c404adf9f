"""Descriptors of processes: signals to exactly one, and being told of its end."""

from __future__ import annotations

import os


def open_pidfd(pid: int) -> int:
    """A descriptor of a process, which is readable when it has ended; -1 if there is none.

    There is none on old kernels, in containers whose filter forbids it, without free descriptors,
    of a process that is gone, and with `PLAUNCH_NO_PIDFD=1` in the environment.
    """
    if os.environ.get("PLAUNCH_NO_PIDFD", "0") not in ("", "0") or not hasattr(os, "pidfd_open"):
        return -1
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1
