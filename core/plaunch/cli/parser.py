"""Parsing of the command line: where it ends, and where each value comes from.

Parsing stops at the script: what follows it is never looked at. An option may be spelt with dashes
or underscores, is never abbreviated, and has a default from its `PET_*` variable as in torchrun.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from plaunch.cli.options import HELP_GROUP
from plaunch.cli.settings_file import apply_settings
from plaunch.cli.table import installed_table
from plaunch.errors import UsageError
from plaunch.numbers import quote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from plaunch.cli.table import OptionTable
    from plaunch.options import Option

DEFAULT, COMMAND_LINE = "default", "command line"
PREFIX = "PET_"

_DESCRIPTION = (
    "Start workers on this node, give each its rank and the world, watch them and restart them. "
    "Options and environment are torchrun's; every option also has a variable PET_<NAME>."
)
_EPILOG = (
    "Exit code: 0 on success, a failed worker's own code, 128+n for signal n, 2 for bad usage, "
    "110 and above for the launcher's own failures (see docs/errors.md)."
)


class Parser(argparse.ArgumentParser):
    """An argument parser that raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        """Turn argparse's complaint into a usage error of one line."""
        raise UsageError(message)


def parse(
    argv: Sequence[str],
    environ: Mapping[str, str] | None = None,
    table: OptionTable | None = None,
) -> argparse.Namespace:
    """Parse a command line without the program's name.

    Beside the options, the result has `training_script`, `training_script_args`, and `sources`: for
    the attribute of each option `default`, `command line`, the name of its variable, or that of the
    settings file; `settings_file`, the file that was read, or an empty text; `is_divided`, whether
    `--` stands in front of the script; `unknown_variables`, the names of `PET_*` variables that
    belong to no option; and `table`, all options.

    Args:
        argv: the words.
        environ: the environment variables; by default this process's.
        table: all options; by default the core's and those of the plugins that are installed.

    Raises:
        UsageError: an option is unknown or its value is malformed, here, in a variable, or in a
            file.
        SystemExit: after `--help` and `--version`, with code 0.
    """
    environ = os.environ if environ is None else environ
    for word in argv:
        _check_characters(word)
    if table is not None:
        return _parse(argv, environ, table)
    words = _plugin_words(argv)
    args = _parse(argv, environ, installed_table(words, environ))
    if args.plugins != words:  # some were the script's
        args = _parse(argv, environ, installed_table(args.plugins, environ))
    return args


def _parse(
    argv: Sequence[str], environ: Mapping[str, str], table: OptionTable
) -> argparse.Namespace:
    parser = build_parser(environ, table)
    options, command = split(parser, argv, table)
    if table.problems and not {"-h", "--help"}.isdisjoint(options):
        sys.stderr.write("".join(f"plaunch: {problem}\n" for problem in table.problems))
    args = parser.parse_args(options)
    args.table = table
    args.training_script = command[0] if command else None
    args.training_script_args = command[1:]
    args.sources = _sources(options, environ, table)
    args.is_divided = len(command) < len(argv) and argv[-len(command) - 1] == "--"
    args.unknown_variables = _unknown_variables(environ, table)
    for option in table:
        if option.is_repeated and args.sources[option.dest] == COMMAND_LINE:
            # argparse adds to the default, which is the variable's.
            inherited = 0 if _variable_of(option, environ) is None else 1
            setattr(args, option.dest, getattr(args, option.dest)[inherited:])
    args.settings_file = apply_settings(args, table)
    return args


def _plugin_words(argv: Sequence[str]) -> list[str]:
    """What is said of plugins, before it is known which options there are."""
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


def split(
    parser: argparse.ArgumentParser, argv: Sequence[str], table: OptionTable
) -> tuple[list[str], list[str]]:
    """Cut `argv` before the script; option names come back with dashes for underscores.

    The script is the first word that is neither an option nor an option's value, or the first word
    after `--`.
    """
    takes_value = {
        # One that may do without a value has it in the same word.
        name: action.nargs not in (0, argparse.OPTIONAL)
        for action in parser._actions
        for name in action.option_strings
    }
    options: list[str] = []
    position = 0
    while position < len(argv):
        word = argv[position]
        if word == "--":
            return options, list(argv[position + 1 :])
        if not word.startswith("-") or word == "-":
            return options, list(argv[position:])
        position += 1
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            name = name.replace("_", "-")
            options.append(name + equals + value)
        else:
            name = word[:2]
            equals = word[2:]
            options.append(word)
        if name not in takes_value:
            name = (name + equals).partition("=")[0]
            raise table.clash(name) or _unknown_option(name, takes_value)
        if takes_value[name] and not equals and position < len(argv):
            # Joined, so that a value that begins with a dash is still a value.
            value = argv[position]
            options[-1] = f"{name}={value}" if name.startswith("--") else name + value
            position += 1
        if takes_value[name] and options[-1] in (f"{name}--", f"{name}=--"):
            raise UsageError(f"argument {name}: it has no value, since '--' ends the options")
    return options, []


def build_parser(environ: Mapping[str, str], table: OptionTable) -> Parser:
    """Build the parser, with defaults from the variables in `environ`."""
    parser = Parser(
        prog="plaunch",
        usage="plaunch [options] script [arguments of the script]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        allow_abbrev=False,
        add_help=False,  # for an option outside of a group, argparse measures the terminal
    )
    for title, options in table.groups:
        group = parser.add_argument_group(title)
        for option in options:
            group.add_argument(*option.names, help=option.help, **_details(option, environ))
        if title == HELP_GROUP:
            group.add_argument(
                "-h", "--help", action="help", help="show this help message and exit"
            )
            group.add_argument("--version", action="version", version=_version())
    return parser


def _details(option: Option, environ: Mapping[str, str]) -> dict[str, Any]:
    """What argparse is told of an option, beside its names and help."""
    default = _default(option, environ)
    if option.read is None:
        return {"action": "store_true", "default": default}
    details: dict[str, Any] = {
        "type": _Reader(option),
        "metavar": option.metavar,
        "default": list(default) if isinstance(default, tuple) and not default else default,
    }
    if option.bare is not None:
        details |= {"nargs": argparse.OPTIONAL, "const": option.bare}
    if option.is_repeated:
        details |= {"action": "append", "default": [] if default is None else [default]}
    return details


def _variable_of(option: Option, environ: Mapping[str, str]) -> str | None:
    """The variable that gives an option its value, if one does."""
    names = (option.variable, *option.variables)
    return next((name for name in names if name and name in environ), None)


def _default(option: Option, environ: Mapping[str, str]) -> Any:
    variable = _variable_of(option, environ)
    if variable is None:
        return option.default
    text = environ[variable]
    if option.dest == "standalone" and not text:
        return True  # Kubeflow's training operator turns it on in this way
    try:
        return option.value_of(text)
    except ValueError as error:
        raise UsageError(f"variable {variable}: {error}") from None


class _Reader:
    """Reads the value of an option for argparse, which shows the text of one exception only."""

    def __init__(self, option: Option) -> None:
        self._option = option

    def __call__(self, text: str) -> Any:
        try:
            return self._option.value_of(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None


def _check_characters(word: str) -> None:
    """Refuse what only a caller in code can give: no program, file or log takes it."""
    try:
        data = os.fsencode(word)
    except UnicodeEncodeError:
        raise UsageError(f"{quote(word)} has characters that cannot be encoded") from None
    if b"\0" in data:
        raise UsageError(f"{quote(word)} has a NUL character, which no program can be given")


def _sources(
    given: Sequence[str], environ: Mapping[str, str], table: OptionTable
) -> dict[str, str]:
    """Where each option's value comes from; `given` are the words that `split` has returned."""
    names = {word.partition("=")[0] if word.startswith("--") else word[:2] for word in given}
    sources = {}
    for option in table:
        source = _variable_of(option, environ) or DEFAULT
        sources[option.dest] = source if names.isdisjoint(option.names) else COMMAND_LINE
    return sources


def _unknown_variables(environ: Mapping[str, str], table: OptionTable) -> list[str]:
    given = {name for name in environ if name.startswith(PREFIX)}
    return sorted(given.difference(option.variable for option in table)) if given else []


def as_given(text: str, args: argparse.Namespace) -> str:
    """A message about options, with variables where it names options that nobody has typed.

    Args:
        text: the message; it names options as they are written on a command line.
        args: what `parse` has made.
    """
    sources: Mapping[str, str] = args.sources
    given = {}
    for option in args.table:
        source = sources.get(option.dest)
        if source in (option.variable, *option.variables) and source:
            given.update(dict.fromkeys(option.names, f"variable {source}"))
        elif source and source == args.settings_file:
            given.update(dict.fromkeys(option.names, f"{option.dest} in {source}"))
    if not given:
        return text
    import re  # noqa: PLC0415 - errors only

    names = "|".join(map(re.escape, given))
    return re.sub(rf"(?<![\w-])(?:{names})(?![\w-])", lambda m: given[m.group()], text)


def _unknown_option(name: str, known: Mapping[str, object]) -> UsageError:
    from plaunch._names import did_you_mean  # noqa: PLC0415 - errors only

    return UsageError(
        f"there is no option {name}{did_you_mean(name, known)} (options are not abbreviated; the "
        "script's own go after the script; see plaunch --help)"
    )


def _version() -> str:
    from plaunch._version import __version__  # noqa: PLC0415

    python = ".".join(map(str, sys.version_info[:3]))
    return f"plaunch {__version__} (Python {python}, {sys.executable})"
