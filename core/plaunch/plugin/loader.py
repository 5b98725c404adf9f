"""The plugins of one launch that are loaded: from entry points, words and objects to hooks."""

from __future__ import annotations

import contextlib
import inspect
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pluggy

from plaunch.errors import PluginError, PluginLoadError, UsageError
from plaunch.plugin import hookspecs
from plaunch.plugin.calls import Implementation, blaming, call_hook, keeping_signals, one_line
from plaunch.plugin.loaded import LoadedPlugin, Registration
from plaunch.plugin.loading import Hooks, has_hooks, load_entry, load_module
from plaunch.plugin.options import load_options
from plaunch.plugin.registry import LIFECYCLE, WITH_OPTIONS, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plaunch.plugin.culprits import Culprits
    from plaunch.plugin.entry_points import Distribution, EntryPoint
    from plaunch.plugin.installed import Installed
    from plaunch.plugin.selection import Word

logger = logging.getLogger("plaunch")

SLOW_IMPORT = 1.0  # seconds after which a warning names the plugin


class PluginLoader:
    """Loads what is always on, what is named, and what is selected, each once.

    Args:
        installed: what is installed.
    """

    def __init__(self, installed: Installed) -> None:
        self.pluggy = pluggy.PluginManager("plaunch")
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
        if entry in self._of_entry:
            return self._of_entry[entry]
        module, distribution = entry.value, entry.distribution
        with contextlib.suppress(ValueError):
            module = entry.target().module
        source = LoadedPlugin(
            kind.name, entry.name, distribution.name, distribution.version, module
        )
        try:
            delayed = "every launch" if kind is LIFECYCLE else f"launches that use {entry.name!r}"
            with self._watching(source, distribution, delayed):
                plugin = self._instance_of(load_entry(kind, entry, source.who), source.who)
            name = f"{kind.name}:{entry.name}"
            if name in self.registrations:
                name = f"{kind.name}:{distribution.key}:{entry.name}"
            registration = self._register(name, plugin, source, distribution)
        except PluginLoadError as error:
            if not kind.hook:
                error.args = (f"{error}; to continue without it, give -p no:{entry.name}",)
            raise
        self._of_entry[entry] = registration
        return registration

    def implementations(self, hook: str = "") -> list[Implementation]:
        """What plugins have of a hook, in the order of their names, but for pluggy's marks.

        Without a name, of every hook.
        """
        callers = [c for c in vars(self.pluggy.hook).values() if hook in ("", c.name)]
        found = [(caller.name, i) for caller in callers for i in caller.get_hookimpls()]
        found.sort(key=lambda item: (item[1].trylast - item[1].tryfirst, item[1].plugin_name))
        return [
            Implementation(hook, self.registrations[i.plugin_name], i.function, i.argnames)
            for hook, i in found
        ]

    def offered(self, kind: Kind[Any], *, in_code: bool) -> Iterator[tuple[Registration, str]]:
        """The names of `kind` that loaded plugins offer and nobody blocks, each with its plugin.

        Args:
            kind: the kind.
            in_code: whether those that were passed in code are meant, or those of distributions.

        Raises:
            PluginError: as `offers`.
        """
        blocker = self._installed.selection.blocker
        for plugin in self.registrations.values():
            if (plugin.distribution is None) is not in_code:
                continue
            key = "" if plugin.distribution is None else plugin.distribution.key
            for name in self.offers(plugin, kind):
                if not blocker(kind.name, name, key):
                    yield plugin, name

    def offers(self, plugin: Registration, kind: Kind[Any]) -> Mapping[str, object]:
        """What one plugin offers of `kind`; its hook is called until it has answered.

        Raises:
            PluginError: the plugin fails, or returns something else.
        """
        if kind.name not in plugin.offers:
            offers: dict[str, object] = {}
            for item in self.implementations(kind.hook) if kind.hook else ():
                if item.plugin is plugin:
                    offers.update(_offers_of(item))
            plugin.offers[kind.name] = offers
        return plugin.offers[kind.name]

    def _load_word(self, word: Word) -> None:
        named = self._installed.named(word)
        for kind, name in named:
            # A word that tells the distribution is looked up as it is, any other one by the name.
            self.load_named(kind, name if word.means(kind.name, name) else word.text)
        if named:
            return
        blocker = self._installed.blocker_of(word)
        if blocker:
            raise UsageError(
                f"{word.source} names a plugin that {blocker} blocks; remove one of them"
            )
        module, source = None, LoadedPlugin(LIFECYCLE.name, word.text, "", "", word.text)
        # No module is named like a path, or a kind and a name.
        if not (word.text.startswith(".") or ":" in word.text or "/" in word.text):
            with self._watching(source, None, f"launches with {word.source}"):
                module = load_module(word.text, source.who)
        if module is None:
            raise self._installed.refusal_of_word(word)
        self._register(f"{LIFECYCLE.name}:{word.text}", module, source, None)

    def _load_object(self, plugin: object) -> None:
        """Register a plugin that was passed in code, unless its name is blocked."""
        of = plugin if inspect.ismodule(plugin) or inspect.isclass(plugin) else type(plugin)
        name: str = of.__name__
        if self._installed.selection.blocker(LIFECYCLE.name, name):
            return
        module = name if inspect.ismodule(plugin) else of.__module__
        source = LoadedPlugin("code", name, "", "", module)
        if not has_hooks(source.who, plugin):
            raise PluginLoadError(
                f"{source.who}, passed in code, has no hooks: nothing in {plugin!r} is marked with "
                "plaunch.hookimpl"
            )
        with keeping_signals(source.who, "while it was made"):
            plugin = self._instance_of(plugin, source.who, doing="created")
        number, unique = 1, f"code:{name}"
        while unique in self.registrations:
            number += 1
            unique = f"code:{name}#{number}"
        self._register(unique, plugin, source, None)

    def _instance_of(self, value: object, who: str, *, doing: str = "loaded") -> object:
        """`value`, or the one instance of it if it is a class: hooks are methods of an object."""
        if not inspect.isclass(value):
            return value
        if value not in self._instances:
            with blaming(f"{who} cannot be {doing}", PluginLoadError):
                self._instances[value] = value()
        return self._instances[value]

    @contextlib.contextmanager
    def _watching(
        self, source: LoadedPlugin, distribution: Distribution | None, delayed: str
    ) -> Iterator[None]:
        """Import a plugin; if it is third-party, restore signal handlers and report a slow import.

        Args:
            source: the plugin.
            distribution: where it is from; None if it was passed in code.
            delayed: which launches import it.
        """
        if distribution is not None and distribution.is_ours:
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
            logger.warning("%s took %.1f s to load, which delays %s", source.who, duration, delayed)

    def _register(
        self, name: str, plugin: object, source: LoadedPlugin, distribution: Distribution | None
    ) -> Registration:
        """Register a plugin with pluggy, once, however many entry points name it."""
        for registration in self.registrations.values():
            if registration.plugin is plugin:
                self.loaded.append(source)
                return registration
        hooks = Hooks(plugin)
        try:
            self.pluggy.register(hooks, name)
        except (pluggy.PluginValidationError, ValueError) as error:
            # pluggy keeps what came before a hook that does not fit, and spreads over several
            # lines what is wrong with that.
            if self.pluggy.get_plugin(name) is hooks:
                self.pluggy.unregister(hooks, name)
            why = one_line(error)
            raise PluginLoadError(f"{source.who} cannot be registered: {why}") from error
        registration = Registration(name, plugin, source, distribution)
        self.registrations[name] = registration
        self.loaded.append(source)
        return registration


def _offers_of(item: Implementation) -> Mapping[str, object]:
    if item.plugin.is_ours:
        with blaming(f"{item.who} failed in {item.hook}"):
            offers = item.call({})
    else:
        offers = call_hook(item, {})
    if not (isinstance(offers, Mapping) and all(isinstance(name, str) for name in offers)):
        raise PluginError(
            f"{item.who} returned {offers!r} from {item.hook}, which is not a mapping of names"
        )
    return offers
