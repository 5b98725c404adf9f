"""The backend `sqlite`: creates a handler from the user's options.

`--rdzv-endpoint` is the path of the file, the same for all launchers. SQLite requires that all of
them are on one machine. Options (`--rdzv-conf`): `busy_timeout`, the seconds that an operation
waits for other writers (5), and the options of all backends over `DynamicRendezvousHandler`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plaunch.errors import UsageError
from plaunch_membership import DynamicRendezvousHandler, StoreAccess

from plaunch_example_backend.store import SqliteStore

if TYPE_CHECKING:
    from plaunch.rendezvous import RendezvousHandler, RendezvousParameters


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Create this node's handler, which opens the file when it joins the first round.

    Raises:
        UsageError: the path or its folder is missing, or an option has a bad value.
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
    store = StoreAccess(
        lambda: SqliteStore(path, busy_timeout),
        address=params.local_addr or "127.0.0.1",
        endpoint=path,
        outlives_job=True,
    )
    return DynamicRendezvousHandler(params, store, options=("busy_timeout",))
