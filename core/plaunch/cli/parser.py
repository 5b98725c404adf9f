"""Parses the command line, and records the source of each value.

Parsing stops at the script; its arguments are not parsed. An option may be spelt with dashes or
underscores, cannot be abbreviated, and takes its default from its `PET_*` variable, as in torchrun.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plaunch.cli.table import COMMAND_LINE, DEFAULT, Arguments, installed_table
from plaunch.errors import UsageError
from plaunch.numbers import quote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from plaunch.cli.table import OptionTable
    from plaunch.options import Option

PREFIX = "PET_"


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
    given, command = _read(argv, table)
    args = Arguments(table, command)
    args.is_divided = len(command) < len(argv) and argv[-len(command) - 1] == "--"
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
    known = {option.variable for option in table}
    args.unknown_variables = sorted(
        name for name in environ if name.startswith(PREFIX) and name not in known
    )
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


def _read(argv: Sequence[str], table: OptionTable) -> tuple[dict[str, list[str]], Sequence[str]]:
    """Return the texts of the given options, by attribute, and the words from the script on.

    The script is the first word that is neither an option nor an option's value, or the first word
    after `--`.
    """
    options = {name: option for option in table for name in option.names}
    given: dict[str, list[str]] = {}
    position = 0
    while position < len(argv):
        word = argv[position]
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
        given.setdefault(option.dest, []).append(text)
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
