"""The plugins of one launch: which there are, which are loaded, and how they are called."""

from __future__ import annotations

import os
import re
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from plaunch.agent.worker_store import open_default_store
from plaunch.defaults import DEVICES, WORKER_STORE
from plaunch.errors import DuplicateNameError, PlaunchError, PluginLoadError, UsageError
from plaunch.plugin import contributions, extensions
from plaunch.plugin.calls import FACTORY_BOUND, blaming, bounded_call
from plaunch.plugin.entry_points import EntryPoint, scan
from plaunch.plugin.installed import Installed
from plaunch.plugin.loader import PluginLoader
from plaunch.plugin.loading import checked
from plaunch.plugin.notifier import Notifier
from plaunch.plugin.options import (
    PluginOptions,
    find_options,
    options_of_package,
    resolve_options,
)
from plaunch.plugin.registry import (
    GROUPS,
    LOGS_SPECS,
    SIGNAL_POLICIES,
    WITH_OPTIONS,
    Kind,
    T,
)
from plaunch.plugin.selection import Selection
from plaunch.process.binding import is_asked_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    from plaunch.agent.notifications import Notification
    from plaunch.agent.worker import WorkerInfo
    from plaunch.agent.worker_store import OpenStore
    from plaunch.options import Option
    from plaunch.plugin.calls import Implementation
    from plaunch.plugin.context import PluginContext
    from plaunch.plugin.culprits import Culprits
    from plaunch.plugin.extensions import Extending
    from plaunch.plugin.loaded import LoadedPlugin, Registration
    from plaunch.process.binding import Binder
    from plaunch.process.starting import Starter
    from plaunch.process.stopping.signals import SignalPolicy
    from plaunch.process.streams.logs import LogsSpecs

    R = TypeVar("R")


class _Chosen(NamedTuple):
    """What a name gives, and by whom; `plugin` is None for plaunch's own."""

    plugin: Registration | None
    thing: object


class PluginManager:
    """Finds plugins by kind and name, loads those that are selected, and calls their hooks.

    There is one for each launch, and nothing of it is shared: see `create`.
    """

    def __init__(self, installed: Installed, *, with_traceback: bool = False) -> None:
        self._installed = installed
        self._loader = PluginLoader(installed)
        self._chosen: dict[tuple[str, str], _Chosen] = {}  # by kind and name
        self._notifier = Notifier(self._loader.implementations, with_traceback=with_traceback)

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
            entries = [entry for entry in entries if entry.distribution.is_ours]
        installed = Installed(entries, Selection(words, environ))
        manager = cls(installed, with_traceback=environ.get("PLAUNCH_DEBUG") == "1")
        manager._loader.load_initial(plugins)
        return manager

    # --- components that are chosen by name -------------------------------------------------------

    def get(self, kind: Kind[T], name: str) -> T:
        """What plugin `name` of `kind` gives; loads it if it is not loaded yet.

        `name` may be written `distribution:name`. A plugin passed in code comes before an
        installed one of the same name.

        Raises:
            UnknownNameError: no plugin offers the name.
            DuplicateNameError: more than one plugin does.
            UsageError: the plugin is blocked.
            PluginLoadError: the plugin cannot be loaded, or does not offer its own name.
        """
        plugin, bare = self._find(kind, name)
        if isinstance(plugin, EntryPoint):
            plugin = self._loader.load(kind, plugin)
        offers = self._loader.offers(plugin, kind)
        if bare not in offers:
            offered = ", ".join(map(repr, sorted(offers))) or f"nothing in {kind.hook}"
            raise PluginLoadError(
                f"{plugin.who} does not offer a {kind.label} {bare!r}, as its entry point says; "
                f"it offers {offered}"
            )
        thing = offers[bare]
        self._chosen[kind.name, name] = _Chosen(None if plugin.is_ours else plugin, thing)
        return checked(kind, plugin.who, thing)

    def call(
        self, kind: Kind[Any], name: str, function: Callable[[], R], seconds: float = FACTORY_BOUND
    ) -> R:
        """Call `function`, which uses what `get` has given for a name; return its result.

        plaunch's own plugins are called on this thread, others on a thread that is waited for up to
        `seconds`. What they change about signals is put back. plaunch's own exceptions pass, since
        their message says what is wrong, and so does Ctrl-C.

        Raises:
            PluginError: it raised anything else, such as SystemExit, which must not end the launch
                as if all were well; or it has not returned in time.
        """
        who, origin = f"{kind.label} {name!r} ({kind.flag})", self.origin(kind, name)
        if origin:
            who += f" of {origin}"
            thing = self._chosen[kind.name, name].thing
            called = getattr(thing, "__name__", type(thing).__name__)
            advice = f"; fix what it waits for, or select another {kind.label}"
            bounded = partial(bounded_call, passing=(Exception,), advice=advice)
            function = partial(bounded, who, called, function, seconds)
        with blaming(f"{who} failed", passing=(PlaunchError,)):
            return function()

    def origin(self, kind: Kind[Any], name: str) -> str:
        """The distribution, version and module of what `get` has given; empty for plaunch's own."""
        chosen = self._chosen.get((kind.name, name))
        return "" if chosen is None or chosen.plugin is None else chosen.plugin.source.origin

    def own_options(
        self, kind: Kind[Any], name: str, values: Mapping[str, object]
    ) -> list[tuple[Option, object]]:
        """The options that the package of plugin `name` of `kind` declares, each with its value.

        It does not load the plugin. `values` are the options that are given, by attribute.

        Raises:
            UsageError: no plugin offers the name, or a value cannot be one of its option.
        """
        found, _ = self._find(kind, name)
        module = found.value if isinstance(found, EntryPoint) else found.source.module
        package = re.split(r"[.:[\s]", module, maxsplit=1)[0]
        return list(options_of_package(self.plugin_options(), package, values, os.environ))

    def check_name(self, kind: Kind[Any], name: str) -> None:
        """See whether plugin `name` of `kind` can be selected; does not load it.

        Raises:
            UsageError: it is unknown, blocked, or offered by several.
        """
        self._find(kind, name)

    def names(self, kind: Kind[Any]) -> list[str]:
        """All names of `kind` that can be selected, sorted; imports nothing."""
        names = {entry.name for entry in self._installed.usable(kind)}
        for in_code in (False, True):
            names.update(name for _, name in self._loader.offered(kind, in_code=in_code))
        return sorted(names)

    def bounded(
        self, logs_specs: LogsSpecs, policy: SignalPolicy, is_unwanted: Callable[[], bool]
    ) -> tuple[LogsSpecs, SignalPolicy]:
        """What the agent's loop calls of the chosen components; third parties' cannot hold it.

        Args:
            logs_specs: the logs spec of the launch.
            policy: its signal policy.
            is_unwanted: asked while the logs spec takes its time: whether the launch is to stop.
        """
        logs_by, policy_by = self._last_chosen(LOGS_SPECS), self._last_chosen(SIGNAL_POLICIES)
        if logs_by or policy_by:
            from plaunch.plugin import components  # noqa: PLC0415 - third parties' only

            if logs_by:
                bounded = components.BoundedLogsSpecs(logs_specs, logs_by.who, is_unwanted)
                logs_specs = cast("LogsSpecs", bounded)
            if policy_by:
                policy = components.BoundedPolicy(policy, policy_by.who)
        return logs_specs, policy

    # --- hooks ------------------------------------------------------------------------------------

    def notify(self, notification: Notification) -> None:
        """Notify the plugins of what has happened to the agent; none of them can harm the job."""
        self._notifier.notify(notification)

    def left_behind(self) -> list[str]:
        """The plugins with a hook that has not returned and is not waited for, for messages."""
        return self._notifier.left_behind()

    def worker_env(
        self,
        worker: WorkerInfo,
        env: Mapping[str, str],
        is_unwanted: Callable[[], bool] = lambda: False,
    ) -> dict[str, str]:
        """The variables that plugins add for `worker`, beside those in `env`.

        `is_unwanted` is asked while a plugin takes its time: whether the launch is to stop.

        Raises:
            PluginError: a plugin fails, does not return, changes a variable of `env`, or
                contradicts another one.
        """
        items = self.implementations(contributions.ENVIRONMENT)
        return contributions.added_variables(items, worker, env, is_unwanted)

    def worker_binder(
        self, context: PluginContext, is_unwanted: Callable[[], bool] = lambda: False
    ) -> Binder | None:
        """What gives workers their devices and processors; None if nothing is to be bound.

        Raises:
            UsageError: the settings ask for what cannot be.
            PluginError: a plugin fails, does not return, or is not the only one that answers.
        """
        names = ("numa_options", "devices", "virtual_local_rank")
        is_asked = is_asked_for(*map(context.settings.get, names))
        if is_asked:
            self.load_named(WITH_OPTIONS, DEVICES)
        binder: Binder | None = contributions.find_sole_answer(
            contributions.BINDER, self.implementations, context, is_unwanted
        )
        if binder is None and is_asked:
            raise UsageError(
                "devices, numa_options or virtual_local_rank is set, but no plugin assigns "
                f"devices to workers; do not block {DEVICES!r}"
            )
        return binder

    def worker_store(
        self, context: PluginContext, is_unwanted: Callable[[], bool] = lambda: False
    ) -> OpenStore | None:
        """What hosts the store in which the workers meet; None if one of them does.

        It is plaunch's own if no other plugin answers.

        Raises:
            PluginError: a plugin fails, does not return, or is not the only one that answers.
        """
        if context.settings.get("worker_store", "agent") != "agent":
            return None
        open_store: OpenStore | None = contributions.find_sole_answer(
            contributions.STORE, self.implementations, context, is_unwanted
        )
        if open_store is None:
            # If ours is not loaded, its answer is known, and its code only wanted where rank 0 is.
            is_asked = f"{WITH_OPTIONS.name}:{WORKER_STORE}" in self._loader.registrations
            is_there = self._installed.find(WITH_OPTIONS, WORKER_STORE) is not None
            return open_default_store if is_there and not is_asked else None
        return open_store

    def worker_starter(
        self, context: PluginContext, is_unwanted: Callable[[], bool] = lambda: False
    ) -> Starter | None:
        """What starts the processes of workers; None if they are executed.

        Raises:
            UsageError: a plugin refuses the settings.
            PluginError: a plugin fails, does not return, or is not the only one that answers.
        """
        starter: Starter | None = contributions.find_sole_answer(
            contributions.STARTER, self.implementations, context, is_unwanted
        )
        return starter

    def create_extensions(self, context: PluginContext) -> list[Extending]:
        """What runs beside the agent, as plugins want it.

        Raises:
            PlaunchError: a plugin fails, or returns something else.
        """
        return [
            extending
            for item in self.implementations(extensions.HOOK)
            for extending in extensions.create(item, item.plugin.context(context))
        ]

    def implementations(self, hook: str = "") -> list[Implementation]:
        """What the loaded plugins have of a hook, or of all, in the order in which it is called."""
        return self._loader.implementations(hook)

    # --- what is loaded ---------------------------------------------------------------------------

    def use_options(
        self, values: Mapping[str, object], environ: Mapping[str, str] | None = None
    ) -> list[str]:
        """Load the plugins that have a given option, keep its values for them; return their names.

        Args:
            values: the options that are given, by attribute.
            environ: the environment variables; by default this process's.

        Raises:
            UsageError: no plugin has such an option, or a value is none.
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
        """The options that installed plugins declare, but for those that cannot be used."""
        usable = self._installed.usable(WITH_OPTIONS)
        return find_options(usable, self._installed.selection)[0]

    def load_named(self, kind: Kind[Any], name: str) -> Registration | None:
        """Load a plugin, if there is one of the name that is not blocked.

        Raises:
            PluginLoadError: it cannot be loaded.
        """
        return self._loader.load_named(kind, name)

    def selected(self) -> list[LoadedPlugin]:
        """The plugins that are loaded so far, in the order of loading, and where they come from."""
        return list(self._loader.loaded)

    @property
    def culprits(self) -> Culprits | None:
        """Whose code runs in this process; None while there is none of third parties."""
        return self._loader.culprits

    # ----------------------------------------------------------------------------------------------

    def _find(self, kind: Kind[Any], name: str) -> tuple[Registration | EntryPoint, str]:
        """Who offers a name, and how it calls that, which users may write with a distribution.

        It is an entry point if it is not loaded for anything else.
        """
        in_code = [one for one, bare in self._loader.offered(kind, in_code=True) if bare == name]
        if len(in_code) > 1:
            raise DuplicateNameError(
                f"{kind.label} {name!r} ({kind.flag}) is offered by "
                f"{' and '.join(one.who for one in in_code)}; keep one of them"
            )
        if in_code:
            return in_code[0], name
        # As if they were entry points, of the name of the plugin that is loaded already.
        beside = [
            EntryPoint(kind.hook, bare, one.name, one.distribution)
            for one, bare in self._loader.offered(kind, in_code=False)
            if one.distribution is not None  # for type checkers
        ]
        entry = self._installed.find(kind, name, beside)
        if entry is None:
            raise self._installed.refusal(kind, name, self.names(kind))
        if entry.group == kind.hook:
            return self._loader.registrations[entry.value], entry.name
        return entry, entry.name

    def _last_chosen(self, kind: Kind[Any]) -> Registration | None:
        """Who has given the last one of a kind that was chosen; None for plaunch's own."""
        given = [chosen.plugin for (of, _), chosen in self._chosen.items() if of == kind.name]
        return given[-1] if given else None
