"""Selects the host of the workers' store from the variable USE_LIBUV."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.cli import Arguments
    from plaunch.plugin import PluginManager

_VARIABLE = "USE_LIBUV"


def fill_in(
    args: Arguments, manager: PluginManager, environ: Mapping[str, str] | None = None
) -> str:
    """Let the worker of rank 0 host the store if USE_LIBUV is 0 and the option is not given.

    torch's error message asks for this variable if torch was built without libuv. A worker heeds
    it only for a store that a worker hosts: as a client of the agent's, it fails all the same.

    Returns:
        One line for the user; empty if nothing is filled in.
    """
    del manager
    environ = os.environ if environ is None else environ
    if environ.get(_VARIABLE) != "0" or args.is_given("worker_store"):
        return ""
    args.give("worker_store", "rank0", _VARIABLE)
    return f"{_VARIABLE}=0: the worker of rank 0 hosts the workers' store"
