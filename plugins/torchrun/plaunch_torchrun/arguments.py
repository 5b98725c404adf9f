"""Converting a namespace of torchrun's parser to plaunch's arguments."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from plaunch.cli import installed_table, parse, parse_min_max_nnodes

if TYPE_CHECKING:
    import argparse

    from plaunch.cli import Arguments
    from plaunch.options import Option

LOCAL_RANK_ARGUMENT = "--local-rank=${local_rank}"

# Options with another default in torchrun's namespace.
DEFAULTS: dict[str, object] = {"master_addr": "127.0.0.1", "node_rank": 0, "logs_specs": None}
_GIVEN = "command line"


def is_setting(option: Option) -> bool:
    """Whether an option is a setting of the launch, and not an action such as `--version`."""
    return option.has_variable or option.is_repeated


def get_use_env(args: argparse.Namespace) -> bool:
    """Whether workers get their local rank by variable only, and no `--local-rank` argument."""
    return bool(getattr(args, "use_env", True))


def own_arguments(args: argparse.Namespace) -> Arguments:
    """Convert `args` to the arguments that `plaunch.cli.parse` returns.

    Missing attributes, and those with torchrun's default, get the value of the settings file or
    plaunch's default. Texts are parsed; other objects are kept.

    Args:
        args: the result of `get_args_parser`, or any object with some of its attributes.

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
    own = parse(words, {}, table)  # the caller's parser has already read the variables
    for dest, value in objects.items():
        own.give(dest, value, _GIVEN)
    return own


def take_defaults(own: Arguments) -> None:
    """Set torchrun's defaults for the backend `static`, unless the options are given."""
    if own.rdzv_backend != "static":
        return
    several = parse_min_max_nnodes(own.nnodes)[1] > 1
    for dest in ("master_addr", "node_rank") if several else ("node_rank",):
        if getattr(own, dest) is None:
            own.give(dest, DEFAULTS[dest], _GIVEN)


def _defaults(option: Option) -> tuple[str, ...]:
    return str(option.default), str(DEFAULTS.get(option.dest, option.default))
