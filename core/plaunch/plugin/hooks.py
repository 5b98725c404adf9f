"""The plugins of a launch that are loaded, and their hooks, registered with pluggy."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

import pluggy

from plaunch._names import suggest
from plaunch.errors import PlaunchError, PluginError, PluginLoadError, one_line
from plaunch.plugin import hookspecs
from plaunch.plugin.context import PluginContext
from plaunch.plugin.guard import NotReturnedError
from plaunch.plugin.kinds import ALL_KINDS, LIFECYCLE
from plaunch.plugin.metadata import FIRST_PARTY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from plaunch.plugin.guard import CallGuard

logger = logging.getLogger("plaunch")

_PREFIX = "plaunch_"
_HOOKS = {name: spec for name, spec in vars(hookspecs).items() if name.startswith(_PREFIX)}
# A hook that is specified to return None only notifies.
NOTIFICATION_HOOKS = frozenset(
    name for name, spec in _HOOKS.items() if spec.__annotations__["return"] == "None"
)
_FOR_EACH_WORKER = frozenset(("plaunch_worker_env", "plaunch_worker_exited"))
_NOT_PLAIN: tuple[Callable[[object], bool], ...] = (
    inspect.iscoroutinefunction,
    inspect.isgeneratorfunction,
    inspect.isasyncgenfunction,
)
_LABELS = {kind.name: kind.label for kind in ALL_KINDS}


@dataclass(eq=False)
class LoadedPlugin:
    """A plugin of this launch.

    Args:
        kind: the name of its kind; `code` if it was passed in code.
        name: its name.
        distribution: where it comes from; empty if it was passed in code, or is a module named with
            `-p`.
        version: of the distribution.
        module: the module that was imported, or that defines the object.
        obj: the module or object with its hooks, or the object that its entry point names.
        key: the name under which it is registered, such as `KIND:NAME`; hooks are called in the
            order of these.
        options: the values of its own options, if one of them is given.
        known_as: what it does, for messages, in a few words; empty for its kind and name.
    """

    kind: str
    name: str
    distribution: str
    version: str
    module: str
    obj: object = None
    key: str = ""
    options: dict[str, object] = field(default_factory=dict)
    known_as: str = ""

    @property
    def origin(self) -> str:
        """Its module, after its distribution and version if it was installed."""
        if not self.distribution:
            return f"module {self.module}"
        release = f"{self.distribution} {self.version}".rstrip()
        return f"distribution {release}, module {self.module}"

    @property
    def is_first_party(self) -> bool:
        """Whether it comes with plaunch."""
        return self.distribution == FIRST_PARTY

    @property
    def who(self) -> str:
        """Its name in messages: what it is known as, or kind and name; and its origin."""
        return self.with_origin(
            self.known_as or f"{_LABELS.get(self.kind, LIFECYCLE.label)} {self.name!r}"
        )

    def with_origin(self, name: str) -> str:
        """Add the origin to a name in messages; users know plaunch's own parts without it."""
        return name if self.is_first_party else f"{name} ({self.origin})"


class HookResult(NamedTuple):
    """The result of one plugin's implementation of a hook."""

    plugin: LoadedPlugin
    value: Any

    @property
    def who(self) -> str:
        """The plugin's name in messages."""
        return self.plugin.who

    @property
    def is_first_party(self) -> bool:
        """Whether the plugin comes with plaunch."""
        return self.plugin.is_first_party


class Implementation(NamedTuple):
    """One plugin's implementation of a hook.

    Args:
        hook: the name of the hook.
        plugin: the plugin.
        function: the plugin's function, without a guard.
        argnames: the arguments that it takes.
        hooks: calls it.
    """

    hook: str
    plugin: LoadedPlugin
    function: Callable[..., Any]
    argnames: Sequence[str]
    hooks: Hooks

    @property
    def who(self) -> str:
        """The plugin's name in messages."""
        return self.plugin.who

    def call(self, arguments: Mapping[str, object]) -> Any:
        """Call it, guarded, with those of the hook's arguments that it takes; return its result.

        Raises:
            PluginError: it failed, or has not returned in time.
        """
        own = [_own(self.plugin, arguments[name]) for name in self.argnames]
        return self.hooks.call(self, partial(self.function, *own))


class _PluginHooks:
    """The hooks of one plugin, which pluggy registers in its place.

    pluggy would compare plugins, which may define equality, and read their properties.
    """

    def __init__(self, functions: Mapping[str, Callable[..., object]]) -> None:
        vars(self).update(functions)


class _PluggyManager(pluggy.PluginManager):
    """Has `call_all` call the implementations of a hook; pluggy would do so on this thread."""

    def __init__(
        self, call_all: Callable[[str, Sequence[Any], Mapping[str, object]], list[HookResult]]
    ) -> None:
        super().__init__("plaunch")
        self._call_all = call_all
        self.add_hookspecs(hookspecs)

    def _hookexec(
        self,
        hook_name: str,
        methods: Sequence[Any],
        kwargs: Mapping[str, object],
        firstresult: bool,
    ) -> list[HookResult]:
        return self._call_all(hook_name, methods, kwargs)


class Hooks:
    """Registers the hooks of plugins with pluggy; `hook.NAME(...)` calls one.

    pluggy checks the arguments of implementations. They are called in the order of the plugins'
    keys, because all nodes must agree, each through the guard. A hook with a result returns a list
    of `HookResult`.

    A notification hook that raises, or does not return in time, is reported and switched off for
    the rest of the launch; other hooks of its plugin stay on. While a call has not returned, no
    notification hook of the plugin is called. If the system has no threads left, notifications are
    dropped: without a thread there is no time limit.

    Any other hook that raises, or does not return in time, raises `PluginError`. plaunch's own
    exceptions pass unchanged: their messages say what is wrong.

    Args:
        guard: calls implementations.
        with_traceback: whether to log failures of notification hooks with their traceback.
    """

    def __init__(self, guard: CallGuard, *, with_traceback: bool) -> None:
        self._pluggy = _PluggyManager(self._call_all)
        self.hook = self._pluggy.hook
        self.plugins: dict[str, LoadedPlugin] = {}  # by key, in the order of registration
        self._guard = guard
        self._with_traceback = with_traceback
        self._switched_off: set[tuple[str, str]] = set()  # keys of plugins, and hooks
        self._has_warned = False  # of a lack of threads

    def register(self, plugin: LoadedPlugin) -> None:
        """Register the hooks of a plugin; one without hooks is only recorded.

        Raises:
            PluginLoadError: one of its hooks is invalid.
        """
        found = self.find_hooks(plugin.obj, plugin.who)
        if found:
            hooks = _PluginHooks({name: getattr(plugin.obj, name) for name in found})
            try:
                self._pluggy.register(hooks, plugin.key)
            except (pluggy.PluginValidationError, ValueError) as error:
                # pluggy may keep the hooks before the invalid one.
                if self._pluggy.get_plugin(plugin.key) is hooks:
                    self._pluggy.unregister(hooks, plugin.key)
                raise PluginLoadError(
                    f"{plugin.who} cannot be registered: {one_line(error)}"
                ) from error
        self.plugins[plugin.key] = plugin

    def find_hooks(self, value: object, who: str, *, is_required: bool = False) -> list[str]:
        """Return the names of the hook implementations in `value`.

        Args:
            value: a module, class or object.
            who: the plugin, for messages.
            is_required: whether having none is an error.

        Raises:
            PluginLoadError: one of them implements an unknown hook, or is not a plain function; a
                function is named like a hook but is not marked; or there are none.
        """
        found = []
        for name, function, is_own in _functions(value):
            marks = self._pluggy.parse_hookimpl_opts(value, name)
            if marks is not None:
                _check_hook(who, name, function, marks)
                found.append(name)
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
            item
            for name in names
            for item in self._sort(name, getattr(self.hook, name).get_hookimpls())
        ]

    # --- calls ------------------------------------------------------------------------------------

    def call(self, item: Implementation, function: Callable[[], object]) -> Any:
        """Make a call of an implementation through the guard; return its result.

        Raises:
            PluginError: it failed, or has not returned in time; not for a notification.
        """
        if item.hook in NOTIFICATION_HOOKS:
            self._notify(item, function)
            return None

        def evaluate() -> object:
            value = function()
            # Iterating runs the plugin's code too.
            return [*value] if isinstance(value, Iterator) else value

        limits = self._guard.limits
        return self._guard.call(
            item.who,
            item.hook,
            evaluate,
            limits.others.get(item.hook, limits.hook),
            until_stop=True,
            passing=(PlaunchError,),
            advice=f"; fix what it waits for, or block it with -p no:{item.plugin.name}",
            is_repeated=item.hook in _FOR_EACH_WORKER,
        )

    def _call_all(
        self, hook: str, found: Sequence[Any], arguments: Mapping[str, object]
    ) -> list[HookResult]:
        results = ((item.plugin, item.call(arguments)) for item in self._sort(hook, found))
        return [HookResult(plugin, value) for plugin, value in results if value is not None]

    def _sort(self, hook: str, found: Sequence[Any]) -> list[Implementation]:
        """Convert pluggy's objects, in the order of the plugins' keys and of pluggy's marks."""
        key = lambda one: (one.trylast - one.tryfirst, one.plugin_name)  # noqa: E731
        return [
            Implementation(hook, self.plugins[one.plugin_name], one.function, one.argnames, self)
            for one in sorted(found, key=key)
        ]

    def _notify(self, item: Implementation, function: Callable[[], object]) -> None:
        key = item.plugin.key, item.hook
        if key in self._switched_off or self._guard.is_busy(item.who):
            return
        try:
            self._guard.call(
                item.who,
                item.hook,
                function,
                self._guard.limits.notification,
                is_repeated=item.hook in _FOR_EACH_WORKER,
            )
            return
        except NotReturnedError as error:
            logger.warning(
                "%s; plaunch does not wait for it, calls none of its hooks until it returns, and "
                "does not call this hook again; the job goes on",
                error,
            )
        except PluginError as error:
            cause = error.__cause__ or error
            logger.warning(
                "%s failed in %s and is not called for it again; the job goes on: %s",
                item.who,
                item.hook,
                one_line(cause),
                exc_info=cause if self._with_traceback else None,
            )
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "%s was not notified (%s), and neither was any other plugin: %s",
                    item.who,
                    item.hook,
                    error,
                )
            return
        self._switched_off.add(key)


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


def _own(plugin: LoadedPlugin, argument: object) -> object:
    """Return an argument of a hook for this plugin: a context gets the plugin's own options."""
    if isinstance(argument, PluginContext):
        return replace(argument, options=plugin.options)
    return argument
