"""Advice on scripts that do not exist."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plaunch.plugin import did_you_mean
from plaunch.process import is_python

if TYPE_CHECKING:
    from plaunch.cli import Arguments


def advise_on_script(script: str, run_path: bool = False) -> str:
    """The end of the message about a script that does not exist.

    Args:
        script: the script as given.
        run_path: whether `--run-path` is given, which only runs scripts.
    """
    try:
        here = os.getcwd()
    except OSError:
        return ", and the current folder does not exist any more; change to another folder"
    if is_python(script):
        return "; plaunch starts python itself: leave out this word"
    first, *rest = script.split()
    if rest and os.path.exists(first):
        return f"; plaunch reads it as one name: leave out the quotes around {script!r}"
    folder = os.path.dirname(script)
    try:
        names = os.listdir(folder or ".")
    except OSError:
        names = []
    # Only misspelled names of scripts: there are other options for modules and programs.
    hint = did_you_mean(script, [os.path.join(folder, n) for n in names if n.endswith(".py")])
    others = "" if run_path else ", or -m for a module, or --no-python for a program"
    return hint or f" (current folder: {here}); give its path{others}"


def advise_on_no_script(args: Arguments) -> str:
    """A part of the message: which option probably has the script as its value; may be empty."""
    for option in args.table:
        value = getattr(args, option.dest)
        if args.is_on_command_line(option.dest) and str(value).endswith(".py"):
            return f", as {value!r} is the value of {option.names[-1]}"
    return ""
