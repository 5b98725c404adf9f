"""The registry of a launch: loads plugins, and finds the factory behind a name of each kind.

Names come from entry points and from offer hooks. Nothing is imported before it is selected.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import itertools
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plaunch.errors import DuplicateNameError, PluginError, PluginLoadError, UsageError
from plaunch.parts import TORCHRUN_CREATORS, TORCHRUN_IMPORTS, TORCHRUN_LOGS_SPECS, load_part
from plaunch.plugin.guard import Culprits, keeping_sigchld
from plaunch.plugin.hooks import LoadedPlugin
from plaunch.plugin.kinds import LIFECYCLE, LOGS_SPECS, TORCHRUN_HANDLERS, WITH_OPTIONS, Kind
from plaunch.plugin.metadata import Distribution, EntryPoint, import_errors, normalise
from plaunch.plugin.options import find_known_as, load_options
from plaunch.process.logs import LogsSpecs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plaunch.plugin.hooks import Hooks
    from plaunch.plugin.kinds import T
    from plaunch.plugin.metadata import Target
    from plaunch.plugin.options import Installed, Word

logger = logging.getLogger("plaunch")

SLOW_IMPORT = 1.0  # seconds after which a warning names the plugin


class PluginRegistry:
    """Loads plugins that are always on, named, or selected, each once.

    Args:
        installed: the installed plugins.
        hooks: registers the hooks of plugins.
    """

    def __init__(self, installed: Installed, hooks: Hooks) -> None:
        self.loaded: list[LoadedPlugin] = []  # in order
        self.culprits = Culprits()
        self._installed = installed
        self._hooks = hooks
        self._of_entry: dict[EntryPoint, LoadedPlugin] = {}
        self._instances: dict[type, object] = {}
        # The offers of each plugin, by its key and the kind, once they are known.
        self._offers: dict[tuple[str, str], Mapping[str, object]] = {}

    # --- names ------------------------------------------------------------------------------------

    def get(self, kind: Kind[T], name: str) -> tuple[LoadedPlugin, T]:
        """Return the factory that `name` stands for, and its plugin, which is loaded first.

        Raises:
            UnknownNameError: no plugin offers the name.
            DuplicateNameError: more than one plugin does.
            UsageError: the plugin is blocked.
            PluginLoadError: the plugin cannot be loaded, or does not offer its own name.
        """
        plugin, bare = self.find(kind, name)
        if isinstance(plugin, EntryPoint):
            plugin = self.load(kind, plugin)
        offers = self._offered_by(plugin, kind)
        if bare not in offers:
            offered = ", ".join(map(repr, sorted(offers))) or f"nothing in {kind.hook}"
            raise PluginLoadError(
                f"{plugin.who} does not offer a {kind.label} {bare!r}, as its entry point says; "
                f"it offers {offered}"
            )
        return plugin, _checked(kind, plugin.who, offers[bare])

    def find(self, kind: Kind[Any], name: str) -> tuple[LoadedPlugin | EntryPoint, str]:
        """Return the plugin that offers a name, and the name without a distribution.

        Loads nothing: a plugin that is not loaded yet is returned as its entry point.

        Raises:
            UsageError: the name is unknown, blocked, or offered by several plugins.
        """
        in_code = [one for one, bare in self._offered(kind, in_code=True) if bare == name]
        if len(in_code) > 1:
            raise DuplicateNameError(
                f"{kind.label} {name!r} ({kind.flag}) is offered by "
                f"{' and '.join(one.who for one in in_code)}; keep one of them"
            )
        if in_code:
            return in_code[0], name
        # Represent offers of loaded plugins as entry points whose value is the plugin's key.
        beside = [
            EntryPoint(kind.hook, bare, one.key, _distribution_of(one))
            for one, bare in self._offered(kind, in_code=False)
        ]
        entry = self._installed.find(kind, name, beside)
        if entry is None:
            raise self._installed.refusal(kind, name, self.names(kind))
        if entry.group == kind.hook:
            return self._hooks.plugins[entry.value], entry.name
        return entry, entry.name

    def names(self, kind: Kind[Any]) -> list[str]:
        """Return all names of `kind` that can be selected, sorted; imports nothing."""
        names = {entry.name for entry in self._installed.usable(kind)}
        for in_code in (False, True):
            names.update(name for _, name in self._offered(kind, in_code=in_code))
        return sorted(names)

    def _offered(self, kind: Kind[Any], *, in_code: bool) -> Iterator[tuple[LoadedPlugin, str]]:
        """Yield each loaded plugin with each name of `kind` that it offers and that is not blocked.

        Raises:
            PluginError: a plugin failed, or returned something else.
        """
        blocker = self._installed.selection.blocker
        for plugin in self._hooks.plugins.values():
            distribution = _distribution_of(plugin)
            if bool(distribution.key) is not in_code:
                for name in self._offered_by(plugin, kind):
                    if not blocker(kind.name, name, distribution.key):
                        yield plugin, name

    def _offered_by(self, plugin: LoadedPlugin, kind: Kind[Any]) -> Mapping[str, object]:
        """Return the offers of one plugin; calls its hook at most once.

        Raises:
            PluginError: the plugin failed, or returned something else.
        """
        key = plugin.key, kind.name
        if key not in self._offers:
            self._offers[key] = self._ask(plugin, kind.hook) if kind.hook else {}
        return self._offers[key]

    def _ask(self, plugin: LoadedPlugin, hook: str) -> Mapping[str, object]:
        found = [one for one in self._hooks.implementations(hook) if one.plugin is plugin]
        offers = found[0].call({}) if found else {}
        if not (isinstance(offers, Mapping) and all(isinstance(name, str) for name in offers)):
            raise PluginError(
                f"{plugin.who} returned {offers!r} from {hook}, which is not a mapping of names"
            )
        return offers

    # --- loading ----------------------------------------------------------------------------------

    def load_initial(self, plugins: Sequence[object]) -> None:
        """Load the plugins that were passed in code, are always on, or are named with `-p`.

        Raises:
            PluginLoadError: one of them cannot be loaded.
            UsageError: a word matches no plugin, or more than one.
        """
        for plugin in plugins:
            self._load_object(plugin)
        for name in dict.fromkeys(entry.name for entry in self._installed.usable(LIFECYCLE)):
            self.load_named(LIFECYCLE, name)
        for word in self._installed.selection.loads:
            self._load_word(word)

    def load_named(self, kind: Kind[Any], name: str) -> LoadedPlugin | None:
        """Load a plugin; None if there is none of the name, or it is blocked.

        Raises:
            PluginLoadError: it cannot be loaded.
        """
        entry = self._installed.find(kind, name)
        known_as = ""
        if entry is not None and kind is WITH_OPTIONS:
            declared = load_options(entry)
            known_as = find_known_as(declared.declared_by)
            if declared.plugin:
                entry = entry._replace(value=declared.plugin)
            else:  # its hooks are in the lifecycle plugin of the same name
                kind, entry = LIFECYCLE, self._installed.find(LIFECYCLE, name)
        return None if entry is None else self.load(kind, entry, known_as)

    def load(self, kind: Kind[Any], entry: EntryPoint, known_as: str = "") -> LoadedPlugin:
        """Load the plugin of an entry point.

        Args:
            kind: its kind.
            entry: the entry point.
            known_as: its name in messages; empty for that in its module, if there is one.

        Raises:
            PluginLoadError: it cannot be loaded.
        """
        if entry in self._of_entry:
            return self._of_entry[entry]
        module, distribution = entry.value, entry.distribution
        with contextlib.suppress(ValueError):
            module = entry.target().module
        plugin = LoadedPlugin(
            kind.name,
            entry.name,
            distribution.name,
            distribution.version,
            module,
            known_as=known_as,
        )
        try:
            delayed = "every launch" if kind is LIFECYCLE else f"launches that use {entry.name!r}"
            with self._importing(plugin, delayed):
                if entry.group == TORCHRUN_HANDLERS:
                    load_part(TORCHRUN_IMPORTS)()
                obj = _import(entry, plugin.who)
                if not kind.hook:
                    plugin = replace(plugin, known_as=known_as or find_known_as(obj))
                if self._hooks.find_hooks(obj, plugin.who, is_required=not kind.hook):
                    obj = self._instance_of(obj, plugin.who)
                    plugin = self._register(replace(plugin, obj=obj))
                else:  # the entry point names the factory itself
                    if entry.group == TORCHRUN_HANDLERS:
                        obj = _bridged_handler(entry, obj, plugin.who)
                    plugin = self._add(replace(plugin, obj=obj))
                    self._offers[plugin.key, kind.name] = {entry.name: obj}
        except PluginLoadError as error:
            if not kind.hook:
                error.args = (f"{error}; to continue without it, give -p no:{entry.name}",)
            raise
        self._of_entry[entry] = plugin
        return plugin

    def _load_word(self, word: Word) -> None:
        named = self._installed.named(word)
        for kind, name in named:
            # A word with a distribution is looked up unchanged, any other one by the name.
            self.load_named(kind, name if word.means(kind.name, name) else word.text)
        if named:
            return
        blocker = self._installed.blocker_of(word)
        if blocker:
            raise UsageError(
                f"{word.source} names a plugin that {blocker} blocks; remove one of them"
            )
        module, plugin = None, LoadedPlugin(LIFECYCLE.name, word.text, "", "", word.text)
        # A path, or a kind and a name, cannot be the name of a module.
        if not (word.text.startswith(".") or ":" in word.text or "/" in word.text):
            with self._importing(plugin, f"launches with {word.source}"):
                module = _import_module(word.text, plugin.who)
        if module is None:
            raise self._installed.refusal_of_word(word)
        self._hooks.find_hooks(module, plugin.who, is_required=True)
        self._register(replace(plugin, obj=module))

    def _load_object(self, obj: object) -> None:
        """Register a plugin that was passed in code, unless its name is blocked."""
        of = obj if inspect.ismodule(obj) or inspect.isclass(obj) else type(obj)
        name: str = of.__name__
        if self._installed.selection.blocker(LIFECYCLE.name, name):
            return
        module = name if inspect.ismodule(obj) else of.__module__
        plugin = LoadedPlugin("code", name, "", "", module)
        if not self._hooks.find_hooks(obj, plugin.who):
            raise PluginLoadError(
                f"{plugin.who}, passed in code, has no hooks: nothing in {obj!r} is marked with "
                "plaunch.hookimpl"
            )
        with keeping_sigchld(plugin.who, "while it was made"):
            obj = self._instance_of(obj, plugin.who, doing="created")
        self._register(replace(plugin, obj=obj))

    def _instance_of(self, value: object, who: str, *, doing: str = "loaded") -> object:
        """Return `value`, or the one instance of it if it is a class."""
        if not inspect.isclass(value):
            return value
        if value not in self._instances:
            with import_errors(f"{who} cannot be {doing}"):
                self._instances[value] = value()
        return self._instances[value]

    @contextlib.contextmanager
    def _importing(self, plugin: LoadedPlugin, delayed: str) -> Iterator[None]:
        """Import a plugin; report a change of SIGCHLD, and a third party's slow import.

        Args:
            plugin: the plugin.
            delayed: the launches that import it, for the message.
        """
        if not plugin.is_first_party:  # a bug in plaunch's own plugins is an internal error
            self.culprits.note(plugin.module, plugin.who)
        began = time.monotonic()
        with keeping_sigchld(plugin.who, "while it was loaded"):
            yield
        duration = time.monotonic() - began
        if duration > SLOW_IMPORT and not plugin.is_first_party:
            logger.warning("%s took %.1f s to load, which delays %s", plugin.who, duration, delayed)

    def _register(self, plugin: LoadedPlugin) -> LoadedPlugin:
        """Register a plugin once, even if several entry points name it; return that one."""
        for known in self._hooks.plugins.values():
            if known.obj is plugin.obj:
                self.loaded.append(replace(plugin, key=known.key, options=known.options))
                return known
        return self._add(plugin)

    def _add(self, plugin: LoadedPlugin) -> LoadedPlugin:
        """Register a plugin under a key of its own."""
        kind, name, owner = plugin.kind, plugin.name, normalise(plugin.distribution)
        keys = itertools.chain(
            (f"{kind}:{name}", *([f"{kind}:{owner}:{name}"] if owner else ())),
            (f"{kind}:{name}#{number}" for number in itertools.count(2)),
        )
        plugin = replace(plugin, key=next(k for k in keys if k not in self._hooks.plugins))
        self._hooks.register(plugin)
        self.loaded.append(plugin)
        return plugin


def _distribution_of(plugin: LoadedPlugin) -> Distribution:
    """Return the distribution of a plugin; its fields are empty if it is not installed."""
    name = plugin.distribution
    return Distribution(normalise(name), name, plugin.version)


def _import(entry: EntryPoint, who: str) -> object:
    """Import the object of an entry point.

    Raises:
        PluginLoadError: the entry point is malformed, or the import fails.
    """
    try:
        target = entry.target()
    except ValueError:
        raise PluginLoadError(
            f"{who} cannot be loaded: its entry point is not of the form MODULE:OBJECT; the "
            f"author of {entry.distribution.name!r} must correct it"
        ) from None
    advice = lambda error: _advice(entry, target, error)  # noqa: E731
    with import_errors(f"{who} cannot be loaded", advice=advice):
        return target.load()


def _import_module(name: str, who: str) -> object | None:
    """Import module `name`, for `-p NAME`; None if there is no such module.

    Raises:
        PluginLoadError: it exists but cannot be imported.
    """
    try:
        with import_errors(f"{who} cannot be loaded"):
            return importlib.import_module(name)
    except PluginLoadError as error:
        if _is_missing(error.__cause__, name):
            return None
        raise


def _bridged_handler(entry: EntryPoint, value: object, who: str) -> object:
    """Convert an object of torchrun's group of rendezvous handlers to a factory of plaunch's."""
    with import_errors(f"{who} cannot be loaded"):
        bridged: object = load_part(TORCHRUN_CREATORS)(who, entry.name, value)
    return bridged


def _checked(kind: Kind[T], who: str, thing: object) -> T:
    """Check the type of what a name stands for; converts torch's logs specs.

    Raises:
        PluginLoadError: names of this kind stand for something else.
    """
    fit: Any = thing
    if not callable(thing):
        raise PluginLoadError(
            f"{who} gives {thing!r}, which cannot be called; {kind.hook} says what a "
            f"{kind.label} is"
        )
    if kind.name == LOGS_SPECS.name and not (
        isinstance(thing, type) and issubclass(thing, LogsSpecs)
    ):
        fit = load_part(TORCHRUN_LOGS_SPECS)(thing)
        if fit is None:
            raise PluginLoadError(
                f"{who} gives {thing!r}, which is not a class derived from "
                "plaunch.process.LogsSpecs or from torch's LogsSpecs"
            )
    return fit  # type: ignore[no-any-return]


def _advice(entry: EntryPoint, target: Target, error: BaseException) -> str:
    if not isinstance(error, ModuleNotFoundError):
        return ""
    distribution = entry.distribution.name
    if _is_missing(error, target.module):
        return f"; reinstall {distribution!r}, which lists it"
    if target.extras:
        return f"; pip install '{distribution}[{','.join(target.extras)}]'"
    return ""


def _is_missing(error: BaseException | None, module: str) -> bool:
    """Whether `module` itself was not found, rather than a module that it imports."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return missing is not None and (module == missing or module.startswith(f"{missing}."))
