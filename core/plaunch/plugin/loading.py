"""From an entry point to a plugin object, and everything that can be wrong with either."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

from plaunch.defaults import TORCHRUN_CREATORS, TORCHRUN_LOGS_SPECS, load_default
from plaunch.errors import PluginLoadError, SignalException
from plaunch.plugin.calls import one_line
from plaunch.plugin.hookspecs import hookimpl
from plaunch.plugin.loaded import LoadedPlugin
from plaunch.plugin.registry import LOGS_SPECS, TORCHRUN_HANDLERS, Kind, T
from plaunch.process.streams.logs import LogsSpecs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch.plugin.entry_points import EntryPoint, Target

_PREFIX = "plaunch_"
_MARK = "plaunch_impl"  # what pluggy's marker sets on a function


class BarePlugin:
    """A class or function that an entry point names, as a plugin that offers it under that name."""

    def __init__(self, kind: Kind[Any], name: str, thing: object) -> None:
        setattr(self, kind.hook, hookimpl(lambda: {name: thing}))


def title_of(plugin: object) -> tuple[str, str]:
    """The name of a plugin that was passed in code, and the module that defines it."""
    if inspect.ismodule(plugin):
        return plugin.__name__, plugin.__name__
    cls = plugin if isinstance(plugin, type) else type(plugin)
    return cls.__name__, cls.__module__


def source_of(kind: Kind[Any], entry: EntryPoint) -> LoadedPlugin:
    """Where what an entry point names comes from."""
    distribution, module = entry.distribution, entry.value
    with contextlib.suppress(ValueError):
        module = entry.target().module
    return LoadedPlugin(kind.name, entry.name, distribution.name, distribution.version, module)


def load_entry(
    kind: Kind[Any], entry: EntryPoint, who: str, instances: dict[type, object]
) -> object:
    """Import what `entry` refers to and return it as a plugin with hooks.

    `instances` are the plugins that were made from classes so far; a new one is added.

    Raises:
        PluginLoadError: it cannot be imported, is not there, or is nothing that a plugin may be.
    """
    try:
        target = entry.target()
    except ValueError:
        raise PluginLoadError(
            f"{who} cannot be loaded: its entry point is not of the form MODULE:OBJECT; the "
            f"author of {entry.distribution.name!r} must correct it"
        ) from None
    blaming = partial(_blaming, who, entry, target)
    with blaming():
        value = target.load()
    if has_hooks(who, value, is_required=not kind.hook):
        with blaming():
            return instance_of(value, instances)
    if entry.group == TORCHRUN_HANDLERS:
        bridge_creator = load_default(TORCHRUN_CREATORS)
        with blaming():
            value = bridge_creator(who, entry.name, value)
    return BarePlugin(kind, entry.name, value)


def load_module(name: str, who: str) -> object | None:
    """Import module `name` as a plugin, for `-p NAME`; None if there is no such module.

    Raises:
        PluginLoadError: it exists but cannot be imported, or it has no hooks.
    """
    try:
        with _blaming(who):
            module = importlib.import_module(name)
    except PluginLoadError as error:
        if _lacks(error.__cause__, name):
            return None
        raise
    has_hooks(who, module, is_required=True)
    return module


def make_plugin(plugin: object, who: str, instances: dict[type, object]) -> object:
    """A plugin that was passed in code, as the object that has its hooks.

    Raises:
        PluginLoadError: it has none, or is a class that cannot be instantiated.
    """
    if not has_hooks(who, plugin):
        raise PluginLoadError(
            f"{who}, passed in code, has no hooks: nothing in {plugin!r} is marked with "
            "plaunch.hookimpl"
        )
    with _blaming(who, doing="created"):
        return instance_of(plugin, instances)


def has_hooks(who: str, value: object, *, is_required: bool = False) -> bool:
    """Whether `value` has hook implementations.

    Raises:
        PluginLoadError: a function in it is named like a hook but is not marked as one; or it has
            none, and `is_required`.
    """
    found = False
    for name, function in () if inspect.isroutine(value) else _functions(value):
        if hasattr(function, _MARK):
            found = True
        elif name.startswith(_PREFIX):
            raise PluginLoadError(
                f"{who} has a function {name!r}, which is named like a hook but is not marked "
                "with plaunch.hookimpl; mark it, or rename it"
            )
    if is_required and not found:
        raise PluginLoadError(f"{who} has no hooks: nothing in it is marked with plaunch.hookimpl")
    return found


def instance_of(value: object, instances: dict[type, object]) -> object:
    """`value`, or the one instance of it if it is a class: hooks are methods of an object."""
    if not inspect.isclass(value):
        return value
    if value not in instances:
        instances[value] = value()
    return instances[value]


def checked(kind: Kind[T], who: str, thing: object) -> T:
    """`thing`, once it is known that a name of `kind` may give it; bridges torch's logs specs.

    Raises:
        PluginLoadError: a name of this kind gives something else.
    """
    fit: Any = thing
    if not callable(thing):
        raise PluginLoadError(
            f"{who} gives {thing!r}, which cannot be called; {kind.hook} says what a "
            f"{kind.label} is"
        )
    if kind.name == LOGS_SPECS.name and not (
        isinstance(thing, type) and issubclass(thing, LogsSpecs)
    ):
        fit = load_default(TORCHRUN_LOGS_SPECS)(thing)
        if fit is None:
            raise PluginLoadError(
                f"{who} gives {thing!r}, which is not a class derived from "
                "plaunch.process.LogsSpecs or from torch's LogsSpecs"
            )
    return fit  # type: ignore[no-any-return]


def function_at(value: object, name: str) -> object | None:
    """The function or method `name` of `value`, as it was defined; None for anything else.

    No property is run, because it might do or raise anything.
    """
    member = inspect.getattr_static(value, name, None)
    function = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        return None
    return member if hasattr(member, _MARK) else function


@contextlib.contextmanager
def _blaming(
    who: str,
    entry: EntryPoint | None = None,
    target: Target | None = None,
    *,
    doing: str = "loaded",
) -> Iterator[None]:
    """Turn whatever a plugin's own code raises into an error that names the plugin."""
    try:
        yield
    except (KeyboardInterrupt, SignalException):
        raise
    except BaseException as error:
        # Also SystemExit: a module that ends the process when it is imported is a broken plugin.
        advice = _advice(entry, target, error) if entry and target else ""
        raise PluginLoadError(f"{who} cannot be {doing}: {one_line(error)}{advice}") from error


def _advice(entry: EntryPoint, target: Target, error: BaseException) -> str:
    if not isinstance(error, ModuleNotFoundError):
        return ""
    distribution = entry.distribution.name
    if _lacks(error, target.module):
        return f"; reinstall {distribution!r}, which lists it"
    if target.extras:
        return f"; pip install '{distribution}[{','.join(target.extras)}]'"
    return ""


def _lacks(error: BaseException | None, module: str) -> bool:
    """Whether it is `module` that was not found, and not something that it imports."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return missing is not None and (module == missing or module.startswith(f"{missing}."))


def _functions(value: object) -> Iterator[tuple[str, object]]:
    """The functions of `value` that may be hooks, by name."""
    is_module = inspect.ismodule(value)
    home = getattr(value, "__name__", None)
    for name in dir(value):
        function = function_at(value, name)
        if function is None:
            continue
        # What a module has imported from another one under such a name is not meant as its hook.
        if is_module and not hasattr(function, _MARK) and function.__module__ != home:
            continue
        yield name, function
