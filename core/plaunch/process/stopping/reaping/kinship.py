"""Who descends from whom in a table of processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from plaunch.process.kernel.processes import Process


def ancestors_of(table: Mapping[int, Process], pid: int) -> set[int]:
    """A process, its parent, and so on, by number."""
    found: set[int] = set()
    while pid in table and pid not in found:
        found.add(pid)
        pid = table[pid].ppid
    return found


def children_by_parent(table: Mapping[int, Process]) -> dict[int, list[int]]:
    """The numbers of the children of each process that has any."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.ppid, []).append(process.pid)
    return children


def descend(
    owners: dict[int, int], children: Mapping[int, list[int]], excluded: Collection[int]
) -> None:
    """Give the descendants of what is owned to the same owners."""
    open_ends = list(owners)
    while open_ends:
        pid = open_ends.pop()
        for child in children.get(pid, ()):
            if child not in owners and child not in excluded:
                owners[child] = owners[pid]
                open_ends.append(child)
