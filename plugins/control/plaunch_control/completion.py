"""`plaunchctl --print-completion`: the completion script for a shell.

The script runs this module to list the running launches when the user completes a JOB.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

if __name__ == "__main__":
    sys.path[:1] = []  # this folder, whose modules would shadow others

from plaunch_control.folder import remove_stale
from plaunch_control.launches import find_launches


class UnavailableError(Exception):
    """The script cannot be created; the message says what to install."""


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Create the script for one shell.

    Args:
        parser: plaunchctl's commands and options.
        shell: `bash`, `zsh`, `tcsh` or `fish`.

    Raises:
        UnavailableError: shtab is not installed, or its version does not know the shell.
    """
    try:
        import shtab  # an extra
    except ImportError as error:
        raise UnavailableError(
            f"--print-completion={shell} needs the package shtab, which cannot be imported "
            f"({error}); pip install 'plaunch[completion]'"
        ) from error
    if shell not in shtab.SUPPORTED_SHELLS:
        raise UnavailableError(
            f"shtab {shtab.__version__} supports no completion for {shell!r}, only for "
            f"{', '.join(sorted(shtab.SUPPORTED_SHELLS))}; upgrade it: pip install -U shtab"
        )
    for command in _commands(parser):
        for action in command._actions:
            if action.dest == "job":
                action.complete = shtab.cmd(_list_command())  # type: ignore[attr-defined]
            elif action.dest == "signal":
                action.choices = [one.name for one in signal.Signals]
    script: str = shtab.complete(parser, shell)
    return script if script.endswith("\n") else f"{script}\n"


def _commands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    return [
        command
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for command in action.choices.values()
    ]


def _list_command() -> str:
    import shlex  # only for this command

    # By path: -m would search the user's current folder for modules. If the interpreter no longer
    # exists, the shell's error must not appear in the user's command line.
    return f"{shlex.join([sys.executable, os.path.abspath(__file__)])} 2>/dev/null"


def list_jobs() -> str:
    """The run ids of this user's launches, one per line; the pid if a run id was truncated."""
    launches, _ = find_launches(os.environ, os.geteuid())
    running = [one for one in launches if not remove_stale(one.path)]
    words = {one.run_id if one.is_whole else str(one.pid) for one in running}
    return "".join(f"{word}\n" for word in sorted(words))


if __name__ == "__main__":
    sys.stdout.write(list_jobs())
