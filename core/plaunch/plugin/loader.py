"""The plugins of one launch that are loaded: from entry points, words and objects to hooks."""

from __future__ import annotations

import contextlib
import inspect
import logging
import time
from typing import TYPE_CHECKING, Any

import pluggy

from plaunch._names import suggest
from plaunch.errors import PluginLoadError, UsageError
from plaunch.plugin import hookspecs
from plaunch.plugin.calls import Implementation, keeping_signals, offers_of, one_line
from plaunch.plugin.entry_points import EntryPoint
from plaunch.plugin.loaded import LoadedPlugin, Registration, is_ours
from plaunch.plugin.loading import (
    function_at,
    load_entry,
    load_module,
    make_plugin,
    source_of,
    title_of,
)
from plaunch.plugin.options import load_options
from plaunch.plugin.registry import LIFECYCLE, WITH_OPTIONS, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from plaunch.plugin.culprits import Culprits
    from plaunch.plugin.entry_points import Distribution
    from plaunch.plugin.installed import Installed
    from plaunch.plugin.selection import Word

logger = logging.getLogger("plaunch")

SLOW_IMPORT = 1.0  # seconds after which a plugin is named for what it adds to the start

_HOOKS = tuple(name for name in vars(hookspecs) if name.startswith("plaunch_"))
_NOT_PLAIN: tuple[Callable[[object], bool], ...] = (
    inspect.iscoroutinefunction,
    inspect.isgeneratorfunction,
    inspect.isasyncgenfunction,
)


class PluginLoader:
    """Loads what is always on, what is named, and what is selected, each once.

    Args:
        installed: what is installed.
    """

    def __init__(self, installed: Installed) -> None:
        self.pluggy = _PluggyManager("plaunch")
        self.pluggy.add_hookspecs(hookspecs)
        self.registrations: dict[str, Registration] = {}  # by pluggy's name
        self.loaded: list[LoadedPlugin] = []  # in order
        self.culprits: Culprits | None = None
        self._installed = installed
        self._of_entry: dict[EntryPoint, Registration] = {}
        self._instances: dict[type, object] = {}

    def load_initial(self, plugins: Sequence[object]) -> None:
        """Load what needs no selection: what was passed in code, is always on, or is named.

        Raises:
            PluginLoadError: it cannot be loaded.
            UsageError: a word names nothing, or more than one thing.
        """
        for plugin in plugins:
            self._load_object(plugin)
        for name in dict.fromkeys(entry.name for entry in self._installed.usable(LIFECYCLE)):
            self.load_named(LIFECYCLE, name)
        for word in self._installed.selection.loads:
            self._load_word(word)

    def load_named(self, kind: Kind[Any], name: str) -> Registration | None:
        """Load a plugin, if there is one of the name that is not blocked.

        Raises:
            PluginLoadError: it cannot be loaded.
        """
        entry = self._installed.find(kind, name)
        if entry is not None and kind is WITH_OPTIONS:
            plugin = load_options(entry).plugin
            if plugin:
                entry = entry._replace(value=plugin)
            else:  # it is that of the name which is loaded in every launch
                kind, entry = LIFECYCLE, self._installed.find(LIFECYCLE, name)
        return None if entry is None else self.load(kind, entry)

    def load(self, kind: Kind[Any], entry: EntryPoint) -> Registration:
        """Load the plugin of an entry point.

        Raises:
            PluginLoadError: it cannot be loaded.
        """
        registration = self._of_entry.get(entry)
        if registration is not None:
            return registration
        source = source_of(kind, entry)
        try:
            with self._watching(source, entry.distribution):
                plugin = load_entry(kind, entry, source.who, self._instances)
            name = f"{kind.name}:{entry.name}"
            if name in self.registrations:
                name = f"{kind.name}:{entry.distribution.key}:{entry.name}"
            registration = self._register(name, plugin, source, entry.distribution)
        except PluginLoadError as error:
            if not kind.hook:
                error.args = (f"{error}; to continue without it, give -p no:{entry.name}",)
            raise
        self._of_entry[entry] = registration
        return registration

    def implementations(self, hook: str) -> list[Implementation]:
        """What plugins have of a hook, in the order of their names, but for pluggy's marks."""
        found = getattr(self.pluggy.hook, hook).get_hookimpls()
        return [
            Implementation(hook, self.registrations[i.plugin_name], i.function, i.argnames)
            for i in sorted(found, key=lambda i: (i.trylast - i.tryfirst, i.plugin_name))
        ]

    def passed_in_code(self) -> list[Registration]:
        """The plugins that are not installed."""
        return [one for one in self.registrations.values() if one.distribution is None]

    def offered_beside(self, kind: Kind[Any]) -> list[EntryPoint]:
        """What loaded plugins offer, as if it were entry points; the value is the plugin's name."""
        blocker = self._installed.selection.blocker
        return [
            EntryPoint(kind.hook, name, plugin.name, plugin.distribution)
            for plugin in self.registrations.values()
            if plugin.distribution is not None
            for name in self.offers(plugin, kind)
            if blocker(kind.name, name, plugin.distribution.key) is None
        ]

    def offers(self, plugin: Registration, kind: Kind[Any]) -> Mapping[str, object]:
        """What one plugin offers of `kind`; its hook is called once.

        Raises:
            PluginError: the plugin fails, or returns something else.
        """
        if kind.name not in plugin.offers:
            offers = plugin.offers[kind.name] = {}
            for item in self.implementations(kind.hook) if kind.hook else ():
                if item.plugin is plugin:
                    offers.update(offers_of(item))
        return plugin.offers[kind.name]

    def _load_word(self, word: Word) -> None:
        named = self._installed.named(word)
        for kind, name in named:
            # A word that tells the distribution is looked up as it is, any other one by the name.
            self.load_named(kind, name if word.means(kind.name, name) else word.text)
        if named:
            return
        blocker = self._installed.blocker_of(word)
        if blocker is not None:
            raise UsageError(
                f"{word.source} names a plugin that {blocker.source} blocks; remove one of them"
            )
        module, source = None, LoadedPlugin(LIFECYCLE.name, word.text, "", "", word.text)
        # No module is named like a path, or a kind and a name.
        if not (word.text.startswith(".") or ":" in word.text or "/" in word.text):
            with self._watching(source, None):
                module = load_module(word.text, source.who)
        if module is None:
            raise self._installed.refusal_of_word(word)
        self._register(f"{LIFECYCLE.name}:{word.text}", module, source, None)

    def _load_object(self, plugin: object) -> None:
        """Register a plugin that was passed in code, unless its name is blocked."""
        name, module = title_of(plugin)
        if self._installed.selection.blocker(LIFECYCLE.name, name) is not None:
            return
        source = LoadedPlugin("code", name, "", "", module)
        with keeping_signals(source.who, "while it was made"):
            plugin = make_plugin(plugin, source.who, self._instances)
        number, unique = 1, f"code:{name}"
        while unique in self.registrations:
            number += 1
            unique = f"code:{name}#{number}"
        self._register(unique, plugin, source, None)

    @contextlib.contextmanager
    def _watching(self, source: LoadedPlugin, distribution: Distribution | None) -> Iterator[None]:
        """Import a plugin; if it is not plaunch's own, see what that does to this process.

        What it changes about signals is put back, and a slow one is named.
        """
        if is_ours(distribution):
            yield
            return
        if self.culprits is None:
            from plaunch.plugin.culprits import explained_culprits  # noqa: PLC0415 - rarely

            self.culprits = explained_culprits()
        self.culprits.note(source.module, source.who)
        began = time.monotonic()
        with keeping_signals(source.who, "while it was loaded"):
            yield
        duration = time.monotonic() - began
        if duration > SLOW_IMPORT:
            logger.warning(
                "%s took %.1f s to load, which delays every launch", source.who, duration
            )

    def _register(
        self, name: str, plugin: object, source: LoadedPlugin, distribution: Distribution | None
    ) -> Registration:
        """Register a plugin with pluggy, once, however many entry points name it."""
        for registration in self.registrations.values():
            if registration.plugin is plugin:
                self.loaded.append(source)
                return registration
        try:
            self.pluggy.register(plugin, name)
        except (pluggy.PluginValidationError, ValueError) as error:
            # pluggy spreads over several lines what does not fit: the hook and its arguments.
            why = one_line(error)
            raise PluginLoadError(f"{source.who} cannot be registered: {why}") from error
        try:
            _check_implementations(source.who, plugin, vars(self.pluggy.hook))
        except PluginLoadError:
            self.pluggy.unregister(plugin, name)
            raise
        registration = Registration(name, plugin, source, distribution)
        self.registrations[name] = registration
        self.loaded.append(source)
        return registration


class _PluggyManager(pluggy.PluginManager):
    """pluggy's manager, older versions of which run the properties of plugins."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        """What marks a function of a plugin as a hook; None if it is none."""
        return (
            None if function_at(plugin, name) is None else super().parse_hookimpl_opts(plugin, name)
        )


def _check_implementations(
    who: str, plugin: object, callers: Mapping[str, pluggy.HookCaller]
) -> None:
    """See to it that what a plugin implements are hooks, and plain functions.

    Raises:
        PluginLoadError: one of them is not.
    """
    for hook, caller in callers.items():
        for implementation in caller.get_hookimpls():
            if implementation.plugin is not plugin:
                continue
            if not caller.has_spec():
                if implementation.optionalhook:
                    continue
                raise PluginLoadError(
                    f"{who} implements hook {hook!r}, which does not exist{suggest(hook, _HOOKS)}"
                )
            if implementation.wrapper or implementation.hookwrapper:
                raise PluginLoadError(
                    f"{who} implements {hook} as a hook wrapper; plaunch calls each "
                    "implementation separately, so there is nothing to wrap"
                )
            if any(is_other(implementation.function) for is_other in _NOT_PLAIN):
                raise PluginLoadError(
                    f"{who} implements {hook} as a generator or a coroutine; calling it would "
                    "do nothing: make it a plain function"
                )
