"""Attributes the out-of-memory kills in the kernel's log to this job or to others."""

from __future__ import annotations

import enum
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

_IS_ABOUT_KILL = re.compile(r"oom[-_ .]|out of memory|killed process", re.IGNORECASE)
_VICTIM = re.compile(
    r"killed process (\d+)|oom-kill:.*\bpid=(\d+)|oom_reaper: \D*(\d+)", re.IGNORECASE
)
_GROUP_OF_VICTIM = re.compile(r"\btask_memcg=([^,\s]+)")
# With memory.oom.group, as in Kubernetes, all processes of a group are killed together.
_GROUP_OF_VICTIMS = re.compile(r"\bTasks in (\S+) are going to be killed")
_GROUP_WITH_LIMIT = re.compile(r"\boom_memcg=([^,\s]+)")
# The first namespaces, whose process ids and paths are those of the kernel's log.
_FIRST = {"pid": "pid:[4026531836]", "cgroup": "cgroup:[4026531835]"}


def _read_file(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


class Owner(enum.Enum):
    """Whose process was killed."""

    JOB = "a worker of this job"
    GROUP = (
        "not workers of this job, but in its control group: perhaps their children, perhaps those "
        "of another job"
    )
    UNKNOWN = "cannot be attributed, as the kernel's log does not name a known process or group"
    OTHER = "of other control groups, whose lines are left out"


@dataclass(frozen=True)
class JobProcesses:
    """What identifies the processes of a job in the kernel's log.

    Args:
        pids: the process ids of its workers; empty if they are not those of the host.
        group: the path of its control group; None if that is not known.
    """

    pids: Collection[int]
    group: str | None

    @classmethod
    def here(
        cls,
        pids: Collection[int],
        read: Callable[[str], str] = _read_file,
        readlink: Callable[[str], str] = os.readlink,
    ) -> JobProcesses:
        """Identify the workers of this process by their pids, and the group that it is in.

        In a container, both are other than in the kernel's log.
        """
        is_on_host = {name: _is_first(name, readlink) for name in _FIRST}
        group = _find_group(read("/proc/self/cgroup")) if is_on_host["cgroup"] else None
        return cls(pids if is_on_host["pid"] else (), group)

    def owner_of(self, pid: int, group: str | None, limited: str | None) -> Owner:
        """Return whose process the kernel has killed.

        Args:
            pid: its process id.
            group: the path of its control group, if that is known.
            limited: that of the group whose limit was exceeded, if that is known.
        """
        if pid in self.pids:
            return Owner.JOB
        if group is None or self.group is None:
            return Owner.UNKNOWN
        is_near = _is_within(group, self.group)
        if limited is not None and limited != "/":
            is_near |= _is_within(self.group, limited)
        return Owner.GROUP if is_near else Owner.OTHER


class KillSorter:
    """Sorts the lines about out-of-memory kills; lines about anything else are kept.

    Args:
        job: the processes of the job.

    Attributes:
        victims: the process ids by owner.
    """

    def __init__(self, job: JobProcesses) -> None:
        self._job = job
        self._owners: dict[int, Owner] = {}
        self._group: str | None = None  # of all victims that follow
        self.victims: dict[Owner, list[int]] = {owner: [] for owner in Owner}

    def select(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines that are not about the processes of others.

        The first lines about a kill do not name the process, so they wait for one that does.
        """
        begun: list[str] = []
        for line in lines:
            if not _IS_ABOUT_KILL.search(line):
                yield line
                continue
            begun.append(line)
            if (together := _GROUP_OF_VICTIMS.search(line)) is not None:
                self._group = together[1]
            if (found := _VICTIM.search(line)) is None:
                continue
            if self._take(int(next(filter(None, found.groups()))), line) is not Owner.OTHER:
                yield from begun
            begun = []
        yield from begun

    def _take(self, pid: int, line: str) -> Owner:
        """Return whose process it is; only the first line about it names its group."""
        if pid not in self._owners:
            group, limited = _GROUP_OF_VICTIM.search(line), _GROUP_WITH_LIMIT.search(line)
            if group is not None:  # another kill begins
                self._group = None
            owner = self._job.owner_of(
                pid, group[1] if group else self._group, limited[1] if limited else None
            )
            self._owners[pid] = owner
            self.victims[owner].append(pid)
        return self._owners[pid]

    def describe(self) -> Iterator[str]:
        """Yield a line for each kind of owner, except for the job itself."""
        for owner in (Owner.GROUP, Owner.UNKNOWN):
            if pids := self.victims[owner]:
                yield f"killed for lack of memory, {owner.value}: {', '.join(map(str, pids))}"
        if count := len(self.victims[Owner.OTHER]):
            yield f"killed for lack of memory, {Owner.OTHER.value}: {count}"


def _is_within(path: str, folder: str) -> bool:
    return path == folder or (folder != "/" and path.startswith(f"{folder}/"))


def _is_first(name: str, readlink: Callable[[str], str]) -> bool:
    try:
        return readlink(f"/proc/self/ns/{name}") == _FIRST[name]
    except OSError:  # the kernel has no such namespaces
        return True


def _find_group(groups: str) -> str | None:
    """Return the path of the memory group in the text of /proc/self/cgroup."""
    found: str | None = None
    for line in groups.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            return path
        if not controllers:
            found = path
    return found
