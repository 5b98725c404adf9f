"""Whether processes have ended."""

from __future__ import annotations

import os

from helpers.waiting import wait_until


def is_gone(pid: int) -> bool:
    """Whether a process has ended; a zombie has."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return True


def is_reaped(pid: int) -> bool:
    """Whether a process is gone, without a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def wait_for_end(pid: int) -> None:
    """Wait until a child has ended, without reaping it."""
    options = os.WEXITED | os.WNOWAIT | os.WNOHANG
    wait_until(lambda: os.waitid(os.P_PID, pid, options), f"the end of process {pid}")
