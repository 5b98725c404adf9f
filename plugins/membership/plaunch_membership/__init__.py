"""How the nodes of a job agree on the participants, over the store of any backend.

This is a library, not a plugin. A backend derives its store from `RendezvousStore` and passes a
function that opens connections to `DynamicRendezvousHandler`. Public names are imported on first
use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.lazy import attach

if TYPE_CHECKING:
    from plaunch_membership.bounds import MAX_NAME as MAX_NAME
    from plaunch_membership.bounds import printable as printable
    from plaunch_membership.handler import DynamicRendezvousHandler as DynamicRendezvousHandler
    from plaunch_membership.records import RecordError as RecordError
    from plaunch_membership.store import Connect as Connect
    from plaunch_membership.store import RendezvousStore as RendezvousStore
    from plaunch_membership.timing import Timing as Timing
    from plaunch_membership.token import read_token as read_token

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        ".bounds": "MAX_NAME printable",
        ".handler": "DynamicRendezvousHandler",
        ".records": "RecordError",
        ".store": "Connect RendezvousStore",
        ".timing": "Timing",
        ".token": "read_token",
    },
)
