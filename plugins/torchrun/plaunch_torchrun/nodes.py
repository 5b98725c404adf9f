"""`PET_ON=ENGINE:WHERE`: what a program launches with torchrun's API runs on several nodes."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from plaunch.cli import Invocation
from plaunch.errors import UsageError

from plaunch_torchrun.import_hook import MODULES
from plaunch_torchrun.parser import own_arguments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.cli import Arguments

VARIABLE = "PET_ON"
_ALWAYS_PASSED = ("PET_", "PLAUNCH_", "PYTHON")
# What callers set for the node that they run on. The command sets it for each node.
_OF_THIS_NODE = ("master_addr", "master_port", "standalone")


def launch_on_nodes(args: argparse.Namespace) -> None:
    """Launch what `args` describe, with an agent on each node of the engine `args.on`.

    Workers also get the variables that this program has set.

    Raises:
        SystemExit: the job failed, and its report is printed; with its exit code.
        PlaunchError: the job cannot be started.
    """
    own = own_arguments(argparse.Namespace(**_without_addresses(vars(args))))
    if own.is_given("node_rank"):
        raise UsageError(
            f"{VARIABLE}={own.on} starts the agents of all nodes, and this program requests the "
            f"launch of node {own.node_rank} (--node-rank); run it once, as for node 0"
        )
    _refuse_objects(own)
    own.pass_env += changed_variables()
    option = own.table.find("on")
    if option is not None and (
        code := own.table.call(option, option.command, Invocation(own, own.table))
    ):
        raise SystemExit(code)


def refuse_engine(what: str) -> None:
    """Refuse to launch on this node alone what the user requests on several.

    Args:
        what: the subject of the message: what runs on this node only.

    Raises:
        UsageError: the user requests an engine.
    """
    engine = os.environ.get(VARIABLE)
    if engine:
        raise UsageError(
            f"{VARIABLE}={engine} requests other nodes, and {what} only on this one; unset "
            f"{VARIABLE}, or launch a script with torch.distributed.run"
        )


def describe_unused(program: str) -> str:
    """Return the warning about a program that has not launched anything on other nodes, or ""."""
    engine = os.environ.get(VARIABLE)
    if not engine or any(name in sys.modules for name in MODULES):
        return ""
    return (
        f"{VARIABLE}={engine} had no effect: {program} has not called torchrun in this process; "
        "its own options decide whether it does, for example the number of processes"
    )


def changed_variables() -> list[str]:
    """Return the names of the variables that this program has set since it was started.

    Callers set variables for the workers, which inherit them if the launcher is on their node.
    PATH is left out: it begins with the folder of the program `torchrun`. So are variables of
    plaunch and of Python, which agents get without being named.
    """
    with open("/proc/self/environ", "rb") as file:
        pairs = [os.fsdecode(pair).partition("=") for pair in file.read().split(b"\0")]
    first = {name: value for name, _, value in pairs}
    return sorted(
        name
        for name, value in os.environ.items()
        if first.get(name) != value and name != "PATH" and not name.startswith(_ALWAYS_PASSED)
    )


def _without_addresses(values: Mapping[str, object]) -> dict[str, object]:
    """Return the values without the addresses of this node.

    The endpoint of `static`, torchrun's default, is one of them. That of another backend may be a
    server of the user's.
    """
    names = [*_OF_THIS_NODE]
    if values.get("rdzv_backend") in (None, "static"):
        names.append("rdzv_endpoint")
    return {name: value for name, value in values.items() if name not in names}


def _refuse_objects(own: Arguments) -> None:
    """Refuse values that are neither texts nor numbers: agents get texts.

    Raises:
        UsageError: there is one, which is also not in the variable of its option.
    """
    texts = {dest for dest, _ in own.option_words}
    for option in own.table:
        is_object = own.is_on_command_line(option.dest) and option.dest not in texts
        if is_object and option.variable not in os.environ:
            raise UsageError(
                f"{option.names[-1]} is {getattr(own, option.dest)!r}, and agents on other nodes "
                f"get only texts; set the variable {option.variable} instead"
            )
