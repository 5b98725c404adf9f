"""The options of the backend, and its endpoint."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from plaunch.durations import Duration
from plaunch.errors import UsageError
from plaunch.process import why_not_writable
from plaunch_network import no_port_error, parse_rendezvous_endpoint

from plaunch_rendezvous_c10d.hosting import is_this_machine

if TYPE_CHECKING:
    from plaunch.rendezvous import RendezvousParameters

DEFAULT_PORT = 29400
OPTIONS = ("is_host", "read_timeout", "store", "store_type")
_INTERVAL = 5.0  # seconds between two heartbeats with the store of plaunch
_BEATS_PER_SECOND = 2000  # of all nodes together; they take a fifth of a core of its server
_STORES = ("job", "torch")
_STORE_TYPES = ("file", "tcp")


class C10dOptions(NamedTuple):
    """The backend's own options.

    Args:
        store: `job` for the store of plaunch, or `torch`.
        store_type: `tcp` or `file`.
        read_timeout: seconds until an unresponsive store is given up.
        is_host: whether this node hosts the store; None to find out.
    """

    store: str
    store_type: str
    read_timeout: float
    is_host: bool | None


def read_options(params: RendezvousParameters) -> C10dOptions:
    """Read the backend's own options.

    Raises:
        UsageError: an option is invalid.
    """
    store_type = _choice(params, "store_type", "tcp", _STORE_TYPES)
    store = _choice(params, "store", "torch" if store_type == "file" else "job", _STORES)
    if store == "job" and store_type == "file":
        raise UsageError(
            f"rendezvous backend {params.backend!r} keeps its store in a file with torch only; "
            "remove store=job, or store_type=file (--rdzv-conf)"
        )
    # torch passes it to poll as milliseconds in 31 bits.
    read_timeout = params.get_as_seconds("read_timeout", 60.0, Duration(most=1e6)) or 60.0
    is_host = params.get_as_bool("is_host")
    return C10dOptions(store, store_type, read_timeout, is_host)


def job_store_interval(max_nodes: int) -> float:
    """Return the default of `keep_alive_interval` with the store of plaunch, in seconds.

    Its server notices at once that an agent is gone. Heartbeats only show that one is frozen, so
    they may be rare if there are many.

    Args:
        max_nodes: the largest number of nodes of the job, which all nodes know and which stays.
    """
    return max(_INTERVAL, max_nodes / _BEATS_PER_SECOND)


def _choice(
    params: RendezvousParameters, option: str, default: str, choices: tuple[str, ...]
) -> str:
    value = str(params.get(option, default)).lower()
    if value not in choices:
        raise UsageError(
            f"option {option!r} of rendezvous backend {params.backend!r} is {value!r}; "
            f"choose from {', '.join(choices)}"
        )
    return value


def find_host(params: RendezvousParameters, is_host: bool | None) -> tuple[str, int, bool]:
    """Return host and port of the store, and whether this machine is the host.

    A name server that does not answer takes some seconds.

    Raises:
        UsageError: the endpoint is malformed, or has no port and is elsewhere.
    """
    host, port = parse_rendezvous_endpoint(params.endpoint, DEFAULT_PORT)
    if params.max_nodes == 1 and not params.endpoint:
        port = 0  # no other node connects to it, so any free port will do
    here = is_this_machine(host, port) if is_host is None else is_host
    if not here and port == 0:
        raise no_port_error(params.endpoint, "give the port that the host of the store has logged")
    return host, port, here


def file_path(path: str) -> str:
    """Return the absolute path of the file that holds the store; an empty one stays empty.

    Raises:
        UsageError: it cannot be a file.
    """
    if not path:
        return ""
    try:
        path = os.path.abspath(path)
    except FileNotFoundError:
        raise UsageError(
            f"the rendezvous store {path!r} (--rdzv-endpoint) is relative to the current "
            "folder, which does not exist any more; give a path that begins with /"
        ) from None
    folder = os.path.dirname(path)
    reason = why_not_writable(folder)
    if os.path.isdir(path) or reason:
        raise UsageError(
            f"the rendezvous store {path!r} (--rdzv-endpoint) cannot be a file: "
            + ("it is a folder" if os.path.isdir(path) else f"{folder!r} {reason}")
        )
    return path
