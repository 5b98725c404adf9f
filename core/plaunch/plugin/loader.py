"""Loading the plugins of one launch: from entry points, words and objects to registrations."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pluggy

from plaunch.errors import (
    PluginLoadError,
    SignalException,
    UsageError,
)
from plaunch.plugin import hookspecs
from plaunch.plugin.calls import one_line
from plaunch.plugin.loading import (
    LoadedPlugin,
    describe,
    has_hooks,
    instance_of,
    is_module_name,
    keeping_signals,
    load_entry,
    load_module,
    title_of,
    watched_loading,
)
from plaunch.plugin.options import load_options
from plaunch.plugin.registration import (
    PluggyManager,
    Registration,
    check_implementations,
    is_ours,
)
from plaunch.plugin.registry import LIFECYCLE, WITH_OPTIONS, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from plaunch.plugin.culprits import Culprits
    from plaunch.plugin.entry_points import Distribution, EntryPoint
    from plaunch.plugin.installed import Installed
    from plaunch.plugin.selection import Word


class PluginLoader:
    """Loads what is always on, what is named, and what is selected, each once.

    Args:
        catalogue: what is installed.
        clock: tells seconds, monotonically.
    """

    def __init__(self, catalogue: Installed, clock: Callable[[], float]) -> None:
        self.pluggy = PluggyManager("plaunch")
        self.pluggy.add_hookspecs(hookspecs)
        self.registrations: dict[str, Registration] = {}  # by pluggy's name
        self.loaded: list[LoadedPlugin] = []  # in order
        self.culprits: Culprits | None = None
        self._catalogue = catalogue
        self._clock = clock
        self._of_entry: dict[EntryPoint, Registration] = {}
        self._instances: dict[type, object] = {}

    def load_initial(self, plugins: Sequence[object] = ()) -> None:
        """Load what needs no selection, once; `create` says what, and what it raises."""
        for plugin in plugins:
            self._register_object(plugin)
        for name in dict.fromkeys(entry.name for entry in self._catalogue.usable(LIFECYCLE)):
            self.load_named(LIFECYCLE, name)
        for word in self._catalogue.words.loads:
            self._load_word(word)

    def _load_word(self, word: Word) -> None:
        named = self._catalogue.named(word)
        for kind, name in named:
            # A word that tells the distribution is looked up as it is, any other one by the name.
            self.load_named(kind, name if word.matches(kind, name) else word.text)
        if named:
            return
        blocker = self._catalogue.blocker_of(word)
        if blocker is not None:
            raise UsageError(f"{word.source} names what {blocker.source} blocks; drop one of them")
        module = None
        if is_module_name(word.text):
            who = describe(LIFECYCLE.label, word.text, None, word.text)
            with self._loading(who, word.text, None):
                module = load_module(word.text)
        if module is None:
            raise self._catalogue.refusal_of_word(word)
        self._register(
            f"{LIFECYCLE.name}:{word.text}",
            module,
            describe(LIFECYCLE.label, word.text, None, word.text),
            LoadedPlugin(LIFECYCLE.name, word.text, "", "", word.text),
            None,
        )

    def load_named(self, kind: Kind[Any], name: str) -> None:
        """Load a plugin, if there is one of the name that is not blocked.

        Raises:
            PluginLoadError: it cannot be loaded.
        """
        entry = self._catalogue.find(kind, name)
        if entry is not None and kind is WITH_OPTIONS:
            plugin = load_options(entry).plugin
            # Without one it is that of the name which is loaded in every launch.
            entry = entry._replace(value=plugin) if plugin else None
        if entry is not None:
            self.load(kind, entry)

    def load(self, kind: Kind[Any], entry: EntryPoint) -> Registration:
        """Load the plugin of an entry point.

        Raises:
            PluginLoadError: it cannot be loaded.
        """
        registration = self._of_entry.get(entry)
        if registration is not None:
            return registration
        distribution, module = entry.distribution, entry.value.partition(":")[0].strip()
        who = describe(kind.label, entry.name, distribution, module)
        try:
            with self._loading(who, module, distribution):
                plugin = load_entry(kind, entry, self._instances)
            name = f"{kind.name}:{entry.name}"
            if name in self.registrations:
                name = f"{kind.name}:{distribution.key}:{entry.name}"
            registration = self._register(
                name,
                plugin,
                who,
                LoadedPlugin(
                    kind.name, entry.name, distribution.name, distribution.version, module
                ),
                distribution,
            )
        except PluginLoadError as error:
            if not kind.hook:
                error.args = (f"{error}; to go on without it, give -p no:{entry.name}",)
            raise
        self._of_entry[entry] = registration
        return registration

    def _loading(
        self, who: str, module: str, distribution: Distribution | None
    ) -> AbstractContextManager[None]:
        """Import a plugin; if it is not plaunch's own, see what that does to this process."""
        if is_ours(distribution):
            return contextlib.nullcontext()
        if self.culprits is None:
            from plaunch.plugin.exits import explained_culprits  # noqa: PLC0415 - rarely

            self.culprits = explained_culprits()
        self.culprits.note(module, who)
        return watched_loading(who, self._clock)

    def _register_object(self, plugin: object) -> None:
        """Register a plugin that was passed in code, unless its name is blocked."""
        name, module = title_of(plugin)
        if self._catalogue.words.blocker(LIFECYCLE, name) is not None:
            return
        who = describe(LIFECYCLE.label, name, None, module)
        if not has_hooks(who, plugin):
            raise PluginLoadError(
                f"{who}, passed in code, has no hooks: nothing in {plugin!r} is marked with "
                "plaunch.hookimpl"
            )
        try:
            with keeping_signals(who, "while it was made"):
                plugin = instance_of(plugin, self._instances)
        except (KeyboardInterrupt, SignalException):
            raise
        except BaseException as error:
            raise PluginLoadError(f"{who} cannot be created: {one_line(error)}") from error
        number, unique = 1, f"code:{name}"
        while unique in self.registrations:
            number += 1
            unique = f"code:{name}#{number}"
        self._register(unique, plugin, who, LoadedPlugin("code", name, "", "", module), None)

    def _register(
        self,
        name: str,
        plugin: object,
        who: str,
        loaded: LoadedPlugin,
        distribution: Distribution | None,
    ) -> Registration:
        """Register a plugin with pluggy, once, however many entry points name it."""
        for registration in self.registrations.values():
            if registration.plugin is plugin:
                self.loaded.append(loaded)
                return registration
        try:
            self.pluggy.register(plugin, name)
        except (pluggy.PluginValidationError, ValueError) as error:
            # pluggy spreads over several lines what does not fit: the hook and its arguments.
            raise PluginLoadError(f"{who} cannot be registered: {one_line(error)}") from error
        try:
            check_implementations(who, plugin, vars(self.pluggy.hook))
        except PluginLoadError:
            self.pluggy.unregister(plugin, name)
            raise
        registration = Registration(name, plugin, who, loaded.module, distribution)
        self.registrations[name] = registration
        self.loaded.append(loaded)
        return registration
