"""The backend `sqlite`: from what the user gave to a handler.

`--rdzv-endpoint` is the path of the file, the same for all launchers. All of them are on one
machine, as SQLite wants it. Options (`--rdzv-conf`): `busy_timeout`, how long an operation waits
for other writers, in seconds (5), and those that every backend over `DynamicRendezvousHandler` has.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plaunch.errors import UsageError
from plaunch_membership import DynamicRendezvousHandler

from plaunch_example_backend.store import SqliteStore

if TYPE_CHECKING:
    from plaunch.rendezvous import RendezvousHandler, RendezvousParameters


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Create the handler of this node; it opens the file once the first round is wanted.

    Raises:
        UsageError: there is no path, its folder is missing, or an option has a bad value.
    """
    if not params.endpoint:
        raise UsageError(
            f"rendezvous backend {params.backend!r} needs the path of a file that all launchers "
            "share; give it with --rdzv-endpoint"
        )
    path = os.path.abspath(params.endpoint)
    if not os.path.isdir(os.path.dirname(path)):
        raise UsageError(
            f"the folder of the rendezvous store {path!r} (--rdzv-endpoint) does not exist"
        )
    busy_timeout = params.get_as_seconds("busy_timeout", 5.0) or 5.0
    return DynamicRendezvousHandler(
        params,
        lambda: SqliteStore(path, busy_timeout),
        address=params.local_addr or "127.0.0.1",
        endpoint=path,
        outlives_job=True,
        options=("busy_timeout",),
    )
