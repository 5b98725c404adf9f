"""The plugins of a launch that are loaded, and their hooks, registered with pluggy."""

from __future__ import annotations

import contextlib
import inspect
import sys
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

import pluggy

from plaunch._names import suggest
from plaunch.errors import PluginError, PluginLoadError, one_line
from plaunch.plugin import hookspecs
from plaunch.plugin.guard import HookGuard, HookResult, Registration
from plaunch.plugin.hookspecs import hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

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

    Args:
        with_traceback: whether to log failures of notification hooks with their traceback.
    """

    def __init__(self, *, with_traceback: bool = False) -> None:
        self._pluggy = pluggy.PluginManager("plaunch")
        self._pluggy.add_hookspecs(hookspecs)
        self.hook = self._pluggy.hook
        self.guard = HookGuard(NOTIFICATION_HOOKS, with_traceback=with_traceback)
        self.plugins: dict[str, Registration] = {}  # by name, in the order of registration
        self._guarded: dict[str, GuardedHooks] = {}

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
            wrapped = self.guard.wrap(plugin, marks.get("specname") or name, function)
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


class Culprits:
    """Finds the third-party plugin whose code raised an exception, by the traceback.

    For code that plaunch calls without the guard, such as methods of a rendezvous handler.
    plaunch's own plugins are not recorded: a bug in one of them is an internal error.
    """

    def __init__(self) -> None:
        self._modules: dict[str, str] = {}
        self._packages: dict[str, str] = {}

    def note(self, module: str, who: str) -> None:
        """Record that `module`, and the rest of its package, belongs to the plugin `who`.

        If a package has several plugins, the first one is named for its other modules. A namespace
        package, such as `google`, belongs to no plugin.
        """
        self._modules.setdefault(module, who)
        package = module.rpartition(".")[0]
        if package:
            self._packages.setdefault(package, who)

    def of_error(self, error: BaseException) -> str | None:
        """Return the plugin whose code raised an exception, or called the code that did."""
        found = None
        traceback = error.__traceback__
        while traceback is not None:
            found = self._owner(traceback.tb_frame) or found
            traceback = traceback.tb_next
        return found

    @contextlib.contextmanager
    def refusing_exits(self) -> Iterator[None]:
        """Run a launch; convert `sys.exit` in a plugin to an error.

        Raises:
            PluginError: a plugin called `sys.exit`.
        """
        try:
            yield
        except SystemExit as error:
            who = self.of_error(error)
            if who is None:
                raise  # called by the program that launches
            raise PluginError(f"{who} failed: {one_line(error)}") from error

    def _owner(self, frame: FrameType) -> str | None:
        name = frame.f_globals.get("__name__")
        while isinstance(name, str) and name:
            if name in self._modules:
                return self._modules[name]
            if name in self._packages and not _is_namespace(name):
                return self._packages[name]
            name = name.rpartition(".")[0]
        return None


def _is_namespace(package: str) -> bool:
    """Whether a package is a namespace package, which has no file."""
    module = sys.modules.get(package)
    return module is not None and getattr(module, "__file__", None) is None
