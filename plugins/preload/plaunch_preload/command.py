"""A worker's command, taken apart: the interpreter, what it runs, and the arguments of that."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from plaunch.process import is_python

if TYPE_CHECKING:
    from collections.abc import Sequence

# Options of the interpreter with which it does not read PYTHONPATH, or imports no sitecustomize.
_CLOSED = frozenset("EIS")
_WITH_VALUE = frozenset("XWm")
_RUN_CODE = "import sys; exec(sys.argv.pop(1))"


class CommandError(ValueError):
    """Workers that are started like this cannot be forked; the text says why."""


@dataclass(frozen=True)
class Command:
    """How workers are started.

    Args:
        interpreter: Python, and its options.
        kind: what it runs: `script`, `-m` or `-c`.
        target: the script or module; the code of `-c` counts as an argument.
        arguments: of this worker; two commands are equal if they differ in these alone.
    """

    interpreter: tuple[str, ...]
    kind: str
    target: str
    arguments: tuple[str, ...] = field(default=(), compare=False)

    def of_server(self) -> list[str]:
        """What the fork server is started with, so that its children go on to run the program.

        The arguments make room for those that `ps` is to show.
        """
        if self.kind == "-c":
            return [*self.interpreter, "-c", _RUN_CODE, *self.arguments]
        option = ("-m",) if self.kind == "-m" else ()
        return [*self.interpreter, *option, self.target, *self.arguments]

    def of_probe(self) -> list[str]:
        """What shows whether the interpreter finds its way, and harms nobody if it does not."""
        return [*self.interpreter, "-c", "pass"]

    def script(self) -> str:
        """The absolute path of the script; empty if the program is none."""
        return os.path.abspath(self.target) if self.kind == "script" else ""

    def path(self) -> list[str]:
        """The folders that the program has in front of `sys.path`.

        A function finds its modules where the launcher's program does.
        """
        if self.kind == "script":
            return [os.path.dirname(os.path.realpath(self.target))]
        return [os.getcwd()] if self.kind == "-m" else list(sys.path)


def split_command(command: Sequence[str]) -> Command:
    """Take a worker's command apart.

    Raises:
        CommandError: it is not Python, or Python with options that do not allow it.
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
            if letter in _CLOSED:
                raise CommandError(f"Python's option -{letter} keeps the fork server out")
            if letter in "cm":
                return _of_option(words, place, number)
            if letter in _WITH_VALUE:
                if number == len(letters) - 1:
                    place += 1  # the value is the next word
                break
        place += 1
    if place >= len(words) or words[place] == "-":
        raise CommandError("Python is given no script")
    script = words[place]
    if os.path.isdir(script) or script.endswith((".zip", ".pyz")):
        raise CommandError(f"{script!r} is a folder or an archive, and not a script")
    return Command(tuple(words[:place]), "script", script, tuple(words[place + 1 :]))


def _of_option(words: list[str], place: int, number: int) -> Command:
    """The command of `-m MODULE` or `-c CODE`, with its letter somewhere in `words[place]`."""
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
