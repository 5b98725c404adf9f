"""The plugins of one launch: which there are, which are loaded, and how they are called."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from plaunch._names import class_name
from plaunch.agent.worker_store import open_default_store
from plaunch.errors import PlaunchError, UsageError
from plaunch.plugin import contributions, extensions
from plaunch.plugin.guard import FACTORY_TIMEOUT, bounded_call
from plaunch.plugin.hooks import Hooks, Implementation
from plaunch.plugin.kinds import GROUPS, WITH_OPTIONS, Kind, T
from plaunch.plugin.metadata import EntryPoint, scan
from plaunch.plugin.options import (
    PluginOptions,
    find_options,
    options_of_package,
    resolve_options,
)
from plaunch.plugin.registry import PluginRegistry
from plaunch.plugin.selection import Installed, Selection
from plaunch.process.binding import is_asked_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    from plaunch.agent.notifications import Notification
    from plaunch.agent.worker import WorkerInfo
    from plaunch.agent.worker_store import OpenStore
    from plaunch.options import Option
    from plaunch.plugin.context import PluginContext
    from plaunch.plugin.culprits import Culprits
    from plaunch.plugin.extensions import Extending
    from plaunch.plugin.guard import LoadedPlugin, Registration
    from plaunch.process.binding import Binder
    from plaunch.process.starting import Starter

    R = TypeVar("R")

# Plugins with options that answer without one of these: for settings, and if no other one does.
DEVICES, WORKER_STORE = "devices", "worker_store"


class PluginManager:
    """Finds plugins by kind and name, loads those that are selected, and calls their hooks.

    There is one for each launch, and it shares nothing with others: see `create`.
    `manager.hook.NAME(...)` calls a hook, as with pluggy.
    """

    def __init__(self, installed: Installed, *, with_traceback: bool = False) -> None:
        self._installed = installed
        self._hooks = Hooks(with_traceback=with_traceback)
        self._registry = PluginRegistry(installed, self._hooks)
        self._made: list[tuple[object, str]] = []  # components, and how messages call the plugin
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
    ) -> PluginManager:
        """Look up what is installed, and load what is always on and what is named.

        Args:
            plugins: plugins passed in code: modules, objects or classes with hooks.
            words: the arguments of `-p`.
            environ: the environment variables; by default this process's.
            path: folders to look for installed plugins in; by default `sys.path`.
            first_party_only: whether to see no plugins but plaunch's own and the given ones.
            entries: what is installed, if that is known.

        Raises:
            PluginLoadError: a plugin that is always on, named, or given, cannot be used.
            UsageError: a word names nothing, or more than one thing.
        """
        environ = os.environ if environ is None else environ
        entries = scan(GROUPS, path) if entries is None else entries
        if first_party_only:
            entries = [entry for entry in entries if entry.distribution.is_first_party]
        installed = Installed(entries, Selection(words, environ))
        manager = cls(installed, with_traceback=environ.get("PLAUNCH_DEBUG") == "1")
        manager._registry.load_initial(plugins)
        return manager

    # --- components that are chosen by name -------------------------------------------------------

    def get(self, kind: Kind[T], name: str) -> T:
        """What plugin `name` of `kind` gives; loads it if it is not loaded yet.

        `name` may be written `distribution:name`. A plugin passed in code comes before an
        installed one of the same name. Call what it gives with `make` or `call`.

        Raises:
            UnknownNameError: no plugin offers the name.
            DuplicateNameError: more than one plugin does.
            UsageError: the plugin is blocked.
            PluginLoadError: the plugin cannot be loaded, or does not offer its own name.
        """
        return self._registry.get(kind, name)[1]

    def make(
        self, kind: Kind[Any], name: str, *given: object, seconds: float = FACTORY_TIMEOUT
    ) -> Any:
        """Call the factory that a name gives; return the component that it makes.

        Args:
            kind: the kind.
            name: the name, as for `get`.
            *given: the arguments of the factory.
            seconds: how long to wait for it.

        Raises:
            PluginError: as `call`, or the component lacks a method that the kind needs.
        """
        create: Any = self.get(kind, name)
        return self.call(kind, name, lambda: _with_methods(kind, create(*given)), seconds)

    def call(
        self,
        kind: Kind[Any],
        name: str,
        function: Callable[[], R],
        seconds: float = FACTORY_TIMEOUT,
    ) -> R:
        """Call `function`, which uses what `get` has given for a name; return its result.

        It runs on a thread that is waited for up to `seconds`. plaunch's own exceptions pass: their
        message says what is wrong.

        Raises:
            PluginError: it raised anything else, also SystemExit; or it has not returned in time.
        """
        plugin, thing = self._registry.get(kind, name)
        result: R = bounded_call(
            f"{kind.label} {name!r} ({kind.flag}) of {plugin.source.origin}",
            getattr(thing, "__name__", type(thing).__name__),
            function,
            seconds,
            passing=(PlaunchError,),
            advice=f"; fix what it waits for, or select another {kind.label}",
        )
        self._made.append((result, f"{kind.label} {name!r} ({plugin.source.origin})"))
        return result

    def who_made(self, component: object) -> str:
        """How messages call the plugin that has made a component with `make` or `call`."""
        for made, who in self._made:
            if made is component:
                return who
        return class_name(component)

    def origin(self, kind: Kind[Any], name: str) -> str:
        """The distribution, version and module of what a name gives; empty for plaunch's own."""
        source = self._registry.get(kind, name)[0].source
        return "" if source.is_first_party else source.origin

    def own_options(
        self, kind: Kind[Any], name: str, values: Mapping[str, object]
    ) -> list[tuple[Option, object]]:
        """The options that the package of plugin `name` of `kind` declares, each with its value.

        It does not load the plugin. `values` are the options that are given, by attribute.

        Raises:
            UsageError: no plugin offers the name, or a value cannot be one of its option.
        """
        found, _ = self._registry.find(kind, name)
        module = found.value if isinstance(found, EntryPoint) else found.source.module
        package = re.split(r"[.:[\s]", module, maxsplit=1)[0]
        return list(options_of_package(self.plugin_options(), package, values, os.environ))

    def check_name(self, kind: Kind[Any], name: str) -> None:
        """See whether plugin `name` of `kind` can be selected; does not load it.

        Raises:
            UsageError: it is unknown, blocked, or offered by several.
        """
        self._registry.find(kind, name)

    def names(self, kind: Kind[Any]) -> list[str]:
        """All names of `kind` that can be selected, sorted; imports nothing."""
        return self._registry.names(kind)

    # --- hooks ------------------------------------------------------------------------------------

    def stop_waiting_when(self, is_unwanted: Callable[[], bool]) -> None:
        """Stop waiting for a hook with a result once `is_unwanted` returns true.

        It is called while a plugin takes its time, and returns whether the launch is to stop.
        """
        self._hooks.guard.stop_waiting_when(is_unwanted)

    def notify(self, notification: Notification) -> None:
        """Call the hook of a notification; no plugin can harm the job."""
        self._hooks.notify(notification)

    def left_behind(self) -> list[str]:
        """The plugins with a hook that has not returned and is not waited for, for messages."""
        return self._hooks.guard.left_behind()

    def worker_env(self, worker: WorkerInfo, env: Mapping[str, str]) -> dict[str, str]:
        """The variables that plugins add for `worker`, beside those in `env`.

        Raises:
            PluginError: a plugin fails, does not return, changes a variable of `env`, or
                contradicts another one.
        """
        return contributions.added_variables(self.hook, worker, env)

    def worker_binder(self, context: PluginContext) -> Binder | None:
        """The object that assigns devices and processors to workers, if there is one.

        Raises:
            UsageError: a setting cannot be used.
            PluginError: a plugin fails, does not return, or is not the only one that answers.
        """
        names = ("numa_options", "devices", "virtual_local_rank")
        is_asked = is_asked_for(*map(context.settings.get, names))
        if is_asked:
            self.load_named(WITH_OPTIONS, DEVICES)
        binder: Binder | None = contributions.find_sole_answer(
            contributions.BINDER, self.hook, context
        )
        if binder is None and is_asked:
            raise UsageError(
                "devices, numa_options or virtual_local_rank is set, but no plugin assigns "
                f"devices to workers; do not block {DEVICES!r}"
            )
        return binder

    def worker_store(self, context: PluginContext) -> OpenStore | None:
        """The function that opens the workers' store; None if the worker of rank 0 hosts it.

        Raises:
            PluginError: a plugin fails, does not return, or is not the only one that answers.
        """
        if context.settings.get("worker_store", "agent") != "agent":
            return None
        open_store: OpenStore | None = contributions.find_sole_answer(
            contributions.STORE, self.hook, context
        )
        if open_store is None:
            # While plaunch's own is not loaded, its answer is known; only rank 0's node needs it.
            is_asked = f"{WITH_OPTIONS.name}:{WORKER_STORE}" in self._hooks.plugins
            is_there = self._installed.find(WITH_OPTIONS, WORKER_STORE) is not None
            return open_default_store if is_there and not is_asked else None
        return open_store

    def worker_starter(self, context: PluginContext) -> Starter | None:
        """The object that starts the processes of workers; None if they are executed.

        Raises:
            UsageError: a plugin refuses the settings.
            PluginError: a plugin fails, does not return, or is not the only one that answers.
        """
        starter: Starter | None = contributions.find_sole_answer(
            contributions.STARTER, self.hook, context
        )
        return starter

    def create_extensions(self, context: PluginContext) -> list[Extending]:
        """The extensions of all plugins.

        Raises:
            PlaunchError: a plugin fails, or returns something else.
        """
        return extensions.create(self.hook, context)

    def implementations(self, hook: str = "") -> list[Implementation]:
        """The implementations of a hook, or of all hooks, in the order in which they are called."""
        return self._hooks.implementations(hook)

    # --- what is loaded ---------------------------------------------------------------------------

    def use_options(
        self, values: Mapping[str, object], environ: Mapping[str, str] | None = None
    ) -> list[str]:
        """Load the plugins that have a given option, keep its values for them; return their names.

        Args:
            values: the options that are given, by attribute.
            environ: the environment variables; by default this process's.

        Raises:
            UsageError: no plugin has such an option, or a value cannot be used.
            PluginLoadError: a plugin cannot be loaded.
        """
        environ = os.environ if environ is None else environ
        given = resolve_options(self.plugin_options(), values, environ)
        for name, resolved in given.items():
            plugin = self.load_named(WITH_OPTIONS, name)
            if plugin is not None:
                plugin.options.update(resolved)
        return [*given]

    def plugin_options(self) -> list[PluginOptions]:
        """The options that installed plugins declare, without those that cannot be used."""
        usable = self._installed.usable(WITH_OPTIONS)
        return find_options(usable, self._installed.selection)[0]

    def load_named(self, kind: Kind[Any], name: str) -> Registration | None:
        """Load a plugin, if there is one of the name that is not blocked.

        Raises:
            PluginLoadError: it cannot be loaded.
        """
        return self._registry.load_named(kind, name)

    def selected(self) -> list[LoadedPlugin]:
        """The plugins that are loaded so far, in the order of loading, and where they come from."""
        return list(self._registry.loaded)

    @property
    def culprits(self) -> Culprits:
        """Finds the third-party plugin whose code raised an exception."""
        return self._registry.culprits


def _with_methods(kind: Kind[Any], component: object) -> object:
    for name in kind.methods:
        if not callable(getattr(component, name, None)):
            raise TypeError(f"it returned {component!r}, which has no method {name!r}")
    return component
