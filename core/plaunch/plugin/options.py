"""The options that plugins declare: found without importing anything but what declares them."""

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
        options: what it declares.
        plugin: what has its hooks, as `module` or `module:object`; empty if it is always on.
        declared_by: the module or object that declares them.
        module: the name of the module that is imported for that.
    """

    name: str
    owner: str
    options: tuple[Option, ...]
    plugin: str
    declared_by: object = None
    module: str = ""


def load_options(entry: EntryPoint) -> PluginOptions:
    """Import what declares the options of a plugin.

    Raises:
        PluginLoadError: it cannot be imported, or declares something else.
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
        from plaunch.process.failures.error_file import one_line  # not on the way to --help

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
    """The options of all installed plugins, and what is wrong with those that cannot be used.

    Args:
        entries: what is installed.
        selection: what the user says about plugins; the options of one that is blocked are not
            there.
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
    """The options that an import package declares, each with its value, given or not.

    Args:
        declared: the options that there are.
        package: the name of the package.
        values: the options that are given, by attribute.
        environ: the environment variables.

    Raises:
        UsageError: a value cannot be one of its option.
    """
    for plugin in declared:
        if plugin.module.partition(".")[0] == package:
            own = {o.dest: values[o.dest] for o in plugin.options if o.dest in values}
            resolved = resolve_options([plugin], own, environ).get(plugin.name, {})
            yield from ((o, resolved.get(o.dest, o.default)) for o in plugin.options)


def resolve_options(
    declared: Collection[PluginOptions], values: Mapping[str, object], environ: Mapping[str, str]
) -> dict[str, dict[str, object]]:
    """The values of the options of each plugin, by its name, if one of its options is given.

    Args:
        declared: the options that there are.
        values: those that are given, by attribute; a text is read as on a command line.
        environ: the environment variables, some of which may give an option.

    Raises:
        UsageError: a value belongs to no option, or cannot be one of its option.
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
