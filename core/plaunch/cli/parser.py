"""Parses the command line: all options as a table, and their values with the source of each.

Parsing stops at the script; its arguments are not parsed. An option may be spelt with dashes or
underscores, cannot be abbreviated, and takes its default from its `PET_*` variable, as in torchrun.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from plaunch.cli.options import GROUPS, OPTIONS
from plaunch.errors import DuplicateNameError, PlaunchError, PluginError, UsageError
from plaunch.numbers import quote
from plaunch.parts import load_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from plaunch.options import Option
    from plaunch.plugin.metadata import EntryPoint
    from plaunch.plugin.options import PluginOptions

CORE = "plaunch itself"
DEFAULT, COMMAND_LINE = "default", "command line"  # sources of values
PREFIX = "PET_"


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
        self.groups = list(GROUPS)  # titles of the help text, each with its options
        self.plugin_of: dict[str, str] = {}  # names of plugins by the attribute of their options
        self._clashes: dict[str, str] = {}
        plugins = list(plugins)
        self._first_party = {plugin.name for plugin in plugins if plugin.is_first_party}
        # The other attributes of `Arguments`.
        reserved = (name for name in dir(Arguments(self, ())) if not name.startswith("_"))
        owners = {word: [CORE] for word in (*reserved, *(w for o in OPTIONS for w in _words(o)))}
        for plugin in plugins:
            who = f"plugin {plugin.name!r} of {plugin.owner}"
            if plugin.is_first_party:
                who = f"{plugin.owner} (-p no:{plugin.name} blocks it)"
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
                self.groups.append((plugin.name, tuple(kept)))
        self.options = tuple(option for _, options in self.groups for option in options)
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
        try:
            return load_object(path)(*args)
        except PlaunchError:
            raise
        except Exception as error:
            if not self.is_plugins(option):
                raise
            from plaunch.errors import one_line  # errors only

            name = self.plugin_of[option.dest]
            whose = "" if name in self._first_party else f" of plugin {name!r}"
            raise PluginError(f"{option.names[-1]}{whose} failed: {one_line(error)}") from error

    def _note_clash(self, option: Option, owners: list[str]) -> None:
        text = (
            f"option {option.names[-1]} is declared by {' and by '.join(owners)}; remove one of "
            "them, or block one with -p no:NAME"
        )
        self.problems.append(text)
        if CORE not in owners:
            self._clashes.update(dict.fromkeys(option.names, text))


class Arguments(SimpleNamespace):
    """The values of the options by attribute, and the rest of the command line.

    Args:
        table: all options.
        command: the words from the script on.
        is_divided: whether `--` precedes the script.
        unknown_variables: the names of `PET_*` variables that belong to no option.
        option_words: the options on the command line, in order: attribute, and words there.

    Attributes:
        sources: the source of each option's value, by attribute: `default`, `command line`, the
            name of a variable or of the settings file, or another source.
        training_script: the script, or None.
        training_script_args: its arguments.
        settings_files: the files that have set options.
    """

    def __init__(
        self,
        table: OptionTable,
        command: Sequence[str],
        *,
        is_divided: bool = False,
        unknown_variables: Sequence[str] = (),
        option_words: Sequence[tuple[str, Sequence[str]]] = (),
    ) -> None:
        super().__init__()
        self.table = table
        self.sources: dict[str, str] = {}
        self.training_script = command[0] if command else None
        self.training_script_args = list(command[1:])
        self.is_divided = is_divided
        self.unknown_variables = list(unknown_variables)
        self.option_words = list(option_words)
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

    def name_sources(self, text: str) -> str:
        """Replace options in a message by the variables or files that set them.

        Args:
            text: the message; it names options as on a command line. What it quotes stays.
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
        quoted = r"(?<!\w)'(?:[^'\\]|\\.)*'"
        pattern = rf"{quoted}|(?<![\w-])(?:{names})(?![\w-])"
        return re.sub(pattern, lambda found: given.get(found.group(), found.group()), text)


def _words(option: Option) -> tuple[str, ...]:
    """Return the names, attribute and variables of an option, which must be unique."""
    return (*option.names, option.dest, *option.variables)


def installed_table(words: Iterable[str], environ: Mapping[str, str]) -> OptionTable:
    """Return the table of the core's options and those of installed plugins.

    Args:
        words: the arguments of `-p`.
        environ: the environment variables, which may also select plugins.
    """
    from plaunch.plugin.kinds import GROUPS as ENTRY_POINTS
    from plaunch.plugin.metadata import scan
    from plaunch.plugin.options import Installed, Selection

    entries = scan(ENTRY_POINTS)
    return OptionTable(*Installed(entries, Selection(list(words), environ)).options(), entries)


def parse(
    argv: Sequence[str],
    environ: Mapping[str, str] | None = None,
    table: OptionTable | None = None,
) -> Arguments:
    """Parse a command line without the program's name.

    Args:
        argv: the words of the command line.
        environ: the environment variables; by default this process's.
        table: all options; by default those of the core and of installed plugins.

    Raises:
        UsageError: an option is unknown, or a value on the command line, in a variable or in a file
            is invalid.
        PluginError: a plugin that provides values failed.
    """
    environ = os.environ if environ is None else environ
    for word in argv:
        _check_characters(word)
    if table is not None:
        return _parse(argv, environ, table)
    words = _plugin_words(argv)
    args = _parse(argv, environ, installed_table(words, environ))
    if args.plugins != words:  # some of the words were arguments of the script
        args = _parse(argv, environ, installed_table(args.plugins, environ))
    return args


def _parse(argv: Sequence[str], environ: Mapping[str, str], table: OptionTable) -> Arguments:
    words, command = _read(argv, table)
    given: dict[str, list[str]] = {}
    for option, text, _ in words:
        given.setdefault(option.dest, []).append(text)
    known = {option.variable for option in table}
    args = Arguments(
        table,
        command,
        is_divided=len(command) < len(argv) and argv[-len(command) - 1] == "--",
        unknown_variables=sorted(n for n in environ if n.startswith(PREFIX) and n not in known),
        option_words=[(option.dest, found) for option, _, found in words],
    )
    for option in table:
        variable = _variable_of(option, environ)
        if option.dest in given:
            args.give(option.dest, _value(option, given[option.dest], _call(option)), COMMAND_LINE)
        elif variable is not None:
            text = environ[variable]
            if option.dest == "standalone" and not text:
                text = "1"  # Kubeflow's training operator turns it on in this way
            args.give(option.dest, _value(option, [text], f"variable {variable}"), variable)
        else:
            is_list = option.is_repeated or option.default == ()
            args.give(option.dest, [] if is_list else option.default, DEFAULT)
    for option in filter(lambda option: option.source, table):
        if file := table.call(option, option.source, args):
            args.settings_files.append(file)
    return args


def _plugin_words(argv: Sequence[str]) -> list[str]:
    """Return the arguments of `-p`, before the options of plugins are known."""
    words: list[str] = []
    position = 0
    while position < len(argv) and argv[position] != "--":
        word = argv[position]
        position += 1
        name, equals, value = word.partition("=")
        if name in ("-p", "--plugins") and not equals:
            words += argv[position : position + 1]
            position += 1
        elif name == "--plugins":
            words.append(value)
        elif word.startswith("-p"):
            words.append(word[2:])
    return words


def _read(
    argv: Sequence[str], table: OptionTable
) -> tuple[list[tuple[Option, str, Sequence[str]]], Sequence[str]]:
    """Return each given option with its text and its words, and the words from the script on.

    The script is the first word that is neither an option nor an option's value, or the first word
    after `--`.
    """
    options = {name: option for option in table for name in option.names}
    given: list[tuple[Option, str, Sequence[str]]] = []
    position = 0
    while position < len(argv):
        begin, word = position, argv[position]
        if word == "--":
            return given, argv[position + 1 :]
        if not word.startswith("-") or word == "-":
            return given, argv[position:]
        position += 1
        name, equals, text = word.partition("=")
        if name.startswith("--"):
            name = name.replace("_", "-")
        elif word[:2] in options and len(name) > 2:  # a short name, with its value in one word
            name, equals, text = word[:2], "joined", word[2:]
        option = options.get(name)
        if option is None:
            raise table.clash(name) or _unknown_option(name, options)
        if option.read is None:
            if equals:
                raise UsageError(f"{_call(option)}: it takes no value, such as {quote(text)}")
            text = "1"
        elif not equals and option.bare is not None:
            text = option.bare
        elif not equals:
            if position == len(argv):
                raise UsageError(f"{_call(option)}: expected one argument")
            text = argv[position]
            position += 1
        if text == "--":
            raise UsageError(f"{_call(option)}: it has no value, since '--' ends the options")
        given.append((option, text, argv[begin:position]))
    return given, []


def _value(option: Option, texts: Sequence[str], where: str) -> Any:
    """Parse the texts of an option; `where` is their source, for messages."""
    try:
        values = [option.value_of(text) for text in texts]
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where}: {error}") from None
    return values if option.is_repeated else values[-1]


def _call(option: Option) -> str:
    """Return the name of a typed option in messages."""
    return f"argument {'/'.join(option.names)}"


def _variable_of(option: Option, environ: Mapping[str, str]) -> str | None:
    """Return the variable that sets an option, or None."""
    names = (option.variable, *option.variables)
    return next((name for name in names if name and name in environ), None)


def _check_characters(word: str) -> None:
    """Refuse characters that cannot be passed to a program; only a caller in code has them."""
    try:
        data = os.fsencode(word)
    except UnicodeEncodeError:
        raise UsageError(f"{quote(word)} has characters that cannot be encoded") from None
    if b"\0" in data:
        raise UsageError(f"{quote(word)} has a NUL character, which cannot be passed to a program")


def _unknown_option(name: str, known: Mapping[str, object]) -> UsageError:
    from plaunch._names import did_you_mean  # errors only

    return UsageError(
        f"there is no option {name}{did_you_mean(name, known)} (options are not abbreviated; "
        "options of the script go after the script; see plaunch --help)"
    )
