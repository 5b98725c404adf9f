"""The options that plugins declare, found by importing the declaring modules only."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from plaunch._names import suggest
from plaunch.errors import PluginLoadError, SignalException, UsageError
from plaunch.options import Option
from plaunch.plugin.kinds import WITH_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from plaunch.plugin.metadata import EntryPoint
    from plaunch.plugin.selection import Selection

_NAME = re.compile(r"--[a-z][a-z0-9]*(-[a-z0-9]+)*")


class PluginOptions(NamedTuple):
    """The options of one plugin.

    Args:
        name: the name of the plugin.
        owner: its distribution, for messages.
        options: its options.
        plugin: where its hooks are, as `module` or `module:object`; empty for a lifecycle plugin.
        declared_by: the module or object that declares the options.
        module: the name of the module that is imported for them.
    """

    name: str
    owner: str
    options: tuple[Option, ...]
    plugin: str
    declared_by: object = None
    module: str = ""


def load_options(entry: EntryPoint) -> PluginOptions:
    """Import the module that declares the options of a plugin.

    Raises:
        PluginLoadError: it cannot be imported, or its declaration is invalid.
    """
    owner = f"{entry.distribution.name} {entry.distribution.version}".rstrip()
    try:
        target = entry.target()
        declared = target.load()
        options, plugin = tuple(declared.OPTIONS), getattr(declared, "PLUGIN", "")
        _check(options, plugin)
    except (KeyboardInterrupt, SignalException):
        raise
    except BaseException as error:
        from plaunch.errors import one_line  # not on the way to --help

        raise PluginLoadError(
            f"the options of plugin {entry.name!r} ({owner}) cannot be used: {one_line(error)}"
        ) from error
    return PluginOptions(entry.name, owner, options, plugin, declared, target.module)


def _check(options: tuple[object, ...], plugin: object) -> None:
    for option in options:
        if not isinstance(option, Option):
            raise TypeError(f"{option!r} in OPTIONS is not a plaunch.options.Option")
        wrong = [name for name in option.names if not _NAME.fullmatch(name)]
        if wrong or not option.names:
            raise ValueError(f"{wrong} are not option names such as --acme-level")
    if not isinstance(plugin, str):
        raise TypeError(f"PLUGIN is {plugin!r}, not MODULE or MODULE:OBJECT")


def find_options(
    entries: Iterable[EntryPoint], selection: Selection
) -> tuple[list[PluginOptions], list[str]]:
    """Return the options of all installed plugins, and messages about those that are unusable.

    Args:
        entries: the installed entry points.
        selection: the user's choice; options of a blocked plugin are left out.
    """
    found: list[PluginOptions] = []
    problems: list[str] = []
    for entry in entries:
        which = WITH_OPTIONS.name, entry.name, entry.distribution.key
        if entry.group not in WITH_OPTIONS.groups or selection.reason_against(*which):
            continue
        try:
            found.append(load_options(entry))
        except PluginLoadError as error:
            problems.append(str(error))
    return found, problems


def options_of_package(
    declared: Iterable[PluginOptions],
    package: str,
    values: Mapping[str, object],
    environ: Mapping[str, str],
) -> Iterator[tuple[Option, object]]:
    """Yield the options that an import package declares, each with its value or default.

    Args:
        declared: the options of all plugins.
        package: the name of the package.
        values: the given options, by attribute.
        environ: the environment variables.

    Raises:
        UsageError: a value is invalid.
    """
    for plugin in declared:
        if plugin.module.partition(".")[0] == package:
            own = {o.dest: values[o.dest] for o in plugin.options if o.dest in values}
            resolved = resolve_options([plugin], own, environ).get(plugin.name, {})
            yield from ((o, resolved.get(o.dest, o.default)) for o in plugin.options)


def resolve_options(
    declared: Collection[PluginOptions], values: Mapping[str, object], environ: Mapping[str, str]
) -> dict[str, dict[str, object]]:
    """Return the option values of each plugin of which an option is given, by its name.

    Args:
        declared: the options of all plugins.
        values: the given options, by attribute; a text is parsed as on a command line.
        environ: the environment variables; options may have some.

    Raises:
        UsageError: a value belongs to no option, or is invalid.
    """
    left = dict(values)
    found: dict[str, dict[str, object]] = {}
    for plugin in declared:
        given: dict[str, object] = {}
        for option in plugin.options:
            variable = next((name for name in option.variables if name in environ), None)
            if option.dest in left:
                value = left.pop(option.dest)
                where = f"option {option.dest!r} of plugin {plugin.name!r}"
            elif variable is not None:
                value, where = environ[variable], f"variable {variable}"
            else:
                continue
            if isinstance(value, str):
                try:
                    value = option.value_of(value)
                except ValueError as error:
                    raise UsageError(f"{where}: {error}") from None
            given[option.dest] = value
        if given:
            found[plugin.name] = {option.dest: option.default for option in plugin.options} | given
    for name in left:
        known = {option.dest for plugin in declared for option in plugin.options}
        raise UsageError(f"no plugin has an option {name!r}{suggest(name, known)}")
    return found
