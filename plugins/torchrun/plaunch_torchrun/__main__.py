"""`python -m plaunch_torchrun PROGRAM ...`: run a program for torchrun with plaunch.

    python -m plaunch_torchrun accelerate launch train.py
    python -m plaunch_torchrun -m lightning_fabric.cli run train.py

The program runs in this process, after `plaunch_torchrun.install`. Its child processes find plaunch
first on PATH, under the name `torchrun`.
"""

from __future__ import annotations

import atexit
import logging
import os
import runpy
import shlex
import shutil
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from plaunch.errors import PlaunchError, UsageError

from plaunch_torchrun.import_hook import install
from plaunch_torchrun.nodes import describe_unused
from plaunch_torchrun.programs import find_program

if TYPE_CHECKING:
    from collections.abc import Callable

_USAGE = "write python -m plaunch_torchrun PROGRAM [ARGUMENTS], or -m MODULE [ARGUMENTS]"


def main() -> None:
    """Run the program of this process's command line.

    Its exceptions propagate, except those of plaunch: they become a message and the exit code of
    plaunch's command line.
    """
    from plaunch.cli import concluded, set_up_logging  # programs only

    try:
        set_up_logging()
        program = _prepare(sys.argv[1:])
        install()
        put_torchrun_on_path()
        try:
            program()
        finally:
            if text := describe_unused(sys.argv[0]):
                logging.getLogger("plaunch").warning("%s", text)
    except PlaunchError as error:
        failed = error

        def fail() -> None:
            raise failed

        sys.exit(concluded(fail))


def _prepare(argv: list[str]) -> Callable[[], Any]:
    """Set `sys.argv` for the program, and return the function that runs it.

    Raises:
        UsageError: there is no such program, or several packages of this interpreter have one.
    """
    if not argv or (argv[0] == "-m" and len(argv) == 1):
        raise UsageError(_USAGE)
    if argv[0] == "-m":
        module = argv[1]
        sys.argv = argv[1:]
        return lambda: runpy.run_module(module, run_name="__main__", alter_sys=True)
    name = argv[0]
    if name.startswith("-"):
        raise UsageError(
            f"{name!r} is not an option here; {_USAGE}, and set options of plaunch with variables, "
            "such as PET_MAX_RESTARTS=3"
        )
    if os.path.exists(name) and (os.sep in name or name.endswith(".py")):
        sys.argv = argv
        sys.path.insert(0, os.path.dirname(os.path.abspath(name)))
        return lambda: runpy.run_path(name, run_name="__main__")
    program = find_program(name)
    if program is None:
        raise UsageError(
            f"{name!r} is not a program of a package installed with {sys.executable}; {_USAGE}"
        )
    sys.argv = [program.path or name, *argv[1:]]
    if program.entry_point is None:
        return lambda: runpy.run_path(program.path, run_name="__main__")
    function = program.entry_point.load  # after `install`: it imports what it needs
    return lambda: sys.exit(function()())


def put_torchrun_on_path() -> str:
    """Put a folder with plaunch as `torchrun` on PATH, for child processes; return the folder.

    It is removed when this process ends.
    """
    folder = tempfile.mkdtemp(prefix="plaunch-torchrun-")
    own_pid = os.getpid()

    def remove() -> None:
        if os.getpid() == own_pid:  # not in a forked child
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    path = os.path.join(folder, "torchrun")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m plaunch "$@"\n')
    os.chmod(path, 0o755)  # noqa: S103 - a program in a private folder
    os.environ["PATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PATH", "")]))
    return folder


if __name__ == "__main__":
    main()
