"""The options of one command line, of the core and of plugins, and their values."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from plaunch.cli.options import GROUPS
from plaunch.errors import DuplicateNameError, PlaunchError, PluginError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from plaunch.options import Option
    from plaunch.plugin.metadata import EntryPoint
    from plaunch.plugin.options import PluginOptions

OURS = "plaunch itself"
DEFAULT, COMMAND_LINE = "default", "command line"  # sources of values


class OptionGroup(NamedTuple):
    """Options under one title of the help text."""

    title: str
    options: tuple[Option, ...]


class OptionTable:
    """All options; each name and attribute has one owner.

    An option that two plugins declare is left out; the core's options have priority.

    Args:
        plugins: the options that plugins declare.
        problems: messages about plugins whose options cannot be used.
        entries: the installed entry points, if they have been scanned.
    """

    def __init__(
        self,
        plugins: Iterable[PluginOptions] = (),
        problems: Iterable[str] = (),
        entries: list[EntryPoint] | None = None,
    ) -> None:
        self.entries = entries
        self.problems = list(problems)
        self.groups = [OptionGroup(title, options) for title, options in GROUPS]
        self.plugin_of: dict[str, str] = {}  # names of plugins by the attribute of their options
        self._clashes: dict[str, str] = {}
        plugins = list(plugins)
        ours = (word for _, options in GROUPS for option in options for word in _words(option))
        # The other attributes of `Arguments`.
        reserved = (name for name in dir(Arguments(self, ())) if not name.startswith("_"))
        owners = {word: [OURS] for word in (*reserved, *ours)}
        for plugin in plugins:
            who = f"plugin {plugin.name!r} of {plugin.owner}"
            for word in dict.fromkeys(word for o in plugin.options for word in _words(o)):
                owners.setdefault(word, []).append(who)
        for plugin in plugins:
            kept = []
            for option in plugin.options:
                clash = next((word for word in _words(option) if len(owners[word]) > 1), None)
                if clash is None:
                    kept.append(option)
                    self.plugin_of[option.dest] = plugin.name
                else:
                    self._note_clash(option, owners[clash])
            if kept:
                self.groups.append(OptionGroup(plugin.name, tuple(kept)))
        self.options = tuple(option for group in self.groups for option in group.options)
        self._by_dest = {option.dest: option for option in self.options}

    def __iter__(self) -> Iterator[Option]:
        return iter(self.options)

    def find(self, dest: str) -> Option | None:
        """Return the option with this attribute, or None."""
        return self._by_dest.get(dest)

    def is_plugins(self, option: Option) -> bool:
        """Whether a plugin declares an option."""
        return option.dest in self.plugin_of

    def clash(self, name: str) -> DuplicateNameError | None:
        """Return the error for an option that several plugins declare, or None."""
        text = self._clashes.get(name)
        return None if text is None else DuplicateNameError(text)

    def call(self, option: Option, path: str, *args: object) -> Any:
        """Call the function of an option, given as `module:function`.

        Raises:
            PluginError: it cannot be imported, or raised an exception that is not plaunch's.
        """
        module, _, name = path.partition(":")
        try:
            return getattr(importlib.import_module(module), name)(*args)
        except PlaunchError:
            raise
        except Exception as error:
            plugin = self.plugin_of.get(option.dest)
            if plugin is None:
                raise
            from plaunch.errors import one_line  # errors only

            raise PluginError(
                f"{option.names[-1]} of plugin {plugin!r} failed: {one_line(error)}"
            ) from error

    def _note_clash(self, option: Option, owners: list[str]) -> None:
        text = (
            f"option {option.names[-1]} is declared by {' and by '.join(owners)}; remove one of "
            "them, or block one with -p no:NAME"
        )
        self.problems.append(text)
        if OURS not in owners:
            self._clashes.update(dict.fromkeys(option.names, text))


class Arguments(SimpleNamespace):
    """The values of the options by attribute, and the rest of the command line.

    Args:
        table: all options.
        command: the words from the script on.

    Attributes:
        table: all options.
        sources: the source of each option's value, by attribute: `default`, `command line`, the
            name of a variable or of the settings file, or another source.
        training_script: the script, or None.
        training_script_args: its arguments.
        is_divided: whether `--` precedes the script.
        unknown_variables: the names of `PET_*` variables that belong to no option.
        settings_files: the files that have set options.
    """

    def __init__(self, table: OptionTable, command: Sequence[str]) -> None:
        super().__init__()
        self.table = table
        self.sources: dict[str, str] = {}
        self.training_script = command[0] if command else None
        self.training_script_args = list(command[1:])
        self.is_divided = False
        self.unknown_variables: list[str] = []
        self.settings_files: list[str] = []

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def is_given(self, dest: str) -> bool:
        """Whether an option, by its attribute, has been set."""
        return self.sources.get(dest, DEFAULT) != DEFAULT  # a plugin's may be missing

    def is_on_command_line(self, dest: str) -> bool:
        """Whether an option, by its attribute, is given on the command line."""
        return self.sources[dest] == COMMAND_LINE

    def give(self, dest: str, value: object, source: str) -> None:
        """Set an option's value, and record its source."""
        setattr(self, dest, value)
        self.sources[dest] = source

    def as_given(self, text: str) -> str:
        """Replace options in a message by the variables or files that set them.

        Args:
            text: the message; it names options as on a command line.
        """
        given: dict[str, str] = {}
        for option in self.table:
            source = self.sources.get(option.dest)
            if source and source in (option.variable, *option.variables):
                given.update(dict.fromkeys(option.names, f"variable {source}"))
            elif source in self.settings_files:
                given.update(dict.fromkeys(option.names, f"{option.dest} in {source}"))
        if not given:
            return text
        import re  # errors only

        names = "|".join(map(re.escape, given))
        return re.sub(rf"(?<![\w-])(?:{names})(?![\w-])", lambda m: given[m.group()], text)


def _words(option: Option) -> tuple[str, ...]:
    """Return the names, attribute and variables of an option, which must be unique."""
    return (*option.names, option.dest, *option.variables)


def installed_table(words: Iterable[str], environ: Mapping[str, str]) -> OptionTable:
    """Return the table of the core's options and those of installed plugins.

    Args:
        words: the arguments of `-p`.
        environ: the environment variables, which may also select plugins.
    """
    from plaunch.plugin.metadata import GROUPS as ENTRY_POINTS
    from plaunch.plugin.metadata import scan
    from plaunch.plugin.options import Installed, Selection

    entries = scan(ENTRY_POINTS)
    return OptionTable(*Installed(entries, Selection(list(words), environ)).options(), entries)
