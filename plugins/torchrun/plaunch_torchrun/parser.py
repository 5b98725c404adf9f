"""torchrun's parser, for programs that extend or call it: an `argparse.ArgumentParser`."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from plaunch.cli import installed_table

from plaunch_torchrun.argparse_util import check_env, env
from plaunch_torchrun.arguments import DEFAULTS, is_setting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plaunch.options import Option


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


def parse_args(args: Sequence[str] | None) -> argparse.Namespace:
    """Parse a command line without the program's name; the name is torchrun's.

    Raises:
        SystemExit: an option is unknown or its value is malformed (code 2), or after `--help`.
    """
    return get_args_parser().parse_args(args)


def _add(group: argparse._ArgumentGroup, option: Option) -> None:
    names = dict.fromkeys(
        spelt
        for name in option.names
        for spelt in (name, f"--{name[2:].replace('-', '_')}" if name[:2] == "--" else name)
    )
    help_text = option.help.replace("%", "%%")
    if option.is_repeated:
        group.add_argument(*names, action="append", default=[], help=help_text)
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
