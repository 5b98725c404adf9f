"""A namespace of torchrun's, as plaunch's command line would have it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from plaunch.cli import installed_table, parse, parse_min_max_nnodes

if TYPE_CHECKING:
    import argparse

    from plaunch.cli import Arguments
    from plaunch.options import Option

LOCAL_RANK_ARGUMENT = "--local-rank=${local_rank}"

# Where torchrun's namespace has another value for "not given" than ours.
DEFAULTS: dict[str, object] = {"master_addr": "127.0.0.1", "node_rank": 0, "logs_specs": None}
_GIVEN = "command line"


def is_setting(option: Option) -> bool:
    """Whether an option says how to launch; others do something else."""
    return option.has_variable or option.is_repeated


def get_use_env(args: argparse.Namespace) -> bool:
    """Whether workers get their local rank by variable only, and no `--local-rank` argument."""
    return bool(getattr(args, "use_env", True))


def own_arguments(args: argparse.Namespace) -> Arguments:
    """The arguments in `args`, which may come from anywhere, as `plaunch.cli.parse` gives them.

    What is missing gets its default, or what the settings file says, and so does what has
    torchrun's default. Texts are read; what is no text stays as it is.

    Args:
        args: what `get_args_parser` makes, or any object with some of its attributes.

    Raises:
        UsageError: a text is malformed.
    """
    words: list[str] = []
    objects: dict[str, Any] = {}
    table = installed_table(getattr(args, "plugins", None) or (), os.environ)
    for option in filter(is_setting, table):
        value = getattr(args, option.dest, None)
        if value in (None, []) or str(value) in _defaults(option):
            continue
        if option.read is None:
            words += [option.names[-1]] if value else []
        elif isinstance(value, (str, int, float)):
            words.append(f"{option.names[-1]}={value}")
        else:
            objects[option.dest] = value
    script = getattr(args, "training_script", None)
    if script is not None:
        rest = getattr(args, "training_script_args", None) or []
        local_rank = [] if get_use_env(args) else [LOCAL_RANK_ARGUMENT]
        words += ["--", *map(str, [script, *local_rank, *rest])]
    own = parse(words, {}, table)  # the caller's parser has looked at the variables
    for dest, value in objects.items():
        own.give(dest, value, _GIVEN)
    return own


def take_defaults(own: Arguments) -> None:
    """Take torchrun's defaults, which count for `static`, unless they are given."""
    if own.rdzv_backend != "static":
        return
    several = parse_min_max_nnodes(own.nnodes)[1] > 1
    for dest in ("master_addr", "node_rank") if several else ("node_rank",):
        if getattr(own, dest) is None:
            own.give(dest, DEFAULTS[dest], _GIVEN)


def _defaults(option: Option) -> tuple[str, ...]:
    return str(option.default), str(DEFAULTS.get(option.dest, option.default))
