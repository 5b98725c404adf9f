"""The commands `--help` and `--version`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from plaunch._version import __version__

if TYPE_CHECKING:
    from typing import Any

    from plaunch.cli.invocation import Invocation
    from plaunch.cli.parser import OptionTable

_DESCRIPTION = (
    "Start workers on this node, give each its rank and the world, watch them and restart them. "
    "Options and environment are torchrun's; every option also has a variable PET_<NAME>."
)
_EPILOG = (
    "Exit code: 0 on success, a failed worker's own code, 128+n for signal n, 2 for bad usage, "
    "110 and above for the launcher's own failures (see docs/errors.md)."
)


def show_help(invocation: Invocation) -> int:
    """Print all options."""
    invocation.write(format_help(invocation.table))
    return 0


def show_version(invocation: Invocation) -> int:
    """Print plaunch's version and Python's."""
    python = ".".join(map(str, sys.version_info[:3]))
    invocation.write(f"plaunch {__version__} (Python {python}, {sys.executable})\n")
    return 0


def format_help(table: OptionTable) -> str:
    """Return the help text; argparse lays it out."""
    parser = argparse.ArgumentParser(
        prog="plaunch",
        usage="plaunch [options] script [arguments of the script]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        add_help=False,  # for an option outside of a group, argparse measures the terminal
    )
    for title, options in table.groups:
        group = parser.add_argument_group(title)
        for option in options:
            shape: dict[str, Any] = {"metavar": option.metavar}
            if option.read is None:
                shape = {"action": "store_true"}
            elif option.bare is not None:
                shape["nargs"] = argparse.OPTIONAL
            group.add_argument(*option.names, help=option.help.replace("%", "%%"), **shape)
    return parser.format_help()
