"""Check of installed plugins: which are broken, and whether that stops a launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.doctor import Finding, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from plaunch.doctor import DoctorContext

    from plaunch_doctor.findings import Check
    from plaunch_doctor.listing import PluginStatus

_WHAT = "plugins"


def plugins_check(rows: Callable[[], Sequence[PluginStatus]], chosen: Mapping[str, str]) -> Check:
    """Make the check of all installed plugins.

    Args:
        rows: returns all plugins and their state, as for `--list-plugins`.
        chosen: the names that the options select, by kind.
    """

    def check(context: DoctorContext) -> Iterator[Finding]:
        """Load every plugin, and report the broken and ambiguous ones."""
        found = rows()
        for row in found:
            title = f"{row.kind}:{row.name} of {row.distribution} {row.version}"
            # Lifecycle plugins are always loaded. Others only matter if they are selected.
            is_used = row.is_always_on or chosen.get(row.kind) in (
                row.name,
                f"{row.distribution}:{row.name}",
            )
            block = f"-p no:{row.kind}:{row.name}"
            if row.is_broken:
                yield Finding(
                    Status.PROBLEM if is_used else Status.WARNING,
                    _WHAT,
                    f"{title} is broken: {row.detail}",
                    f"repair or remove it, or block it with {block}"
                    if row.is_always_on
                    else "repair or remove it, or select another one",
                )
            elif row.rivals and is_used:
                yield Finding(
                    Status.PROBLEM,
                    _WHAT,
                    f"{title} has the same name as one of {', '.join(row.rivals)}",
                    f"select {row.distribution}:{row.name}, or block one with -p no:DISTRIBUTION:"
                    f"{row.name}",
                )
        usable = sum(row.is_usable for row in found)
        owners = sorted({f"{r.distribution} {r.version}" for r in found if r.distribution != "-"})
        yield Finding(Status.OK, _WHAT, f"{usable} can be used, of {', '.join(owners)}")

    return check
