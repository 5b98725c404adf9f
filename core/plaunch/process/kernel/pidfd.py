"""Descriptors of processes, which become readable when the process has ended."""

from __future__ import annotations

import os
import select


def open_pidfd(pid: int) -> int:
    """A descriptor of a process, which is readable when the process has ended.

    -1 on old kernels, in containers that forbid it, without free descriptors, for a process that is
    gone, and with `PLAUNCH_NO_PIDFD=1` in the environment.
    """
    if os.environ.get("PLAUNCH_NO_PIDFD", "0") not in ("", "0") or not hasattr(os, "pidfd_open"):
        return -1
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


def wait_for_end(pidfd: int, seconds: float) -> None:
    """Wait at most so long for the end of the process of a pidfd; does not wait for -1."""
    if pidfd >= 0:
        from plaunch.durations import milliseconds  # not in the guard

        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        poller.poll(milliseconds(seconds))
