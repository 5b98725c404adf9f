"""The list of all plugins and their state (`--list-plugins`). Each plugin is loaded on its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from plaunch.errors import DuplicateNameError, SignalException
from plaunch.plugin import (
    ALL_KINDS,
    KINDS,
    LIFECYCLE,
    WITH_OPTIONS,
    PluginManager,
    installed_plugins,
    one_line,
    unknown_entries,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from plaunch.cli import Invocation
    from plaunch.plugin import EntryPoint, Installed, Kind

READY = "ready"
BLOCKED = "blocked"
BROKEN = "broken"
SHADOWED = "shadowed"
_NOT_INSTALLED = "-"


@dataclass(frozen=True)
class PluginStatus:
    """One plugin, or one name of it.

    Args:
        kind: the kind's name; "plugin" for lifecycle plugins.
        name: the plugin's name.
        distribution: the distribution that provides it; "-" for one that is not installed.
        version: the distribution's version; "-" for a plugin that is not installed.
        status: "ready", "blocked", "broken" or "shadowed".
        detail: why it is blocked, broken or shadowed.
        rivals: other distributions that provide the same name, which makes the name ambiguous.
        has_hooks: whether a plugin with options also has hooks, called if an option is given.
    """

    kind: str
    name: str
    distribution: str
    version: str
    status: str = READY
    detail: str = ""
    rivals: tuple[str, ...] = ()
    has_hooks: bool = False

    @property
    def is_always_on(self) -> bool:
        """Whether every launch loads it, and so fails if it is broken."""
        return self.kind == LIFECYCLE.name

    @property
    def is_broken(self) -> bool:
        """Whether loading it fails."""
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
    """Load each plugin, and return its state.

    Blocked and shadowed plugins are not loaded: torch's `default` logs spec, which plaunch's
    shadows, takes longer than all others together.

    Args:
        plugins: plugins passed in code.
        words: the arguments of `-p`.
        environ: the environment variables; by default this process's.
        path: folders to look for installed plugins in; by default `sys.path`.

    Raises:
        UsageError: one of the words is empty.
    """
    installed = installed_plugins(words, environ, path)
    selection = installed.selection
    rows: list[PluginStatus] = []
    for kind in ALL_KINDS:
        found = [_check_entry(kind, entry, installed) for entry in installed.usable(kind)]
        found += [_blocked(_row(kind, entry), by) for entry, by in installed.left_out(kind)]
        rows += sorted(found, key=lambda row: (row.name, row.distribution))
    for entry, fault in unknown_entries(path):
        row = PluginStatus(
            entry.group,
            entry.name,
            entry.distribution.name,
            entry.distribution.version or _NOT_INSTALLED,
            BROKEN,
            fault,
        )
        rows.append(row)
    blocks = [f"no:{word.text}" for word in selection.blocks]
    for plugin in plugins:
        row = _not_installed(getattr(plugin, "__name__", type(plugin).__name__))
        blocker = selection.blocker(row.kind, row.name)
        rows += [_blocked(row, blocker)] if blocker else _check_object(row, [plugin], blocks)
    for word in selection.loads:
        if not installed.named(word) and not installed.blocker_of(word):
            rows += _check_object(_not_installed(word.text), [], [*blocks, word.text])
    return rows


def show_plugins(invocation: Invocation) -> int:
    """Print the list of all plugins and their state: `--list-plugins`."""
    rows = list_plugins(invocation.plugins, words=invocation.options["plugins"])
    invocation.write(format_plugins(rows))
    return 0


def format_plugins(rows: Sequence[PluginStatus]) -> str:
    """Format `rows` as a table with headings."""
    table = [("KIND", "NAME", "DISTRIBUTION", "VERSION", "STATUS")]
    table += [(_kind(r), r.name, r.distribution, r.version, _status(r)) for r in rows]
    widths = [max(len(line[column]) for line in table) for column in range(4)]
    return "".join(
        "  ".join([*(line[column].ljust(widths[column]) for column in range(4)), line[4]]) + "\n"
        for line in table
    )


def _kind(row: PluginStatus) -> str:
    return f"{row.kind}+hooks" if row.has_hooks else row.kind


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


def _not_installed(name: str) -> PluginStatus:
    return PluginStatus(LIFECYCLE.name, name, _NOT_INSTALLED, _NOT_INSTALLED)


def _blocked(row: PluginStatus, by: str) -> PluginStatus:
    return replace(row, status=BLOCKED, detail=f"by {by}")


def _check_entry(kind: Kind[Any], entry: EntryPoint, installed: Installed) -> PluginStatus:
    row = _row(kind, entry)
    try:
        meant = installed.find(kind, entry.name)
    except DuplicateNameError:
        alike = [one for one in installed.usable(kind) if one.name == entry.name and one != entry]
        row = replace(row, rivals=tuple(sorted(one.distribution.name for one in alike)))
    else:
        if meant is not None and meant is not entry:
            return replace(
                row,
                status=SHADOWED,
                detail=f"by {meant.distribution.name}; select it as {row.distribution}:{row.name}",
            )
    try:
        # Load it alone, so that a broken plugin does not affect the state of others.
        manager = PluginManager.create(environ={}, entries=[entry])
        if kind.hook:
            manager.get(kind, entry.name)
        elif kind is WITH_OPTIONS:
            has_hooks = manager.load_named(kind, entry.name) is not None
            row = replace(row, has_hooks=has_hooks)
    except (KeyboardInterrupt, SignalException):
        raise
    except BaseException as error:  # noqa: BLE001 - reported as the plugin's state
        return replace(row, status=BROKEN, detail=_cause(error))
    return row


def _check_object(
    row: PluginStatus, plugins: Sequence[object], words: Sequence[str]
) -> list[PluginStatus]:
    """Check a plugin that is not installed: an object, or the module that a word names."""
    try:
        manager = PluginManager.create(plugins, words=words, environ={}, entries=[])
        offered = [(kind.name, offer) for kind in KINDS for offer in manager.names(kind)]
    except (KeyboardInterrupt, SignalException):
        raise
    except BaseException as error:  # noqa: BLE001 - reported as the plugin's state
        return [replace(row, status=BROKEN, detail=_cause(error))]
    return [row, *(replace(row, kind=kind, name=offer) for kind, offer in offered)]


def _cause(error: BaseException) -> str:
    """Return the cause without the plugin's name, which the row already has."""
    return " ".join(str(error).split()) if error.__cause__ is None else one_line(error.__cause__)
