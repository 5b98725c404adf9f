"""Entry points in groups that plaunch does not have; their authors have probably misspelt one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch._names import did_you_mean
from plaunch.plugin.kinds import GROUPS
from plaunch.plugin.metadata import scan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plaunch.plugin.metadata import EntryPoint

_PREFIX = "plaunch."  # of the groups


def unknown_entries(path: Sequence[str] | None = None) -> list[tuple[EntryPoint, str]]:
    """Return installed entry points in unknown groups of plaunch, each with the fault as a text.

    Args:
        path: folders to search for installed plugins; by default `sys.path`.
    """
    return [
        (
            entry,
            f"plaunch has no entry-point group {entry.group!r}{did_you_mean(entry.group, GROUPS)}",
        )
        for entry in scan(_UnknownGroups(), path)
    ]


def describe_misplaced(name: str) -> str:
    """Return the end of a message about a name that is listed in an unknown group, or ""."""
    for entry, fault in unknown_entries():
        distribution = entry.distribution.name
        if name in (entry.name, f"{distribution}:{entry.name}"):
            return f"; distribution {distribution!r} lists it, but {fault}"
    return ""


class _UnknownGroups:
    """All groups with plaunch's prefix but the known ones; iterating yields the prefix."""

    def __contains__(self, group: object) -> bool:
        return isinstance(group, str) and group.startswith(_PREFIX) and group not in GROUPS

    def __iter__(self) -> Iterator[str]:
        yield _PREFIX

    def __len__(self) -> int:
        return 1
