"""The command of an agent: the Python of its node, and a set-up line before it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plaunch.errors import UsageError
from plaunch_network import expand_hostlist

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_MODULE = "plaunch_engines.node"
# Both texts run on the node. They must not contain newlines and exclamation marks, which csh
# changes if it is the login shell.
#
# What hangs in a set-up line would outlive the connection, which only the agent notices. So another
# process kills the group once its first process has another parent. It is no child, of which the
# agent would inherit the remains.
_WATCHED = (
    "parent=$PPID; "
    "watch=$( (read -r own _ </proc/self/stat; echo $own; exec >/dev/null; "
    "while sleep 1 && read -r _ _ _ now _ </proc/$$/stat && "
    '[ "$now" = "$parent" ]; do :; done; kill -9 0) </dev/null 2>/dev/null & ); '
    'exec bash -l -c "$0" --node-setup "$watch" "$@"'
)
# bash -l -c _SET_UP --node-setup WATCH FOLDER LINE PYTHON ...; only a login shell has the function
# `module`.
_SET_UP = (
    'watch=$1 line=$3; cd "$2" 2>/dev/null; shift 3; '
    'trap \'code=$?; kill "$watch"; '
    'echo "--node-setup=\\"$line\\" has ended with $code" >&2; exit "$code"\' EXIT; '
    'eval "$line" </dev/null || exit; '
    'trap - EXIT; kill "$watch"; '
    'command -v "$1" >/dev/null || { '
    'echo "there is no $1; name the Python of the nodes with --node-python" >&2; exit 127; }; '
    'exec "$@"'
)


def node_command(python: str, folder: str, script: str, setup: str = "") -> list[str]:
    """Return the command of an agent.

    Args:
        python: its interpreter.
        folder: the working folder of the job.
        script: as for `plaunch_engines.node`.
        setup: what a login shell runs before it; empty for nothing.
    """
    command = [python, "-m", _MODULE, folder, script]
    return ["sh", "-c", _WATCHED, _SET_UP, folder, setup, *command] if setup else command


def with_python(command: Sequence[str], python: str) -> list[str]:
    """Return the command of an agent with another interpreter."""
    place = [*command].index(_MODULE) - 2
    return [*command[:place], python, *command[place + 1 :]]


def read_pythons(texts: Iterable[str]) -> tuple[str, Mapping[str, str]]:
    """Read the values of `--node-python`: `PATH` or `HOSTS=PATH`.

    Returns the last path without hosts, or "", and paths by host.

    Raises:
        UsageError: a value is neither.
    """
    python = ""
    by_host: dict[str, str] = {}
    for text in texts:
        hosts, is_of_hosts, path = text.partition("=")
        if not is_of_hosts or os.sep in hosts:  # a path may have the character
            path = text
        if not path:
            raise UsageError(f"--node-python={text}: there is no path; write PATH or HOSTS=PATH")
        if path == text:
            python = path
        else:
            by_host |= dict.fromkeys(read_hosts(hosts, f"--node-python={text}"), path)
    return python, by_host


def read_hosts(text: str, place: str) -> list[str]:
    """Read a list of hosts, such as `node[1-16],login`.

    Args:
        text: the list.
        place: where it is, for messages.

    Raises:
        UsageError: it is malformed.
    """
    try:
        return expand_hostlist(text)
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from None


def check_setup(setup: str) -> str:
    """Return a set-up line.

    Raises:
        UsageError: it is more than one line.
    """
    if "\n" in setup:
        raise UsageError(
            "--node-setup is one line; write && between commands, or put them into a file and "
            "write --node-setup='. FILE'"
        )
    return setup


def begin_path(path: str, python: str) -> str:
    """Return a search path that begins with the folder of an interpreter.

    So workers find the programs that are installed there, such as `accelerate`.

    Args:
        path: the value of PATH; may be empty.
        python: the path of the interpreter.
    """
    folder = os.path.dirname(python)
    if not folder or path.split(os.pathsep, maxsplit=1)[0] == folder:
        return path
    return f"{folder}{os.pathsep}{path}" if path else folder
