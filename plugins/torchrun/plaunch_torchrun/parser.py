"""torchrun's parser, for programs that extend or call it, and the conversion of its result."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from plaunch.cli import installed_table, parse, parse_min_max_nnodes
from plaunch.plugin import ENGINES

from plaunch_torchrun.argparse_util import check_env, env

if TYPE_CHECKING:
    from plaunch.cli import Arguments
    from plaunch.options import Option

LOCAL_RANK_ARGUMENT = "--local-rank=${local_rank}"

# Options with another default in torchrun's namespace.
DEFAULTS: dict[str, object] = {"master_addr": "127.0.0.1", "node_rank": 0, "logs_specs": None}
_GIVEN = "command line"


def is_setting(option: Option) -> bool:
    """Whether an option is a setting of the launch, and not an action such as `--version`.

    The option of engines is both, and has a variable only here: see `plaunch_torchrun.nodes`.
    """
    return option.has_variable or option.is_repeated or option.names[-1] == ENGINES.flag


def get_args_parser() -> argparse.ArgumentParser:
    """Create the parser; callers may add their own arguments. The name is torchrun's.

    All options can be written with dashes or underscores, and have their `PET_*` variable.
    `training_script` and `training_script_args` are positional, so that the script's options follow
    the script. It also has plaunch's own options and those of plugins, except actions such as
    `--version`.
    """
    parser = argparse.ArgumentParser(
        description="Start workers on this node with their ranks and world, and watch them.",
        allow_abbrev=False,
    )
    for title, options in installed_table((), os.environ).groups:
        group = parser.add_argument_group(title)
        for option in filter(is_setting, options):
            _add(group, option)
    parser.add_argument(
        "training_script", help="the script, module or program that the workers run"
    )
    parser.add_argument(
        "training_script_args",
        nargs=argparse.REMAINDER,
        help="arguments of the script, passed unchanged",
    )
    return parser


def _add(group: argparse._ArgumentGroup, option: Option) -> None:
    names = dict.fromkeys(
        spelt
        for name in option.names
        for spelt in (name, f"--{name[2:].replace('-', '_')}" if name[:2] == "--" else name)
    )
    help_text = option.help.replace("%", "%%")
    if option.is_repeated:
        text = os.environ.get(option.variable)
        group.add_argument(
            *names, action="append", default=[] if text is None else [text], help=help_text
        )
    elif option.read is None:
        group.add_argument(*names, dest=option.dest, action=check_env, help=help_text)
    else:
        default = DEFAULTS.get(option.dest, option.default)
        group.add_argument(
            *names,
            dest=option.dest,
            action=env,
            default=[] if default == () else default,
            type=option.read,
            metavar=option.metavar,
            choices=option.choices or None,
            help=help_text,
        )


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
        elif option.is_repeated and isinstance(value, list):
            words += [f"{option.names[-1]}={each}" for each in value]
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
