"""Tests which modules allow workers to be forked."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING

from plaunch.doctor import Finding, Status

from plaunch_preload.command import Command
from plaunch_preload.fork_server import ForkServer, ForkServerError
from plaunch_preload.variables import SET_FOR_WORKERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from plaunch_preload.fork_server import Imports

_WHAT = "preload"
_TIMEOUT = 12.0  # seconds for all modules together
_ADVICE = "leave it out of --preload, with which all workers would be started afresh"


def try_modules(
    modules: Sequence[str], script: str, env: Mapping[str, str], bound: float = _TIMEOUT
) -> Iterator[Finding]:
    """Import each module in its own fork server, all at the same time.

    Args:
        modules: their names.
        script: the worker's script; empty if unknown.
        env: the variables of workers.
        bound: the time limit, in seconds.
    """
    kind = "script" if script else "-c"
    command = Command((sys.executable,), kind, script)
    until = time.monotonic() + bound
    with contextlib.ExitStack() as stack:
        servers = {}
        for module in modules:
            try:
                servers[module] = ForkServer(command, env, [module])
            except OSError as error:
                yield Finding(Status.PROBLEM, _WHAT, f"{module} was not tried: {error}")
                continue
            stack.callback(servers[module].release)
        for module, server in servers.items():
            try:
                imports = server.load(max(round(until - time.monotonic(), 1), 0.1))
            except ForkServerError as error:
                yield Finding(Status.WARNING, _WHAT, f"{module}: {error}", _ADVICE)
                continue
            yield _describe(module, imports)


def _describe(module: str, imports: Imports) -> Finding:
    found = list(imports.problems)
    if imports.readers_of_all:
        found.append(f"{imports.readers_of_all[0]} reads all variables")
    found += [
        f"{reader} reads {name}, which is another for each worker or round"
        for name, reader in sorted(imports.variables.items())
        if name in SET_FOR_WORKERS
    ]
    if found:
        # Problems of an import already start with the module's name.
        text = "; ".join(found).removeprefix(f"{module} ")
        return Finding(Status.WARNING, _WHAT, f"{module}: {text}", _ADVICE)
    seconds = imports.seconds[module]
    return Finding(
        Status.OK, _WHAT, f"{module} is imported in {seconds:.1f} s, and workers can be forked"
    )
