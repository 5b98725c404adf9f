"""Parses a worker's command: the interpreter, the program, and its arguments."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from plaunch.process import is_python

if TYPE_CHECKING:
    from collections.abc import Sequence

# Options with which the interpreter ignores PYTHONPATH, or does not import sitecustomize.
_UNSUPPORTED = frozenset("EIS")
_WITH_VALUE = frozenset("XWm")
_RUN_CODE = "import sys; exec(sys.argv.pop(1))"


class CommandError(ValueError):
    """Workers with this command cannot be forked; the text says why."""


@dataclass(frozen=True)
class Command:
    """How workers are started.

    Args:
        interpreter: Python, and its options.
        kind: what it runs: `script`, `-m` or `-c`.
        target: the script or module; the code of `-c` is the first argument.
        arguments: of this worker; commands that differ only in them are equal.
    """

    interpreter: tuple[str, ...]
    kind: str
    target: str
    arguments: tuple[str, ...] = field(default=(), compare=False)

    def of_server(self) -> list[str]:
        """Return the command of the fork server; its children then run the program.

        The arguments reserve room for those that `ps` is to show.
        """
        if self.kind == "-c":
            return [*self.interpreter, "-c", _RUN_CODE, *self.arguments]
        option = ("-m",) if self.kind == "-m" else ()
        return [*self.interpreter, *option, self.target, *self.arguments]

    def of_probe(self) -> list[str]:
        """Return a harmless command that tests whether the fork server's code is reached."""
        return [*self.interpreter, "-c", "pass"]

    def script(self) -> str:
        """Return the absolute path of the script; empty if the program is not a script."""
        return os.path.abspath(self.target) if self.kind == "script" else ""

    def path(self) -> list[str]:
        """Return the folders that the program has at the front of `sys.path`.

        A function finds its modules where the launcher's program does.
        """
        if self.kind == "script":
            return [os.path.dirname(os.path.realpath(self.target))]
        return [os.getcwd()] if self.kind == "-m" else list(sys.path)


def split_command(command: Sequence[str]) -> Command:
    """Parse a worker's command.

    Raises:
        CommandError: it is not Python, or has options that prevent a fork server.
    """
    words = list(command)
    if not words:
        raise CommandError("they are forked from the launcher itself (start method fork)")
    if not is_python(words[0]):
        raise CommandError(f"the program is {words[0]!r}, and not Python")
    place = 1
    while place < len(words):
        word = words[place]
        if not word.startswith("-") or word == "-":
            break
        if word.startswith("--"):
            place += 2 if word == "--check-hash-based-pycs" else 1
            continue
        letters = word[1:]
        for number, letter in enumerate(letters):
            if letter in _UNSUPPORTED:
                raise CommandError(f"Python's option -{letter} prevents a fork server")
            if letter in "cm":
                return _of_option(words, place, number)
            if letter in _WITH_VALUE:
                if number == len(letters) - 1:
                    place += 1  # the value is the next word
                break
        place += 1
    if place >= len(words):
        raise CommandError("Python is given no script")
    return _of_script(words, place)


def _of_script(words: list[str], place: int) -> Command:
    script = words[place]
    if script == "-":
        raise CommandError("the script comes from stdin, which only a fresh interpreter reads")
    if os.path.isdir(script) or script.endswith((".zip", ".pyz")):
        raise CommandError(f"{script!r} is a folder or an archive, and not a script")
    return Command(tuple(words[:place]), "script", script, tuple(words[place + 1 :]))


def _of_option(words: list[str], place: int, number: int) -> Command:
    """Parse `-m MODULE` or `-c CODE`, whose letter is at `number` in `words[place]`."""
    word = words[place]
    letter, joined = word[number + 1], word[number + 2 :]
    flags = [word[: number + 1]] if number else []
    rest = words[place + 1 :]
    if joined:
        rest.insert(0, joined)
    if not rest:
        raise CommandError(f"Python's option -{letter} has no value")
    interpreter = (*words[:place], *flags)
    if letter == "c":
        return Command(interpreter, "-c", "", tuple(rest))
    return Command(interpreter, "-m", rest[0], tuple(rest[1:]))
