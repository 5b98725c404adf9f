"""How the nodes of a job agree on the participants, over the store of any backend.

This is a library, not a plugin. A backend derives its store from `RendezvousStore` and passes a
`StoreAccess`, which opens connections, to `DynamicRendezvousHandler`. Public names are imported on
first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.lazy import attach

if TYPE_CHECKING:
    from plaunch.texts import printable as printable  # as in plaunch 0.1.0

    from plaunch_membership.handler import DynamicRendezvousHandler as DynamicRendezvousHandler
    from plaunch_membership.operations import Add as Add
    from plaunch_membership.operations import Append as Append
    from plaunch_membership.operations import CompareSet as CompareSet
    from plaunch_membership.operations import MultiGet as MultiGet
    from plaunch_membership.operations import Set as Set
    from plaunch_membership.operations import WriteHeartbeat as WriteHeartbeat
    from plaunch_membership.options import Timing as Timing
    from plaunch_membership.options import check_parameters as check_parameters
    from plaunch_membership.options import read_token as read_token
    from plaunch_membership.reconnects import ReconnectLog as ReconnectLog
    from plaunch_membership.records import MAX_NAME as MAX_NAME
    from plaunch_membership.records import RecordError as RecordError
    from plaunch_membership.store import BatchedOperation as BatchedOperation
    from plaunch_membership.store import Connect as Connect
    from plaunch_membership.store import RendezvousStore as RendezvousStore
    from plaunch_membership.store import StoreAccess as StoreAccess
    from plaunch_membership.store import StoreNotListeningError as StoreNotListeningError

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "plaunch.texts": "printable",
        ".handler": "DynamicRendezvousHandler",
        ".operations": "Add Append CompareSet MultiGet Set WriteHeartbeat",
        ".options": "Timing check_parameters read_token",
        ".reconnects": "ReconnectLog",
        ".records": "MAX_NAME RecordError",
        ".store": "BatchedOperation Connect RendezvousStore StoreAccess StoreNotListeningError",
    },
)
