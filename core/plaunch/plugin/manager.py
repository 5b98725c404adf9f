"""The plugins of one launch: which there are, which are loaded, and how they are called."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plaunch.defaults import DEVICES
from plaunch.errors import (
    DuplicateNameError,
    PlaunchError,
    PluginLoadError,
    UsageError,
)
from plaunch.plugin import binder, contributions, extensions
from plaunch.plugin.calls import blamed
from plaunch.plugin.entry_points import EntryPoint, scan
from plaunch.plugin.groups import GROUPS
from plaunch.plugin.installed import Installed
from plaunch.plugin.loader import PluginLoader
from plaunch.plugin.loading import (
    LoadedPlugin,
    checked,
    keeping_signals,
)
from plaunch.plugin.notifier import Notifier
from plaunch.plugin.options import OptionsError, find_options, resolve_options
from plaunch.plugin.registration import (
    Chosen,
    Registration,
    ask,
    doctor_check,
    is_ours,
)
from plaunch.plugin.registry import LIFECYCLE, LOGS_SPECS, SIGNAL_POLICIES, WITH_OPTIONS, Kind, T
from plaunch.plugin.selection import Selection
from plaunch.process.binding import is_asked_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pluggy

    from plaunch.agent.notifications import Notification
    from plaunch.agent.worker import WorkerInfo
    from plaunch.doctor import DoctorContext, Finding
    from plaunch.plugin.context import PluginContext
    from plaunch.plugin.culprits import Culprits
    from plaunch.plugin.extensions import Extending
    from plaunch.process.binding import Binder
    from plaunch.process.stopping.signals import SignalPolicy
    from plaunch.process.streams.logs import LogsSpecs


class PluginManager:
    """Finds plugins by kind and name, loads those that are selected, and calls their hooks.

    There is one for each launch, and nothing of it is shared: see `create`.
    """

    def __init__(
        self, catalogue: Installed, clock: Callable[[], float], *, with_traceback: bool = False
    ) -> None:
        self._catalogue = catalogue
        self._loader = PluginLoader(catalogue, clock)
        self._pluggy, self._registrations = self._loader.pluggy, self._loader.registrations
        self._chosen = Chosen()
        self._option_values: dict[str, Mapping[str, object]] = {}  # by pluggy's name of a plugin
        self._who: Callable[[str], str] = lambda name: self._registrations[name].who
        self._teller = Notifier(self._implementations, self._who, with_traceback=with_traceback)

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
        clock: Callable[[], float] = time.monotonic,
    ) -> PluginManager:
        """Look up what is installed, and load what is always on and what is named.

        Args:
            plugins: plugins passed in code: modules, objects or classes with hooks.
            words: the arguments of `-p`.
            environ: the environment variables; by default this process's.
            path: folders to look for installed plugins in; by default `sys.path`.
            first_party_only: whether to see no plugins but plaunch's own and the given ones.
            entries: what is installed, if that is known by now.
            clock: tells seconds, monotonically.

        Raises:
            PluginLoadError: a plugin that is always on, named, or given, cannot be used.
            UsageError: a word names nothing, or more than one thing.
        """
        environ = os.environ if environ is None else environ
        entries = scan(GROUPS, path) if entries is None else entries
        if first_party_only:
            entries = [entry for entry in entries if is_ours(entry.distribution)]
        manager = cls(
            Installed(entries, Selection(words, environ)),
            clock,
            with_traceback=environ.get("PLAUNCH_DEBUG") == "1",
        )
        manager.load_initial(plugins)
        return manager

    def get(self, kind: Kind[T], name: str) -> T:
        """What plugin `name` of `kind` gives; loads it if it is not loaded yet.

        `name` may be written `distribution:name`. A plugin passed in code comes before an
        installed one of the same name.

        Raises:
            UnknownNameError: nobody offers the name.
            DuplicateNameError: more than one plugin does.
            UsageError: the plugin is blocked.
            PluginLoadError: the plugin cannot be loaded, or does not offer its own name.
        """
        in_code = self._offering_in_code(kind, name)
        if len(in_code) > 1:
            plugins = " and ".join(registration.who for registration in in_code)
            raise DuplicateNameError(
                f"{kind.label} {name!r} ({kind.flag}) is offered by {plugins}; keep one of them"
            )
        if in_code:
            self._chosen.note(kind, name, in_code[0])
            return checked(kind, in_code[0].who, self._offers(in_code[0], kind)[name])
        entry = self._catalogue.find(kind, name, self._offered_beside(kind))
        if entry is None:
            raise self._catalogue.refusal(kind, name, self.names(kind))
        registration = self._registrations.get(entry.value) if entry.group == kind.hook else None
        if registration is None:
            registration = self._loader.load(kind, entry)
        offers = self._offers(registration, kind)
        if entry.name not in offers:
            offered = ", ".join(map(repr, sorted(offers))) or f"nothing in {kind.hook}"
            raise PluginLoadError(
                f"{registration.who} does not offer a {kind.label} {entry.name!r}, as its entry "
                f"point says; it offers {offered}"
            )
        self._chosen.note(kind, name, registration)
        return checked(kind, registration.who, offers[entry.name])

    @contextlib.contextmanager
    def calling(self, kind: Kind[Any], name: str) -> Iterator[None]:
        """Run code of what `get` has given for a name.

        What it raises names the plugin; what it changes about signals is put back.

        Raises:
            PluginError: it raised something that is not an exception of plaunch's.
        """
        given = self._chosen.find(kind, name)
        with blamed(kind, name, self.origin(kind, name)), contextlib.ExitStack() as stack:
            if given is not None:
                stack.enter_context(keeping_signals(given.who, f"{kind.flag} {name}"))
            yield

    def origin(self, kind: Kind[Any], name: str) -> str:
        """The distribution, version and module of what `get` has given; empty for plaunch's own."""
        given = self._chosen.find(kind, name)
        return "" if given is None else given.origin

    def who_gave(self, kind: Kind[Any]) -> str:
        """How messages call the plugin whose component was chosen; empty if it is plaunch's own."""
        given = self._chosen.last(kind)
        return "" if given is None else given.who

    def bounded(
        self, logs_specs: LogsSpecs, policy: SignalPolicy, is_unwanted: Callable[[], bool]
    ) -> tuple[LogsSpecs, SignalPolicy]:
        """What the agent's loop calls of the chosen components; third parties' cannot hold it.

        Args:
            logs_specs: the logs spec of the launch.
            policy: its signal policy.
            is_unwanted: asked while the logs spec takes its time: whether the launch is to stop.
        """
        logs_by, policy_by = self.who_gave(LOGS_SPECS), self.who_gave(SIGNAL_POLICIES)
        if logs_by or policy_by:
            from plaunch.plugin import components  # noqa: PLC0415 - third parties' only

            if logs_by:
                logs_specs = components.BoundedLogsSpecs(logs_specs, logs_by, is_unwanted)
            if policy_by:
                policy = components.BoundedPolicy(policy, policy_by)
        return logs_specs, policy

    def names(self, kind: Kind[Any]) -> list[str]:
        """All names of `kind` that can be selected, sorted; imports nothing."""
        names = {entry.name for entry in self._catalogue.usable(kind)}
        names.update(entry.name for entry in self._offered_beside(kind))
        for registration in self._registrations.values():
            if registration.distribution is None:
                offers = self._offers(registration, kind)
                names.update(n for n in offers if not self._catalogue.words.blocker(kind, n))
        return sorted(names)

    def notify(self, notification: Notification) -> None:
        """Notify the plugins of what has happened to the agent; none of them can harm the job."""
        self._teller.tell(notification)

    def left_behind(self) -> list[str]:
        """The plugins with a hook that has not returned and is not waited for, for messages."""
        return self._teller.left_behind()

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
        return contributions.contributions(
            self._implementations(contributions.HOOK), self._who, worker, env, is_unwanted
        )

    def use_options(
        self, values: Mapping[str, object], environ: Mapping[str, str] | None = None
    ) -> None:
        """Load the plugins of which an option is given, and keep the values for them.

        Args:
            values: the options that are given, by attribute.
            environ: the environment variables; by default this process's.

        Raises:
            UsageError: no plugin has such an option, or a value is none.
            PluginLoadError: a plugin cannot be loaded.
        """
        environ = os.environ if environ is None else environ
        declared, _ = find_options(self._catalogue.usable(WITH_OPTIONS), self._catalogue.words)
        for name, resolved in resolve_options(declared, values, environ).items():
            self.load_named(WITH_OPTIONS, name)
            for kind in (WITH_OPTIONS, LIFECYCLE):
                self._option_values[f"{kind.name}:{name}"] = resolved

    def create_extensions(self, context: PluginContext) -> list[Extending]:
        """What runs beside the agent, as plugins want it.

        Raises:
            PlaunchError: a plugin fails, or returns something else.
        """
        found: list[Extending] = []
        own = self._contexts(context)
        for item in self._implementations(extensions.HOOK):
            found += extensions.create(item, self._who(item.plugin_name), own(item.plugin_name))
        return found

    def _contexts(self, context: PluginContext) -> Callable[[str], PluginContext]:
        """The context as each plugin is given it, with the values of its own options."""
        return lambda name: replace(context, options=self._option_values.get(name, {}))

    def worker_binder(
        self, context: PluginContext, is_unwanted: Callable[[], bool] = lambda: False
    ) -> Binder | None:
        """What gives workers their devices and processors; None if nothing is to be bound.

        Raises:
            UsageError: the settings ask for what cannot be.
            PluginError: a plugin fails, does not return, or is not the only one that answers.
        """
        asked = map(context.settings.get, ("numa_options", "devices", "virtual_local_rank"))
        is_asked = is_asked_for(*asked)
        if is_asked:
            self.load_named(WITH_OPTIONS, DEVICES)
        found = binder.find_binder(
            self._implementations(binder.HOOK), self._who, self._contexts(context), is_unwanted
        )
        if found is None and is_asked:
            raise UsageError(
                "devices, numa_options or virtual_local_rank is set, and no plugin gives workers "
                f"their devices; do not block {DEVICES!r}"
            )
        if found is None or self._registrations[found.plugin].is_ours:
            return found and found.binder
        from plaunch.plugin.components import BoundedBinder  # noqa: PLC0415 - third parties' only

        return BoundedBinder(found.binder, self._who(found.plugin), is_unwanted)

    def doctor_checks(self) -> dict[str, Callable[[DoctorContext], Iterable[Finding]]]:
        """What plugins look at when `--doctor` asks, by the plugin's name.

        Those with options are loaded for it; what is wrong with one, the list of plugins says.
        """
        for entry in self._catalogue.usable(WITH_OPTIONS):
            with contextlib.suppress(PlaunchError, OptionsError):
                self.load_named(WITH_OPTIONS, entry.name)
        return {
            item.plugin_name: doctor_check(item)
            for item in self._implementations("plaunch_doctor_checks")
        }

    def always_on(self) -> dict[str, tuple[object, list[str]]]:
        """The plugins that no option selects, by name: each one, and the hooks that it has."""
        return {
            name.partition(":")[2]: (
                registration.plugin,
                [c.name for c in self._pluggy.get_hookcallers(registration.plugin) or ()],
            )
            for name, registration in self._registrations.items()
            if name.startswith(f"{LIFECYCLE.name}:")
        }

    @property
    def culprits(self) -> Culprits | None:
        """Whose code runs in this process; None while there is none of third parties."""
        return self._loader.culprits

    def load_initial(self, plugins: Sequence[object] = ()) -> None:
        """Load what needs no selection, once; `create` says what, and what it raises."""
        self._loader.load_initial(plugins)

    def load_named(self, kind: Kind[Any], name: str) -> None:
        """Load a plugin, if there is one of the name that is not blocked.

        Raises:
            PluginLoadError: it cannot be loaded.
        """
        self._loader.load_named(kind, name)

    def selected(self) -> list[LoadedPlugin]:
        """The plugins that are loaded so far, in the order of loading, and where they come from."""
        return list(self._loader.loaded)

    # --- calling ----------------------------------------------------------------------------------

    def _implementations(self, hook: str) -> list[pluggy.HookImpl]:
        """The implementations of a hook in the order of plugin names, but for pluggy's marks."""
        implementations: list[pluggy.HookImpl] = getattr(self._pluggy.hook, hook).get_hookimpls()
        return sorted(implementations, key=lambda i: (i.trylast - i.tryfirst, i.plugin_name))

    def _offering_in_code(self, kind: Kind[Any], name: str) -> list[Registration]:
        if self._catalogue.words.blocker(kind, name) is not None:
            return []
        return [
            registration
            for registration in self._registrations.values()
            if registration.distribution is None and name in self._offers(registration, kind)
        ]

    def _offered_beside(self, kind: Kind[Any]) -> list[EntryPoint]:
        """What loaded plugins offer, as if it were entry points; the value is the plugin's name."""
        return [
            EntryPoint(kind.hook, name, registration.name, registration.distribution)
            for registration in self._registrations.values()
            if registration.distribution is not None
            for name in self._offers(registration, kind)
            if self._catalogue.words.blocker(kind, name, registration.distribution.key) is None
        ]

    def _offers(self, registration: Registration, kind: Kind[Any]) -> Mapping[str, object]:
        """What one plugin offers of `kind`; its hook is called once."""
        offers = registration.offers.get(kind.name)
        if offers is None:
            offers = registration.offers[kind.name] = {}
            for implementation in self._implementations(kind.hook):
                if implementation.plugin is registration.plugin:
                    offers.update(ask(registration, kind.hook, implementation))
        return offers
