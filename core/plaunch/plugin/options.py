"""What the user selects: plugins with `-p` and variables, and the options that plugins declare.

Only the modules that declare options are imported.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from plaunch._names import suggest
from plaunch.errors import DuplicateNameError, PluginLoadError, UnknownNameError, UsageError
from plaunch.options import Option
from plaunch.plugin.kinds import (
    ALL_KINDS,
    DEVICE_COUNTS,
    GROUPS,
    LIFECYCLE,
    LOGS_SPECS,
    WITH_OPTIONS,
    Kind,
)
from plaunch.plugin.metadata import FIRST_PARTY, import_errors, normalise, scan
from plaunch.plugin.unknown_groups import describe_misplaced

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from plaunch.plugin.metadata import EntryPoint

PLUGINS_VARIABLE = "PLAUNCH_PLUGINS"
AUTOLOAD_VARIABLE = "PLAUNCH_DISABLE_PLUGIN_AUTOLOAD"
_BLOCK = "no:"
HOW_TO_ADD = "; reinstall the package if you just added it"
_NAME = re.compile(r"--[a-z][a-z0-9]*(-[a-z0-9]+)*")


# --- which plugins --------------------------------------------------------------------------------


class Word(NamedTuple):
    """One word of `-p`: a `NAME`, a `KIND:NAME` or a `DISTRIBUTION:NAME`.

    `source` is the option or variable, for messages.
    """

    text: str
    source: str

    def means(self, kind: str, name: str, distribution: str = "") -> bool:
        """Whether it matches the plugin `name` of a kind, from a distribution (its key)."""
        return _means(self.text, name, distribution) or self.text == f"{kind}:{name}"


class Selection:
    """The plugins that a launch loads and blocks. A later word overrides an earlier equal one.

    Kinds are given by their names, distributions by their keys.

    Args:
        arguments: the arguments of `-p`, in order; they override the environment.
        environ: the environment variables.

    Raises:
        UsageError: a word is empty.
    """

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
        self.loads: list[Word] = []
        self.blocks: list[Word] = []
        # As with pytest's variable of this kind, any value but "0" turns loading off.
        self.autoload = environ.get(AUTOLOAD_VARIABLE, "0") in ("", "0")
        for text in environ.get(PLUGINS_VARIABLE, "").replace(",", " ").split():
            self._add(text, f"{text!r} in {PLUGINS_VARIABLE}")
        for text in arguments:
            self._add(text.strip(), f"-p {text if text.isprintable() else repr(text)}")

    def blocker(self, kind: str, name: str, distribution: str = "") -> str:
        """Return the option or variable that blocks a plugin, or an empty text."""
        means = (word.source for word in self.blocks if word.means(kind, name, distribution))
        return next(means, "")

    def reason_against(self, kind: str, name: str, distribution: str) -> str:
        """Return what excludes an installed plugin: its blocker, `AUTOLOAD_VARIABLE`, or empty."""
        blocker = self.blocker(kind, name, distribution)
        is_on = self.autoload or (distribution == FIRST_PARTY and kind != LIFECYCLE.name)
        is_on = is_on or any(word.means(kind, name, distribution) for word in self.loads)
        return blocker if blocker or is_on else AUTOLOAD_VARIABLE

    def _add(self, text: str, source: str) -> None:
        blocks = text.startswith(_BLOCK)
        word = Word(text[len(_BLOCK) :] if blocks else text, source)
        if not word.text:
            raise UsageError(f"{source} names no plugin; write -p NAME or -p no:NAME")
        self.loads = [other for other in self.loads if other.text != word.text]
        self.blocks = [other for other in self.blocks if other.text != word.text]
        (self.blocks if blocks else self.loads).append(word)


class Installed:
    """The entry points of one launch, each usable or excluded.

    Args:
        entries: the entry points, sorted.
        selection: the user's choice.
    """

    def __init__(self, entries: Iterable[EntryPoint], selection: Selection) -> None:
        self.selection = selection
        # By the names of kinds, each with what excludes it, or an empty text.
        self._entries: dict[str, list[tuple[EntryPoint, str]]] = {k.name: [] for k in ALL_KINDS}
        kinds = {group: kind.name for kind in ALL_KINDS for group in kind.groups}
        for entry in sorted(entries, key=lambda entry: entry.name):
            kind = kinds[entry.group]
            reason = selection.reason_against(kind, entry.name, entry.distribution.key)
            self._entries[kind].append((entry, reason))

    def usable(self, kind: Kind[Any]) -> list[EntryPoint]:
        """Return the usable plugins of `kind`, sorted by name, with all providers of a name."""
        return [entry for entry, reason in self._entries[kind.name] if not reason]

    def left_out(self, kind: Kind[Any]) -> list[tuple[EntryPoint, str]]:
        """Return the excluded plugins of `kind`, each with what excludes it."""
        return [(entry, reason) for entry, reason in self._entries[kind.name] if reason]

    def named(self, word: Word) -> list[tuple[Kind[Any], str]]:
        """Return kind and name of each usable plugin that a word matches, lifecycle ones first."""
        found = {
            (kind.name, entry.name): kind
            for kind in ALL_KINDS
            for entry in self.usable(kind)
            if word.means(kind.name, entry.name, entry.distribution.key)
        }
        return [(kind, name) for (_, name), kind in found.items()]

    def blocker_of(self, word: Word) -> str:
        """Return the option or variable that blocks the plugin of a word, or an empty text."""
        for kind in ALL_KINDS:
            for entry, reason in self.left_out(kind):
                is_meant = word.means(kind.name, entry.name, entry.distribution.key)
                if is_meant and reason != AUTOLOAD_VARIABLE:
                    return reason
        return ""

    def names(self, kind: str = "") -> list[str]:
        """Return the names of the usable plugins of one kind, or of all, sorted."""
        kinds = [each for each in ALL_KINDS if kind in ("", each.name)]
        return sorted({entry.name for each in kinds for entry in self.usable(each)})

    def options(self) -> tuple[list[PluginOptions], list[str]]:
        """Return the options of the usable plugins, and messages about those that are unusable."""
        found: list[PluginOptions] = []
        problems: list[str] = []
        for entry in self.usable(WITH_OPTIONS):
            try:
                found.append(load_options(entry))
            except PluginLoadError as error:
                problems.append(str(error))
        return found, problems

    def find(
        self, kind: Kind[Any], name: str, offers: Iterable[EntryPoint] = ()
    ) -> EntryPoint | None:
        """Return the usable plugin of `kind` for `name` or `distribution:name`, or None.

        Args:
            kind: the kind.
            name: the name.
            offers: what loaded plugins offer beside their own entry points.

        Raises:
            DuplicateNameError: there is more than one.
        """
        entries = (*self.usable(kind), *offers)
        meant = [one for one in entries if _means(name, one.name, one.distribution.key)]
        owners = {entry.distribution.key for entry in meant}
        if len(owners) > 1 and kind is LOGS_SPECS and name == "default":
            owners.discard("torch")  # torchrun's own spec; plaunch's replaces it
            meant = [entry for entry in meant if entry.distribution.key in owners]
        if len(owners) > 1:
            raise _several(kind, name, meant)
        if not meant:
            return None
        groups = [*kind.groups, kind.hook]  # the first group has priority
        first = min(groups.index(entry.group) for entry in meant)
        best = [entry for entry in meant if entry.group == groups[first]]
        if len({entry.value for entry in best}) > 1:
            raise _listed_twice(kind, name, best)
        return best[0]

    def refusal(self, kind: Kind[Any], name: str, choices: Sequence[str]) -> UsageError:
        """Return the error for a name of `kind` that is blocked, not autoloaded, or unknown."""
        selection = f"{kind.label} {name!r} ({kind.flag})"
        blocker = self.selection.blocker(kind.name, name)
        for entry, reason in self.left_out(kind):
            if not _means(name, entry.name, entry.distribution.key):
                continue
            if reason == AUTOLOAD_VARIABLE:
                return UnknownNameError(
                    f"{selection} of distribution {entry.distribution.name!r} is not loaded, "
                    f"because {AUTOLOAD_VARIABLE} is set; add -p {kind.name}:{entry.name}"
                )
            blocker = blocker or reason
        if blocker:
            return UsageError(f"{selection} is blocked by {blocker}; remove one of the two")
        if kind is DEVICE_COUNTS:
            return UnknownNameError(
                f"{kind.flag} is {name!r}, which is neither a number nor the name of an installed "
                f"{kind.label}{suggest(name, choices)}"
            )
        return UnknownNameError(
            f"{kind.label} {name!r} is unknown ({kind.flag})"
            f"{describe_misplaced(name) or suggest(name, choices, otherwise=HOW_TO_ADD)}"
        )

    def refusal_of_word(self, word: Word) -> UnknownNameError:
        """Return the error for a word that matches neither a usable plugin nor a module."""
        if path := _file_of(word.text):
            module = path.removesuffix(f"{os.sep}__init__.py").removesuffix(".py")
            name = os.path.normpath(module).replace(os.sep, ".")
            return UnknownNameError(
                f"{word.source} names neither an installed plugin nor a module that Python finds; "
                f"the working folder has {path!r}, but Python does not look for modules there: "
                f"write PYTHONPATH=. before the command, and -p {name}"
            )
        hint = describe_misplaced(word.text)
        return UnknownNameError(
            f"{word.source} names neither an installed plugin nor a module"
            f"{hint or suggest(word.text, self.names(), otherwise=HOW_TO_ADD)}"
        )


def installed_plugins(
    words: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    path: Sequence[str] | None = None,
) -> Installed:
    """Find the installed plugins; imports none of them.

    Args:
        words: the arguments of `-p`.
        environ: the environment variables; by default this process's.
        path: folders to search for installed plugins; by default `sys.path`.

    Raises:
        UsageError: one of the words is empty.
    """
    environ = os.environ if environ is None else environ
    return Installed(scan(GROUPS, path), Selection(words, environ))


def _file_of(text: str) -> str | None:
    """Return the Python file below the working folder that a word of `-p` may mean, or None."""
    module = text.replace(".", os.sep)
    candidates = (text, f"{module}.py", os.path.join(module, "__init__.py"))
    found = (path for path in candidates if path.endswith(".py") and os.path.isfile(path))
    return None if os.path.isabs(text) else next(found, None)


def _means(text: str, name: str, distribution: str) -> bool:
    """Whether `NAME` or `DISTRIBUTION:NAME` is the plugin `name` of a distribution (its key)."""
    owner, _, bare = text.partition(":")
    return text == name or bool(bare == name and distribution and normalise(owner) == distribution)


def _several(kind: Kind[Any], name: str, entries: Sequence[EntryPoint]) -> DuplicateNameError:
    bare = entries[0].name
    owners = sorted({entry.distribution.name for entry in entries})
    spelled = [f"{owner}:{bare}" for owner in owners]
    choice = f"write {kind.flag} {' or '.join(spelled)}, or " if kind is not LIFECYCLE else ""
    return DuplicateNameError(
        f"{kind.label} {name!r} is offered by more than one distribution: {', '.join(owners)}; "
        f"{choice}block one with -p no:{spelled[-1]}"
    )


def _listed_twice(kind: Kind[Any], name: str, entries: Sequence[EntryPoint]) -> DuplicateNameError:
    values = ", ".join(sorted({entry.value for entry in entries}))
    return DuplicateNameError(
        f"{kind.label} {name!r} is listed more than once by distribution "
        f"{entries[0].distribution.name!r}: {values}; its author must rename one of them"
    )


# --- the options of plugins -----------------------------------------------------------------------


class PluginOptions(NamedTuple):
    """The options of one plugin.

    Args:
        name: the name of the plugin.
        owner: its distribution, for messages.
        options: its options.
        plugin: where its hooks are, as `module` or `module:object`; empty for a lifecycle plugin.
        declared_by: the module or object that declares them.
        module: the name of the module that is imported for them.
    """

    name: str
    owner: str
    options: tuple[Option, ...]
    plugin: str
    declared_by: object = None
    module: str = ""

    @property
    def is_first_party(self) -> bool:
        """Whether it comes with plaunch."""
        return self.owner.partition(" ")[0] == FIRST_PARTY

    @property
    def who(self) -> str:
        """Its name in messages."""
        name = find_known_as(self.declared_by) or f"plugin {self.name!r}"
        return name if self.is_first_party else f"{name} ({self.owner})"

    @property
    def package(self) -> str:
        """The top-level package of its module."""
        return self.module.partition(".")[0]

    def declared(self, name: str) -> Any:
        """Return what the module has under `name`, such as `AFTER_FAILURE`; None without it."""
        return getattr(self.declared_by, name, None)


def find_known_as(module: object) -> str:
    """Return how messages name the plugin of a module or object, its `KNOWN_AS`, or ""."""
    return str(getattr(module, "__dict__", {}).get("KNOWN_AS", ""))


def load_options(entry: EntryPoint) -> PluginOptions:
    """Import the module that declares the options of a plugin.

    Raises:
        PluginLoadError: it cannot be imported, or its declaration is invalid.
    """
    owner = f"{entry.distribution.name} {entry.distribution.version}".rstrip()
    with import_errors(f"the options of plugin {entry.name!r} ({owner}) cannot be used"):
        target = entry.target()
        declared = target.load()
        options, plugin = tuple(declared.OPTIONS), getattr(declared, "PLUGIN", "")
        _check(options, plugin)
    return PluginOptions(entry.name, owner, options, plugin, declared, target.module)


def _check(options: tuple[object, ...], plugin: object) -> None:
    for option in options:
        if not isinstance(option, Option):
            raise TypeError(f"{option!r} in OPTIONS is not a plaunch.options.Option")
        wrong = [name for name in option.names if not _NAME.fullmatch(name)]
        if wrong or not option.names:
            raise ValueError(f"{wrong} are not option names such as --acme-level")
    if not isinstance(plugin, str):
        raise TypeError(f"PLUGIN is {plugin!r}, not MODULE or MODULE:OBJECT")


def resolve_options(
    declared: Collection[PluginOptions], values: Mapping[str, object], environ: Mapping[str, str]
) -> dict[str, dict[str, object]]:
    """Return the option values of each plugin of which an option is given, by its name.

    Args:
        declared: the options of all plugins.
        values: the given options, by attribute; a text is parsed as on a command line.
        environ: the environment variables; options may have some.

    Raises:
        UsageError: a value belongs to no option, or is invalid.
    """
    left = dict(values)
    found: dict[str, dict[str, object]] = {}
    for plugin in declared:
        given: dict[str, object] = {}
        for option in plugin.options:
            variable = next((name for name in option.variables if name in environ), None)
            if option.dest in left:
                value = left.pop(option.dest)
                whose = "" if plugin.is_first_party else f" of plugin {plugin.name!r}"
                where = f"option {option.dest!r}{whose}"
            elif variable is not None:
                value, where = environ[variable], f"variable {variable}"
            else:
                continue
            if isinstance(value, str):
                try:
                    value = option.value_of(value)
                except ValueError as error:
                    raise UsageError(f"{where}: {error}") from None
            given[option.dest] = value
        if given:
            found[plugin.name] = {option.dest: option.default for option in plugin.options} | given
    for name in left:
        known = {option.dest for plugin in declared for option in plugin.options}
        raise UsageError(f"no plugin has an option {name!r}{suggest(name, known)}")
    return found
