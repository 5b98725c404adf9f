"""Advice on command lines that are probably a mistake: warnings, and ends of error messages."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from plaunch.numbers import name_ranks
from plaunch.plugin import closest, did_you_mean
from plaunch.process import is_python

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from plaunch.cli import Arguments
    from plaunch.rendezvous import BackendTraits

logger = logging.getLogger("plaunch")

_PREFIX = "PET_"  # of the variables of options, as in torchrun
_ENGINE = "PET_ON"  # of programs for torchrun; this command line has an option only
_CALLERS = ("accelerate", "fabric", "torchx")  # programs that call torchrun


def advise_on_options(
    args: Arguments, traits: BackendTraits, missing_ranks: Collection[int] = ()
) -> None:
    """Warn of options that are probably a mistake.

    Args:
        args: the parsed command line.
        traits: the traits of the rendezvous backend.
        missing_ranks: the local ranks of `--local-ranks-filter` that this node does not have.
    """
    for text in _misplaced(args):
        logger.warning("%s", text)
    for text in _without_effect(args, traits):
        logger.warning("%s", args.name_sources(text))
    if missing_ranks:
        logger.warning(
            "%s",
            args.name_sources(
                f"--local-ranks-filter names {name_ranks(missing_ranks, 'local rank')}, which this "
                f"node does not have (--nproc-per-node={args.nproc_per_node})"
            ),
        )


def _misplaced(args: Arguments) -> Iterator[str]:
    """Warnings of options that the script gets, and of misspelled variables."""
    if misplaced := _after_the_script(args):
        is_one = len(misplaced) == 1
        yield (
            f"{', '.join(misplaced)} {'is' if is_one else 'are'} after the script "
            f"{args.training_script!r} and "
            f"{'is its argument' if is_one else 'are its arguments'}; options for plaunch go "
            "before the script; if these are for the script, write -- before the script"
        )
    if not args.unknown_variables:
        return
    known = {option.dest: option.variable for option in args.table if option.variable}
    for name in args.unknown_variables:
        if name == _ENGINE:
            yield (
                f"variable {name} has an effect only under python -m plaunch_torchrun; write the "
                "option --on"
            )
            continue
        close = closest(name.removeprefix(_PREFIX), known)
        # Other variables with this prefix may be meant for other programs.
        if close is not None:
            yield f"variable {name} is not known and has no effect; did you mean {known[close]}?"


def _after_the_script(args: Arguments) -> list[str]:
    """The arguments of the script that were probably meant for plaunch."""
    if args.is_divided:
        return []
    known = {
        name: option.dest
        for option in args.table
        if not option.is_shared
        for name in option.names
        if name.startswith("--")
    }
    found = []
    for word in args.training_script_args:
        if word == "--":
            break
        dest = known.get(word.partition("=")[0].replace("_", "-"))
        # An option that is given before the script as well is probably meant for both.
        if dest is not None and not args.is_on_command_line(dest):
            found.append(word)
    return found


def _without_effect(args: Arguments, traits: BackendTraits) -> Iterator[str]:
    """Warnings of options that have no effect together."""

    def given(*options: str) -> str:
        """The options of these that are given, as text."""
        return ", ".join(o for o in options if args.is_given(o.lstrip("-").replace("-", "_")))

    if not traits.has_given_ranks:
        # Kubernetes operators give all launchers an address, which the endpoint may use.
        is_used = args.master_addr and args.master_addr in args.rdzv_endpoint
        if not is_used and (ignored := given("--master-addr", "--master-port")):
            yield (
                f"rendezvous backend {args.rdzv_backend!r} does not use {ignored}; only "
                "'static' does"
            )
    if args.no_python and is_caller(args.training_script):
        yield (
            f"each worker runs {args.training_script!r}, which starts a job of its own; instead of "
            f"plaunch --no-python, write python -m plaunch_torchrun {args.training_script}"
        )
    if args.run_path and args.no_python:
        yield "--no-python has no effect with --run-path, which runs the script with python"
    if not args.run_path and (ignored := given("--start-method")):
        yield f"{ignored} has no effect without --run-path: scripts are started as programs"
    filters = given("--duplicate-stdout-filters", "--duplicate-stderr-filters")
    if filters and args.tee in ("", "0"):
        yield f"{filters} has no effect without --tee"


def is_caller(program: str | None) -> bool:
    """Whether a program starts workers itself, by calling torchrun."""
    return program is not None and os.path.basename(program) in _CALLERS


def advise_on_script(args: Arguments) -> str:
    """The end of the message about a script that is missing, or does not exist; may be empty."""
    script: str | None = args.training_script
    if script is None:
        for option in args.table:
            value = getattr(args, option.dest)
            if args.is_on_command_line(option.dest) and str(value).endswith(".py"):
                return f", as {value!r} is the value of {option.names[-1]}"
        return ""
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
    if is_caller(script):
        hint = f"; for this program write python -m plaunch_torchrun {script}"
    others = "" if args.run_path else ", or -m for a module, or --no-python for a program"
    return hint or f" (current folder: {here}); give its path{others}"
