"""Descriptors of processes: signals to exactly one, and being told of its end."""

from __future__ import annotations

import os
import select


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


def wait_for_end(pidfd: int, seconds: float) -> None:
    """Wait at most so long for the end of the process behind a descriptor; not at all for -1."""
    if pidfd >= 0:
        from plaunch.durations import milliseconds  # a guard does without

        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        poller.poll(milliseconds(seconds))
