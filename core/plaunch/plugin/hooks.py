"""The plugins of a launch that are loaded, and their hooks, registered with pluggy."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

import pluggy

from plaunch._names import suggest
from plaunch.errors import PlaunchError, PluginError, PluginLoadError, one_line
from plaunch.plugin import hookspecs
from plaunch.plugin.context import PluginContext
from plaunch.plugin.guard import NotReturnedError, bounded_call
from plaunch.plugin.hookspecs import hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from plaunch.plugin.guard import CallGuard, LoadedPlugin
    from plaunch.threads import BoundedCall

logger = logging.getLogger("plaunch")

_PREFIX = "plaunch_"
_HOOKS = {name: spec for name, spec in vars(hookspecs).items() if name.startswith(_PREFIX)}
# A hook that is specified to return None only notifies.
NOTIFICATION_HOOKS = frozenset(
    name for name, spec in _HOOKS.items() if spec.__annotations__["return"] == "None"
)
_NOT_PLAIN: tuple[Callable[[object], bool], ...] = (
    inspect.iscoroutinefunction,
    inspect.isgeneratorfunction,
    inspect.isasyncgenfunction,
)


@dataclass(eq=False)
class Registration:
    """A plugin that is loaded.

    Args:
        name: the name under which it is registered, `KIND:NAME`.
        plugin: the module or object with its hooks, or the object that its entry point names.
        source: where it comes from.
        options: the values of its own options, if one of them is given.
    """

    name: str
    plugin: object
    source: LoadedPlugin
    options: dict[str, object] = field(default_factory=dict)

    @property
    def who(self) -> str:
        """Its name in messages."""
        return self.source.who


class HookResult(NamedTuple):
    """The result of one plugin's implementation of a hook."""

    plugin: Registration
    value: Any

    @property
    def who(self) -> str:
        """The plugin's name in messages."""
        return self.plugin.who


class Implementation(NamedTuple):
    """One plugin's implementation of a hook, for callers that run each one on its own.

    Args:
        hook: the name of the hook.
        plugin: the plugin.
        function: the plugin's function, without a guard.
        argnames: the arguments that it takes.
        guarded: the function with its guard.
    """

    hook: str
    plugin: Registration
    function: Callable[..., Any]
    argnames: Sequence[str]
    guarded: Callable[..., HookResult | None]

    @property
    def who(self) -> str:
        """The plugin's name in messages."""
        return self.plugin.who

    def call(self, arguments: Mapping[str, object]) -> Any:
        """Call it, guarded, with those of the hook's arguments that it takes.

        Raises:
            PluginError: it failed, or has not returned in time.
        """
        result = self.guarded(*[arguments[name] for name in self.argnames])
        return None if result is None else result.value


class GuardedHooks:
    """The guarded hook implementations of one plugin, which pluggy registers in its place."""


class Hooks:
    """Registers the hooks of plugins with pluggy; `hook.NAME(...)` calls one.

    pluggy checks the arguments of implementations and calls them in the order of the plugins'
    names, because all nodes must agree. Each implementation is guarded when its plugin is
    registered. A hook with a result returns a list of `HookResult`.

    A notification hook that raises, or does not return in time, is reported and switched off for
    the rest of the launch; other hooks of its plugin stay on. While a call has not returned, no
    other notification hook of the plugin is called. If the system has no threads left,
    notifications are dropped: without a thread there is no time limit.

    Any other hook that raises, or does not return in time, raises `PluginError`. plaunch's own
    exceptions pass unchanged: their messages say what is wrong.

    Args:
        guard: the limits of calls.
        with_traceback: whether to log failures of notification hooks with their traceback.
    """

    def __init__(self, guard: CallGuard, *, with_traceback: bool = False) -> None:
        self._pluggy = pluggy.PluginManager("plaunch")
        self._pluggy.add_hookspecs(hookspecs)
        self.hook = self._pluggy.hook
        self.guard = guard
        self.plugins: dict[str, Registration] = {}  # by name, in the order of registration
        self._guarded: dict[str, GuardedHooks] = {}
        self._with_traceback = with_traceback
        self._switched_off: set[tuple[str, str]] = set()  # names of plugins and hooks
        self._running: dict[str, tuple[str, BoundedCall]] = {}  # left behind, by plugin
        self._has_warned = False  # of a lack of threads

    def register(self, plugin: Registration) -> None:
        """Guard and register the hooks of a plugin; one without hooks is only recorded.

        Raises:
            PluginLoadError: one of its hooks is invalid.
        """
        found = self.find_hooks(plugin.plugin, plugin.who)
        self.plugins[plugin.name] = plugin
        if not found:
            return
        guarded = GuardedHooks()
        for name, marks in found.items():
            function = getattr(plugin.plugin, name)
            wrapped = self._guard(plugin, marks.get("specname") or name, function)
            setattr(guarded, name, hookimpl(**marks)(wrapped))
        try:
            self._pluggy.register(guarded, plugin.name)
        except (pluggy.PluginValidationError, ValueError) as error:
            # pluggy may keep the hooks before the invalid one.
            if self._pluggy.get_plugin(plugin.name) is guarded:
                self._pluggy.unregister(guarded, plugin.name)
            del self.plugins[plugin.name]
            raise PluginLoadError(
                f"{plugin.who} cannot be registered: {one_line(error)}"
            ) from error
        # pluggy calls first what was registered last.
        for name in sorted((name for name in self._guarded if name < plugin.name), reverse=True):
            self._pluggy.unregister(name=name)
            self._pluggy.register(self._guarded[name], name)
        self._guarded[plugin.name] = guarded

    def find_hooks(
        self, value: object, who: str, *, is_required: bool = False
    ) -> dict[str, dict[str, Any]]:
        """Return the names of the hook implementations in `value`, with their marker's options.

        Args:
            value: a module, class or object.
            who: the plugin, for messages.
            is_required: whether having none is an error.

        Raises:
            PluginLoadError: one of them implements an unknown hook, or is not a plain function; a
                function is named like a hook but is not marked; or there are none.
        """
        found = {}
        for name, function, is_own in _functions(value):
            marks = self._pluggy.parse_hookimpl_opts(value, name)
            if marks is not None:
                _check_hook(who, name, function, marks)
                found[name] = {**marks}
            elif name.startswith(_PREFIX) and is_own:
                raise PluginLoadError(
                    f"{who} has a function {name!r}, which is named like a hook but is not marked "
                    "with plaunch.hookimpl; mark it, or rename it"
                )
        if is_required and not found:
            raise PluginLoadError(
                f"{who} has no hooks: nothing in it is marked with plaunch.hookimpl"
            )
        return found

    def implementations(self, hook: str = "") -> list[Implementation]:
        """Return the implementations of a hook, or of all hooks, in the order of their calls."""
        names = [hook] if hook else _HOOKS
        return [
            Implementation(
                name,
                self.plugins[found.plugin_name],
                vars(found.function)["__wrapped__"],
                found.argnames,
                found.function,
            )
            for name in names
            for found in reversed(getattr(self.hook, name).get_hookimpls())
        ]

    def left_behind(self) -> list[str]:
        """Return the plugins with a notification hook that still runs, for messages."""
        return [who for who, call in self._running.values() if call.is_out()]

    # --- calls ------------------------------------------------------------------------------------

    def _guard(
        self, plugin: Registration, hook: str, function: Callable[..., object]
    ) -> Callable[..., HookResult | None]:
        """Guard an implementation of a hook; keeps its argument names, which pluggy needs.

        The guarded function returns a `HookResult`, or None if the plugin returns None.
        """
        call = self._notify if hook in NOTIFICATION_HOOKS else self._ask

        @functools.wraps(function)
        def guarded(*arguments: object) -> HookResult | None:
            own = [_own(plugin, argument) for argument in arguments]
            return call(plugin, hook, lambda: function(*own))

        return guarded

    def _ask(
        self, plugin: Registration, hook: str, function: Callable[[], object]
    ) -> HookResult | None:
        def evaluate() -> object:
            value = function()
            # Iterating runs the plugin's code too.
            return [*value] if isinstance(value, Iterator) else value

        limits = self.guard.limits
        value = bounded_call(
            plugin.who,
            hook,
            evaluate,
            limits.others.get(hook, limits.hook),
            self.guard.is_unwanted,
            passing=(PlaunchError,),
            advice="; fix what it waits for, or block it with -p no:NAME",
        )
        return None if value is None else HookResult(plugin, value)

    def _notify(self, plugin: Registration, hook: str, function: Callable[[], object]) -> None:
        _, running = self._running.get(plugin.name, ("", None))
        if (plugin.name, hook) in self._switched_off or (running is not None and running.is_out()):
            return
        try:
            bounded_call(plugin.who, hook, function, self.guard.limits.notification)
            return
        except NotReturnedError as error:
            self._running[plugin.name] = plugin.who, error.call
            logger.warning(
                "%s; plaunch does not wait for it, calls none of its hooks until it returns, and "
                "does not call this hook again; the job goes on",
                error,
            )
        except PluginError as error:
            cause = error.__cause__ or error
            logger.warning(
                "%s failed in %s and is not called for it again; the job goes on: %s",
                plugin.who,
                hook,
                one_line(cause),
                exc_info=cause if self._with_traceback else None,
            )
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "%s was not notified (%s), and neither was any other plugin: %s",
                    plugin.who,
                    hook,
                    error,
                )
            return
        self._switched_off.add((plugin.name, hook))


def _functions(value: object) -> Iterator[tuple[str, Callable[..., object], bool]]:
    """Yield the functions of `value` that may be hooks: name, function, whether it defines them.

    Does not evaluate properties, which could have side effects or raise.
    """
    if inspect.isroutine(value):
        return
    home = getattr(value, "__name__", None) if inspect.ismodule(value) else None
    for name in dir(value):
        member = inspect.getattr_static(value, name, None)
        function = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
        if isinstance(function, (FunctionType, MethodType)):
            yield name, function, home is None or function.__module__ == home


def _check_hook(who: str, name: str, function: object, marks: Mapping[str, Any]) -> None:
    hook = marks.get("specname") or name
    if hook not in _HOOKS:
        if marks.get("optionalhook"):
            return
        raise PluginLoadError(
            f"{who} implements hook {hook!r}, which does not exist{suggest(hook, _HOOKS)}"
        )
    if marks.get("wrapper") or marks.get("hookwrapper"):
        raise PluginLoadError(
            f"{who} implements {hook} as a hook wrapper; plaunch guards each implementation "
            "separately, and a wrapper would run outside of that"
        )
    plain = getattr(function, "__func__", function)
    if any(is_other(plain) for is_other in _NOT_PLAIN):
        raise PluginLoadError(
            f"{who} implements {hook} as a generator or a coroutine; calling it would do nothing: "
            "make it a plain function"
        )


def _own(plugin: Registration, argument: object) -> object:
    """Return an argument of a hook for this plugin: a context gets the plugin's own options."""
    if isinstance(argument, PluginContext):
        return replace(argument, options=plugin.options)
    return argument
