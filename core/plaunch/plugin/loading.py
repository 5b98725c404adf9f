"""From an entry point, a module or an object to what has hooks, and what can be wrong with it."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

from plaunch._names import suggest
from plaunch.defaults import TORCHRUN_CREATORS, TORCHRUN_LOGS_SPECS, load_default
from plaunch.errors import PluginLoadError
from plaunch.plugin import hookspecs
from plaunch.plugin.calls import blaming
from plaunch.plugin.hookspecs import hookimpl
from plaunch.plugin.registry import LOGS_SPECS, TORCHRUN_HANDLERS, Kind, T
from plaunch.process.streams.logs import LogsSpecs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from plaunch.plugin.entry_points import EntryPoint, Target

_PREFIX = "plaunch_"
_MARKS = "plaunch_impl"  # the attribute that pluggy's marker gives a function
_HOOKS = tuple(name for name in vars(hookspecs) if name.startswith(_PREFIX))
_NOT_PLAIN: tuple[Callable[[object], bool], ...] = (
    inspect.iscoroutinefunction,
    inspect.isgeneratorfunction,
    inspect.isasyncgenfunction,
)


class BarePlugin:
    """A class or function that an entry point names, as a plugin that offers it under that name."""

    def __init__(self, kind: Kind[Any], name: str, thing: object) -> None:
        setattr(self, kind.hook, hookimpl(lambda: {name: thing}))


class Hooks:
    """What pluggy gets of a plugin: its hooks, and nothing else that it might run or compare."""

    def __init__(self, plugin: object) -> None:
        for name, function in _functions(plugin):
            if hasattr(function, _MARKS):
                setattr(self, name, getattr(plugin, name))


def load_entry(kind: Kind[Any], entry: EntryPoint, who: str) -> object:
    """Import what `entry` refers to: a module, object or class with hooks.

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
    failure = f"{who} cannot be loaded"
    with blaming(failure, PluginLoadError, advice=lambda error: _advice(entry, target, error)):
        value = target.load()
    if has_hooks(who, value, is_required=not kind.hook):
        return value
    if entry.group == TORCHRUN_HANDLERS:
        bridge_creator = load_default(TORCHRUN_CREATORS)
        with blaming(failure, PluginLoadError):
            value = bridge_creator(who, entry.name, value)
    return BarePlugin(kind, entry.name, value)


def load_module(name: str, who: str) -> object | None:
    """Import module `name`, for `-p NAME`; None if there is no such module.

    Raises:
        PluginLoadError: it exists but cannot be imported, or it has no hooks.
    """
    try:
        with blaming(f"{who} cannot be loaded", PluginLoadError):
            module = importlib.import_module(name)
    except PluginLoadError as error:
        if _lacks(error.__cause__, name):
            return None
        raise
    has_hooks(who, module, is_required=True)
    return module


def has_hooks(who: str, value: object, *, is_required: bool = False) -> bool:
    """Whether `value` has hook implementations, all of which are plain functions.

    Raises:
        PluginLoadError: one of them is of no hook, or nothing that can just be called; a function
            is named like a hook but is not marked as one; or there is none, and `is_required`.
    """
    found = False
    for name, function in () if inspect.isroutine(value) else _functions(value):
        if hasattr(function, _MARKS):
            found = True
            _check_hook(who, name, function)
        elif name.startswith(_PREFIX):
            raise PluginLoadError(
                f"{who} has a function {name!r}, which is named like a hook but is not marked "
                "with plaunch.hookimpl; mark it, or rename it"
            )
    if is_required and not found:
        raise PluginLoadError(f"{who} has no hooks: nothing in it is marked with plaunch.hookimpl")
    return found


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


def _functions(value: object) -> Iterator[tuple[str, object]]:
    """The functions of `value` that may be hooks, by name, as they were defined.

    No property is run, because it might do or raise anything.
    """
    is_module = inspect.ismodule(value)
    home = getattr(value, "__name__", None)
    for name in dir(value):
        member = inspect.getattr_static(value, name, None)
        function = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
        if not (inspect.isfunction(function) or inspect.ismethod(function)):
            continue
        if hasattr(member, _MARKS):
            yield name, member
        # What a module has imported from another one under such a name is not meant as its hook.
        elif hasattr(function, _MARKS) or not is_module or function.__module__ == home:
            yield name, function


def _check_hook(who: str, name: str, function: object) -> None:
    marks = getattr(function, _MARKS)
    hook = marks["specname"] or name
    if hook not in _HOOKS:
        if marks["optionalhook"]:
            return
        raise PluginLoadError(
            f"{who} implements hook {hook!r}, which does not exist{suggest(hook, _HOOKS)}"
        )
    if marks["wrapper"] or marks["hookwrapper"]:
        raise PluginLoadError(
            f"{who} implements {hook} as a hook wrapper; plaunch calls each implementation "
            "separately, so there is nothing to wrap"
        )
    plain = getattr(function, "__func__", function)
    if any(is_other(plain) for is_other in _NOT_PLAIN):
        raise PluginLoadError(
            f"{who} implements {hook} as a generator or a coroutine; calling it would do nothing: "
            "make it a plain function"
        )


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
