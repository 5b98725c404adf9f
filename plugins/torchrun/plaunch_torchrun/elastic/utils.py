"""Utilities for programs: ports, variables, loggers, processes, and barriers over a store."""

from __future__ import annotations

import logging
import os
import socket
import sys

from plaunch.agent import macros as macros
from plaunch.errors import PlaunchError, UsageError
from plaunch.process import read_process

from plaunch_torchrun.stores import barrier as barrier
from plaunch_torchrun.stores import get_all as get_all
from plaunch_torchrun.stores import store_timeout as store_timeout
from plaunch_torchrun.stores import synchronize as synchronize

_LOG_LEVEL = "WARNING"


class LoopBackError(PlaunchError, OSError, RuntimeError):
    """No port can be reserved on any address; torchrun raises `RuntimeError`."""


def get_env_variable_or_raise(env_name: str) -> str:
    """Return the value of a required variable.

    Raises:
        UsageError: it is not set.
    """
    value = os.environ.get(env_name)
    if value is None:
        raise UsageError(f"the variable {env_name} is expected, but is not set")
    return value


def get_socket_with_port() -> socket.socket:
    """Bind a socket to a port that is free on all addresses of this host; the caller closes it.

    It does not listen, so no client can connect. This is torchrun's behaviour from torch 2.15 on;
    earlier versions listened on loopback, so the port could be taken on another address.

    Raises:
        LoopBackError: no port can be reserved.
    """
    last: OSError | None = None
    # An IPv6 socket covers both families, like that of a TCPStore, unless the host has no IPv6.
    for family, any_address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # noqa: S104
        try:
            reserved = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            last = error
            continue
        try:
            if family == socket.AF_INET6:
                reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            reserved.bind((any_address, 0))
            return reserved
        except OSError as error:
            reserved.close()
            last = error
    raise LoopBackError(f"no port can be reserved on this host: {last}") from last


def get_free_port() -> int:
    """Find a port that is free on all addresses now; another program may take it meanwhile."""
    with get_socket_with_port() as reserved:
        port: int = reserved.getsockname()[1]
    return port


def get_log_level() -> str:
    """Return the level of `get_logger` without the variable `LOGLEVEL`."""
    return _LOG_LEVEL


def get_logger(name: str | None = None) -> logging.Logger:
    """Return the logger `name`, by default the calling module's, with the level in `LOGLEVEL`."""
    if name is None:
        name = str(sys._getframe(1).f_globals.get("__name__", "plaunch"))
    logger = logging.getLogger(name)
    logger.setLevel(os.environ.get("LOGLEVEL", get_log_level()))
    return logger


def read_proc_state(pid: int) -> str | None:
    """Read the kernel's letter for the state of a process, such as `S` or `D`; None if unknown."""
    process = read_process(pid)
    return None if process is None else process.state


def is_uninterruptible_state(state: str | None) -> bool:
    """Whether a state of `read_proc_state` is uninterruptible sleep, which no signal ends."""
    return state is not None and state.startswith("D")
