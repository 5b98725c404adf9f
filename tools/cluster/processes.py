"""What the clusters share: processes that a variable marks, and how a command runs in one."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

VARIABLE = "CLUSTER_NODE"  # in the environment of the processes of a node: FOLDER/NODE
KILL_LIMIT = 20.0  # seconds for processes to end after SIGKILL
MAX_PATH = 30  # characters of a folder with sockets, whose paths Linux limits to 107


class ClusterError(Exception):
    """A cluster cannot be started or used."""


@dataclass(frozen=True)
class CommandContext:
    """How a command runs in a cluster.

    Args:
        prefix: the words in front of it.
        env: its variables.
        path: the folders in front of its PATH.
    """

    prefix: Sequence[str] = ()
    env: dict[str, str] = field(default_factory=dict)
    path: Sequence[str] = ()


def require_short(folder: Path) -> None:
    """Refuse a folder in which no socket can be created.

    Raises:
        ClusterError: its path is too long.
    """
    if len(str(folder)) > MAX_PATH:
        raise ClusterError(
            f"{folder} is longer than {MAX_PATH} characters, too long for the sockets in it; "
            "choose another one with --folder"
        )


def pids() -> list[int]:
    """Return all processes."""
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def words_of(pid: int) -> list[str]:
    """Return the command line of a process; empty if there is none."""
    try:
        return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).rstrip("\0").split("\0")
    except OSError:
        return []


def children_of(pid: int) -> list[int]:
    """Return the children of a process; empty if there is none."""
    with contextlib.suppress(OSError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def marked(folder: Path, node: str = "") -> list[int]:
    """Return the processes that are marked as those of a node, or of any node of a cluster."""
    mark = os.fsencode(f"{VARIABLE}={folder}/{node}")
    found = []
    for pid in pids():
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if entry == mark or (not node and entry.startswith(mark)):
                    found.append(pid)
    return found


def kill_all(find: Callable[[], Iterable[int]]) -> None:
    """Kill processes until none is found.

    Raises:
        ClusterError: some do not end.
    """
    until = time.monotonic() + KILL_LIMIT
    while found := [pid for pid in find() if is_running(pid)]:
        if time.monotonic() > until:
            left = ", ".join(f"{pid} ({' '.join(words_of(pid))})" for pid in found)
            raise ClusterError(f"processes {left} do not end within {KILL_LIMIT:g} s of SIGKILL")
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
