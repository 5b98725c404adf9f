"""Command lines, variables and settings files."""

from __future__ import annotations

import os
import tempfile
from functools import cache

from plaunch.cli.parser import Arguments, installed_table, parse
from plaunch.errors import UsageError
from plaunch.texts import printable_message
from plaunch_command_line.settings_file import apply_file

from helpers.fuzz_targets import Finding
from helpers.fuzz_targets.reading import Choices, check_equal, check_message

MAX_LENGTH = 1024
WORDS = (
    b"--", b"-p\n", b"--nnodes=", b"--nproc-per-node\n", b"--rdzv_conf=a=1,b=2\n", b"-m\n",
    b"--max-restarts=", b"PET_NNODES=", b"PLAUNCH_", b"[tool.plaunch]\n", b"[restarts]\n",
    b"nnodes = ", b"rdzv-conf = {a=1}\n", b"health-check = [", b"'''", b"[[[[[[", b"a.b.c=", b"{",
    b"--standalone\n", b"--run-path\n", b"--no-python\n", b"train.py\n", b"inf", b"1979-05-27",
)  # fmt: skip


@cache
def _table():
    table = installed_table([], {})
    # Not the files of this machine.
    for option in table.options:
        if option.source:
            object.__setattr__(option, "source", "")
    return table


def check(data):
    """Parse a command line or a file of settings; what is invalid is a usage error."""
    choices = Choices(data)
    try:
        if choices.number(2):
            _check_file(choices)
        else:
            _check_words(choices)
    except UsageError as error:
        check_message(printable_message(str(error)), 6000)  # as the console shows it


def _check_words(choices):
    variables = [choices.text().partition("=") for _ in range(choices.number(3))]
    environ = {name: value for name, _, value in variables if name}
    words = [one.decode("utf-8", "surrogateescape") for one in choices.rest.split(b"\n") if one]
    args = parse(words, environ, _table())
    if not isinstance(args, Arguments):
        raise Finding(f"{args!r}")
    # The words of options, and the rest, are all the words.
    said = [word for _, found in args.option_words for word in found]
    rest = [args.training_script, *args.training_script_args] if args.training_script else []
    if args.is_divided:
        said.append("--")
    if args.training_script != "":
        check_equal([*said, *rest], words, "the words of a command line")
    again = parse(words, environ, _table())
    check_equal(again.sources, args.sources, "the sources")


def _check_file(choices):
    is_project = bool(choices.number(2))
    args = parse([], {}, _table())
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        file.write(choices.rest)
        file.flush()
        try:
            apply_file(args, file.name, is_project=is_project)
        finally:
            if not os.path.exists(file.name):
                raise Finding("the file is gone")
    for option in _table():
        getattr(args, option.dest)
