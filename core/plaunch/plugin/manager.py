"""The plugin manager of one launch: registers, finds, guards and calls plugins."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from plaunch._names import class_name
from plaunch.errors import PlaunchError
from plaunch.plugin.guard import DEFAULT_LIMITS, CallGuard, CallLimits
from plaunch.plugin.hooks import Hooks, Implementation
from plaunch.plugin.kinds import GROUPS, WITH_OPTIONS, Kind, T
from plaunch.plugin.metadata import FIRST_PARTY, EntryPoint, scan
from plaunch.plugin.options import (
    Installed,
    PluginOptions,
    Selection,
    resolve_options,
)
from plaunch.plugin.registry import PluginRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import TypeVar

    from plaunch.options import Option
    from plaunch.plugin.hooks import LoadedPlugin

    R = TypeVar("R")


class PluginManager:
    """Finds plugins by kind and name, loads those that are selected, and calls them.

    Each launch has its own, which shares nothing with others; see `create`.
    `manager.hook.NAME(...)` calls a hook, as with pluggy, and returns a list of `HookResult`.
    """

    def __init__(
        self,
        installed: Installed,
        *,
        with_traceback: bool = False,
        limits: CallLimits = DEFAULT_LIMITS,
    ) -> None:
        self.guard = CallGuard(limits)
        self._installed = installed
        self._hooks = Hooks(self.guard, with_traceback=with_traceback)
        self._registry = PluginRegistry(installed, self._hooks)
        self._made: list[tuple[object, str]] = []  # components, each with its plugin for messages
        self.hook = self._hooks.hook

    @classmethod
    def create(
        cls,
        plugins: Sequence[object] = (),
        *,
        words: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        path: Sequence[str] | None = None,
        first_party_only: bool = False,
        entries: list[EntryPoint] | None = None,
        limits: CallLimits = DEFAULT_LIMITS,
    ) -> PluginManager:
        """Find the installed plugins, and load those that need no selection or are named.

        Args:
            plugins: plugins passed in code: modules, objects or classes with hooks.
            words: the arguments of `-p`.
            environ: the environment variables; by default this process's.
            path: folders to search for installed plugins; by default `sys.path`.
            first_party_only: use plaunch's own plugins and the given ones only.
            entries: the installed entry points, if the caller has scanned them.
            limits: how long to wait for code of plugins.

        Raises:
            PluginLoadError: a plugin that is always on, named, or given, cannot be loaded.
            UsageError: a word matches no plugin, or more than one.
        """
        environ = os.environ if environ is None else environ
        entries = scan(GROUPS, path) if entries is None else entries
        if first_party_only:
            entries = [entry for entry in entries if entry.distribution.key == FIRST_PARTY]
        installed = Installed(entries, Selection(words, environ))
        with_traceback = environ.get("PLAUNCH_DEBUG") == "1"
        manager = cls(installed, with_traceback=with_traceback, limits=limits)
        manager._registry.load_initial(plugins)
        return manager

    # --- find -------------------------------------------------------------------------------------

    def get(self, kind: Kind[T], name: str) -> T:
        """Return the factory, class or function that a name stands for; load its plugin first.

        `name` may be written `distribution:name`. A plugin passed in code has priority over an
        installed one. Use `make` or `call` to call the result.

        Raises:
            UnknownNameError: no plugin offers the name.
            DuplicateNameError: more than one plugin does.
            UsageError: the plugin is blocked.
            PluginLoadError: the plugin cannot be loaded, or does not offer its own name.
        """
        return self._registry.get(kind, name)[1]

    def check_name(self, kind: Kind[Any], name: str) -> None:
        """Check that a name can be selected, without loading its plugin.

        Raises:
            UsageError: it is unknown, blocked, or offered by several plugins.
        """
        self._registry.find(kind, name)

    def names(self, kind: Kind[Any]) -> list[str]:
        """Return all names of `kind` that can be selected, sorted; imports nothing."""
        return self._registry.names(kind)

    def origin(self, kind: Kind[Any], name: str) -> str:
        """Return the distribution, version and module of a name; empty for plaunch's own."""
        plugin, _ = self._registry.get(kind, name)
        return "" if plugin.is_first_party else plugin.origin

    def selected(self) -> list[LoadedPlugin]:
        """Return the plugins that are loaded so far, in the order of loading."""
        return list(self._registry.loaded)

    def implementations(self, hook: str = "") -> list[Implementation]:
        """Return the implementations of a hook, or of all hooks, in the order of their calls."""
        return self._hooks.implementations(hook)

    # --- options ----------------------------------------------------------------------------------

    def plugin_options(self, package: str = "") -> list[PluginOptions]:
        """Return the options that installed plugins declare, without those that cannot be used.

        Args:
            package: a top-level package, to return only what its modules declare.
        """
        found = self._installed.options()[0]
        return [one for one in found if package in ("", one.package)]

    def own_options(
        self, kind: Kind[Any], name: str, values: Mapping[str, object]
    ) -> list[tuple[Option, object]]:
        """Return the options that a plugin's package declares, each with its value.

        Does not load the plugin.

        Args:
            kind: the kind.
            name: the name, as for `get`.
            values: the given options, by attribute.

        Raises:
            UsageError: no plugin offers the name, or a value is invalid.
        """
        found, _ = self._registry.find(kind, name)
        module = found.value if isinstance(found, EntryPoint) else found.module
        package = re.split(r"[.:[\s]", module, maxsplit=1)[0]
        result: list[tuple[Option, object]] = []
        for plugin in self.plugin_options(package):
            own = {o.dest: values[o.dest] for o in plugin.options if o.dest in values}
            resolved = resolve_options([plugin], own, os.environ).get(plugin.name, {})
            result += [(o, resolved.get(o.dest, o.default)) for o in plugin.options]
        return result

    def use_options(
        self, values: Mapping[str, object], environ: Mapping[str, str] | None = None
    ) -> list[str]:
        """Load each plugin that has a given option, and keep its values; return their names.

        Args:
            values: the given options, by attribute.
            environ: the environment variables; by default this process's.

        Raises:
            UsageError: no plugin has such an option, or a value is invalid.
            PluginLoadError: a plugin cannot be loaded.
        """
        environ = os.environ if environ is None else environ
        given = resolve_options(self.plugin_options(), values, environ)
        for name, resolved in given.items():
            plugin = self.load_named(WITH_OPTIONS, name)
            if plugin is not None:
                plugin.options.update(resolved)
        return [*given]

    def use_settings(self, settings: Mapping[str, object]) -> None:
        """Load each plugin that names one of these settings as its own, unless that is not set.

        Args:
            settings: fields of `LaunchConfig`, by name; None and False are not set.

        Raises:
            PluginLoadError: a plugin cannot be loaded.
        """
        given = {
            name for name, value in settings.items() if value is not None and value is not False
        }
        for plugin in self.plugin_options():
            if not given.isdisjoint(plugin.declared("SETTINGS") or ()):
                self.load_named(WITH_OPTIONS, plugin.name)

    # --- load and call ----------------------------------------------------------------------------

    def load_named(self, kind: Kind[Any], name: str) -> LoadedPlugin | None:
        """Load a plugin; None if there is none of the name, or it is blocked.

        Raises:
            PluginLoadError: it cannot be loaded.
        """
        return self._registry.load_named(kind, name)

    def make(
        self,
        kind: Kind[Any],
        name: str,
        *given: object,
        seconds: float | None = None,
        **named: object,
    ) -> Any:
        """Call the factory that a name stands for, and return its component.

        Args:
            kind: the kind.
            name: the name, as for `get`.
            *given: the arguments of the factory.
            **named: its keyword arguments.
            seconds: how long to wait for it; by default a minute.

        Raises:
            PluginError: as for `call`, or the component lacks a method that the kind requires.
        """
        create: Any = self.get(kind, name)
        return self.call(kind, name, lambda: _with_methods(kind, create(*given, **named)), seconds)

    def call(
        self,
        kind: Kind[Any],
        name: str,
        function: Callable[[], R],
        seconds: float | None = None,
    ) -> R:
        """Call `function`, which uses the result of `get`, on a thread; return its result.

        Exceptions of plaunch pass unchanged: their messages say what is wrong.

        Raises:
            PluginError: it raised another exception, also SystemExit, or has not returned within
                `seconds`, by default a minute.
        """
        plugin, thing = self._registry.get(kind, name)
        who = f"{kind.label} {name!r} ({kind.flag})"
        result: R = self.guard.call(
            who if plugin.is_first_party else f"{who} of {plugin.origin}",
            getattr(thing, "__name__", type(thing).__name__),
            function,
            seconds,
            passing=(PlaunchError,),
            advice=f"; fix what it waits for, or select another {kind.label}",
        )
        self._made.append((result, self.who(kind, name)))
        return result

    def who(self, kind: Kind[Any], name: str) -> str:
        """Return how messages name the component of a name; loads its plugin."""
        return self._registry.get(kind, name)[0].with_origin(f"{kind.label} {name!r}")

    def who_made(self, component: object) -> str:
        """Return how messages name the plugin whose `make` or `call` returned a component."""
        for made, who in self._made:
            if made is component:
                return who
        return class_name(component)

    def naming_plugins(self) -> AbstractContextManager[None]:
        """Run code that calls plugins directly; see `Culprits.naming_plugins`."""
        return self._registry.culprits.naming_plugins()


def _with_methods(kind: Kind[Any], component: object) -> object:
    for name in kind.methods:
        if not callable(getattr(component, name, None)):
            raise TypeError(f"it returned {component!r}, which has no method {name!r}")
    return component
