"""The list of all plugins and their state, which no broken plugin can spoil."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from plaunch.errors import DuplicateNameError, SignalException
from plaunch.plugin.calls import one_line
from plaunch.plugin.entry_points import scan
from plaunch.plugin.groups import GROUPS
from plaunch.plugin.installed import Installed
from plaunch.plugin.loading import title_of
from plaunch.plugin.manager import PluginManager
from plaunch.plugin.registry import ALL_KINDS, KINDS, LIFECYCLE, WITH_OPTIONS
from plaunch.plugin.selection import AUTOLOAD_VARIABLE, Selection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from plaunch.plugin.entry_points import EntryPoint
    from plaunch.plugin.registry import Kind

READY = "ready"
BLOCKED = "blocked"
BROKEN = "broken"
SHADOWED = "shadowed"
_NOT_INSTALLED = "-"


@dataclass(frozen=True)
class PluginStatus:
    """One plugin, or one name of it.

    Args:
        kind: the kind's name, "plugin" for plugins that only have hooks.
        name: the plugin's name.
        distribution: the distribution that it belongs to; "-" for one that is not installed.
        version: the distribution's version; "-" for a plugin that is not installed.
        status: "ready", "blocked", "broken" or "shadowed".
        detail: why it is blocked, broken or shadowed.
        rivals: other distributions that offer the same name, so that it means none of them.
    """

    kind: str
    name: str
    distribution: str
    version: str
    status: str = READY
    detail: str = ""
    rivals: tuple[str, ...] = ()

    @property
    def is_always_on(self) -> bool:
        """Whether it is loaded in each launch, so that every launch fails if it is broken."""
        return self.kind == LIFECYCLE.name

    @property
    def is_broken(self) -> bool:
        """Whether it cannot be loaded."""
        return self.status == BROKEN

    @property
    def is_usable(self) -> bool:
        """Whether it can be selected."""
        return self.status not in (BROKEN, BLOCKED)


def list_plugins(
    plugins: Sequence[object] = (),
    *,
    words: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    path: Sequence[str] | None = None,
) -> list[PluginStatus]:
    """Say of each plugin whether it works, by loading it.

    Those that are blocked are not loaded, nor is what a bare name does not mean: torch's `default`
    logs spec would cost more than everything else.

    Args:
        plugins: plugins passed in code.
        words: the arguments of `-p`.
        environ: the environment variables; by default this process's.
        path: folders to look for installed plugins in; by default `sys.path`.

    Raises:
        UsageError: one of the words is empty.
    """
    said = Selection(words, os.environ if environ is None else environ)
    catalogue = Installed(scan(GROUPS, path), said)
    rows: list[PluginStatus] = []
    for kind in ALL_KINDS:
        found = [_check_entry(kind, entry, catalogue) for entry in catalogue.usable(kind)]
        found += [_blocked(kind, entry, word.source) for entry, word in catalogue.blocked(kind)]
        found += [_blocked(kind, entry, AUTOLOAD_VARIABLE) for entry in catalogue.hidden(kind)]
        rows += sorted(found, key=lambda row: (row.name, row.distribution))
    for plugin in plugins:
        rows += _check_object(title_of(plugin)[0], [plugin], said)
    for word in said.loads:
        if not catalogue.named(word) and catalogue.blocker_of(word) is None:
            rows += _check_object(word.text, [], Selection([word.text], {}))
    return rows


def installed_names(
    kind: str, path: Sequence[str] | None = None, environ: Mapping[str, str] | None = None
) -> list[str]:
    """The names of the plugins of one kind that could be selected, sorted; imports none of them.

    Args:
        kind: the name of a kind; `all` for all of them.
        path: folders to look for installed plugins in; by default `sys.path`.
        environ: the environment variables; by default this process's.
    """
    catalogue = Installed(
        scan(GROUPS, path), Selection((), os.environ if environ is None else environ)
    )
    if kind == "all":
        return catalogue.all_names()
    return sorted({e.name for k in ALL_KINDS if k.name == kind for e in catalogue.usable(k)})


def format_plugins(rows: Sequence[PluginStatus]) -> str:
    """Lay `rows` out as a table with one line for each, headings first."""
    table = [("KIND", "NAME", "DISTRIBUTION", "VERSION", "STATUS")]
    table += [(r.kind, r.name, r.distribution, r.version, _status(r)) for r in rows]
    widths = [max(len(line[column]) for line in table) for column in range(4)]
    return "".join(
        "  ".join([*(line[column].ljust(widths[column]) for column in range(4)), line[4]]) + "\n"
        for line in table
    )


def _status(row: PluginStatus) -> str:
    status = row.status
    if row.detail:
        status += f": {row.detail}" if status == BROKEN else f" {row.detail}"
    if row.rivals:
        status += (
            f" (name also in {', '.join(row.rivals)}; this one is {row.distribution}:{row.name})"
        )
    return status


def _row(kind: Kind[Any], entry: EntryPoint) -> PluginStatus:
    distribution = entry.distribution
    return PluginStatus(
        kind.name, entry.name, distribution.name, distribution.version or _NOT_INSTALLED
    )


def _blocked(kind: Kind[Any], entry: EntryPoint, by: str) -> PluginStatus:
    return replace(_row(kind, entry), status=BLOCKED, detail=f"by {by}")


def _check_entry(kind: Kind[Any], entry: EntryPoint, catalogue: Installed) -> PluginStatus:
    row = _row(kind, entry)
    try:
        meant = catalogue.find(kind, entry.name)
    except DuplicateNameError:
        row = replace(row, rivals=_rivals(kind, entry, catalogue))
    else:
        if meant is not None and meant is not entry:
            return replace(
                row,
                status=SHADOWED,
                detail=f"by {meant.distribution.name}; select it as {row.distribution}:{row.name}",
            )
    # On its own, so that whatever is wrong with another plugin is not held against this one.
    manager = PluginManager(Installed([entry], Selection((), {})), time.monotonic)
    try:
        manager.load_initial()
        if kind.hook:
            manager.get(kind, entry.name)
        elif kind is WITH_OPTIONS:
            manager.load_named(kind, entry.name)
    except (KeyboardInterrupt, SignalException):
        raise
    except BaseException as error:  # noqa: BLE001 - the list is what finds a broken plugin
        return replace(row, status=BROKEN, detail=_cause(error))
    return row


def _rivals(kind: Kind[Any], entry: EntryPoint, catalogue: Installed) -> tuple[str, ...]:
    """The other distributions that offer the name."""
    return tuple(
        sorted(
            other.distribution.name
            for other in catalogue.usable(kind)
            if other.name == entry.name and other is not entry
        )
    )


def _check_object(name: str, plugins: Sequence[object], words: Selection) -> list[PluginStatus]:
    """Check a plugin that is not installed: an object, or the module that `words` names."""
    row = PluginStatus(LIFECYCLE.name, name, _NOT_INSTALLED, _NOT_INSTALLED)
    manager = PluginManager(Installed([], words), time.monotonic)
    try:
        manager.load_initial(plugins)
        if not manager.selected():
            return [replace(row, status=BLOCKED, detail=f"by {_blocker(words, name)}")]
        offered = [(kind.name, offer) for kind in KINDS for offer in manager.names(kind)]
    except (KeyboardInterrupt, SignalException):
        raise
    except BaseException as error:  # noqa: BLE001 - the list is what finds a broken plugin
        return [replace(row, status=BROKEN, detail=_cause(error))]
    return [row, *(replace(row, kind=kind, name=offer) for kind, offer in offered)]


def _blocker(words: Selection, name: str) -> str:
    word = words.blocker(LIFECYCLE, name)
    return "a word" if word is None else word.source


def _cause(error: BaseException) -> str:
    """What is wrong, without the words about whose it is: the row says that."""
    return " ".join(str(error).split()) if error.__cause__ is None else one_line(error.__cause__)
