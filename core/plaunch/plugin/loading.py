"""From an entry point to a plugin object, and everything that can be wrong with either."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plaunch.defaults import TORCHRUN_CREATORS, TORCHRUN_LOGS_SPECS, load_default
from plaunch.errors import PluginLoadError, SignalException
from plaunch.plugin.calls import one_line
from plaunch.plugin.groups import TORCHRUN_HANDLERS
from plaunch.plugin.hookspecs import hookimpl
from plaunch.plugin.registry import LIFECYCLE, LOGS_SPECS, Kind, T
from plaunch.process.streams.logs import LogsSpecs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from plaunch.plugin.entry_points import Distribution, EntryPoint, Target

logger = logging.getLogger("plaunch")

SLOW_IMPORT = 1.0  # seconds after which a plugin is named for what it adds to the start

_PREFIX = "plaunch_"
_MARK = "plaunch_impl"  # what pluggy's marker sets on a function


@dataclass(frozen=True)
class LoadedPlugin:
    """A plugin of this launch, and where it comes from.

    `distribution` and `version` are empty for plugins that were passed in code or are modules
    named with `-p`; `module` is the module that was imported, or that defines the object.
    """

    kind: str
    name: str
    distribution: str
    version: str
    module: str


class BarePlugin:
    """A class or function that an entry point names, as a plugin that offers it under that name."""

    def __init__(self, kind: Kind[Any], name: str, thing: object) -> None:
        self._description = f"{kind.label} {name!r}: {thing!r}"
        offer = {name: thing}

        @hookimpl
        def offers() -> dict[str, object]:
            return offer

        setattr(self, kind.hook, offers)

    def __repr__(self) -> str:
        return f"BarePlugin({self._description})"


def describe(label: str, name: str, distribution: Distribution | None, module: str) -> str:
    """How messages call a plugin: its kind and name, its distribution and version, its module."""
    return f"{label} {name!r} ({origin_of(distribution, module)})"


def origin_of(distribution: Distribution | None, module: str) -> str:
    """Where a plugin comes from: its distribution and version, if it was installed; its module."""
    if distribution is None:
        return f"module {module}"
    release = f"{distribution.name} {distribution.version}".rstrip()
    return f"distribution {release}, module {module}"


def title_of(plugin: object) -> tuple[str, str]:
    """The name of a plugin that was passed in code, and the module that defines it."""
    if inspect.ismodule(plugin):
        return plugin.__name__, plugin.__name__
    cls = plugin if isinstance(plugin, type) else type(plugin)
    return cls.__name__, cls.__module__


def load_entry(kind: Kind[Any], entry: EntryPoint, instances: dict[type, object]) -> object:
    """Import what `entry` refers to and return it as a plugin with hooks.

    `instances` are the plugins that were made from classes so far; a new one is added.

    Raises:
        PluginLoadError: it cannot be imported, is not there, or is nothing that a plugin may be.
    """
    try:
        target = entry.target()
    except ValueError:
        who = describe(kind.label, entry.name, entry.distribution, entry.value)
        raise PluginLoadError(
            f"{who} cannot be loaded: its entry point is not of the form MODULE:OBJECT, which "
            f"only the author of {entry.distribution.name!r} can mend"
        ) from None
    who = describe(kind.label, entry.name, entry.distribution, target.module)
    with _blaming(who, entry, target):
        value: object = importlib.import_module(target.module)
        for part in filter(None, target.attribute.split(".")):
            value = getattr(value, part)
    if has_hooks(who, value):
        with _blaming(who, entry, target):
            return instance_of(value, instances)
    if not kind.hook:
        raise PluginLoadError(f"{who} has no hooks: nothing in it is marked with plaunch.hookimpl")
    if entry.group == TORCHRUN_HANDLERS:
        bridge_creator = load_default(TORCHRUN_CREATORS)
        with _blaming(who, entry, target):
            value = bridge_creator(who, entry.name, value)
    return BarePlugin(kind, entry.name, value)


def is_module_name(text: str) -> bool:
    """Whether a module could have this name; a path, or a kind and a name, is none."""
    return not (text.startswith(".") or ":" in text or "/" in text)


def load_module(name: str) -> object | None:
    """Import module `name` as a plugin, for `-p NAME`; None if there is no such module.

    Raises:
        PluginLoadError: it exists but cannot be imported, or it has no hooks.
    """
    who = describe(LIFECYCLE.label, name, None, name)
    try:
        module = importlib.import_module(name)
    except (KeyboardInterrupt, SignalException):
        raise
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and _is_about(error, name):
            return None
        raise PluginLoadError(f"{who} cannot be loaded: {one_line(error)}") from error
    if not has_hooks(who, module):
        raise PluginLoadError(f"{who} has no hooks: nothing in it is marked with plaunch.hookimpl")
    return module


def has_hooks(who: str, value: object) -> bool:
    """Whether `value` has hook implementations.

    Raises:
        PluginLoadError: a function in it is named like a hook but is not marked as one.
    """
    if inspect.isroutine(value):
        return False
    found = False
    for name, function in _functions(value):
        if hasattr(function, _MARK):
            found = True
        elif name.startswith(_PREFIX):
            raise PluginLoadError(
                f"{who} has a function {name!r}, which is named like a hook but is not marked "
                "with plaunch.hookimpl; mark it or rename it"
            )
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


def keeping_signals(who: str, doing: str) -> AbstractContextManager[None]:
    """Run a third party's code; see `plaunch.plugin.dispositions`."""
    from plaunch.plugin.dispositions import kept_dispositions  # noqa: PLC0415 - theirs only

    return kept_dispositions(who, doing)


@contextlib.contextmanager
def watched_loading(who: str, clock: Callable[[], float]) -> Iterator[None]:
    """Import a plugin; what that changes about signals is put back, and a slow one is named."""
    began = clock()
    with keeping_signals(who, "while it was loaded"):
        yield
    duration = clock() - began
    if duration > SLOW_IMPORT:
        logger.warning("%s took %.1f s to load, for which every launch waits", who, duration)


@contextlib.contextmanager
def _blaming(who: str, entry: EntryPoint, target: Target) -> Iterator[None]:
    """Turn whatever a plugin's own code raises into an error that names the plugin."""
    try:
        yield
    except (KeyboardInterrupt, SignalException):
        raise
    except BaseException as error:
        # Also SystemExit: a module that ends the process when it is imported is a broken plugin.
        advice = _advice(entry, target, error)
        raise PluginLoadError(f"{who} cannot be loaded: {one_line(error)}{advice}") from error


def _advice(entry: EntryPoint, target: Target, error: BaseException) -> str:
    if not isinstance(error, ModuleNotFoundError):
        return ""
    distribution = entry.distribution.name
    if _is_about(error, target.module):
        return f"; reinstall {distribution!r}, which lists it"
    if target.extras:
        return f"; pip install '{distribution}[{','.join(target.extras)}]'"
    return ""


def _is_about(error: ModuleNotFoundError, module: str) -> bool:
    """Whether it is `module` that was not found, and not something that it imports."""
    missing = error.name
    return missing is not None and (module == missing or module.startswith(f"{missing}."))


def function_at(value: object, name: str) -> object | None:
    """The function or method `name` of `value`, as it was defined; None for anything else.

    No property is run, which might do or raise whatever it likes.
    """
    member = inspect.getattr_static(value, name, None)
    function = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        return None
    return member if hasattr(member, _MARK) else function


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
