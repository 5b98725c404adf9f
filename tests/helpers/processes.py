"""Whether processes have ended, and how they are related."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from helpers.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

# For tests of forks beside threads, of which Python warns.
forks_beside_threads = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded, use of fork"
)


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


def children_of(pid: int) -> list[int]:
    """Return the children of the first thread of a process."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def parent_of(pid: int) -> int:
    """Return the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def ancestors_of(pid: int) -> Iterator[int]:
    """Yield the parent of a process, its parent, and so on."""
    while pid > 1:
        pid = parent_of(pid)
        yield pid
