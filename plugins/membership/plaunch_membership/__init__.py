"""How the nodes of a job agree on the participants, over any store of a backend.

A library: it is no plugin, and offers none. Backends derive their store from `RendezvousStore` and
hand connections to it to a `DynamicRendezvousHandler`.
"""

from plaunch_membership.handler import DynamicRendezvousHandler
from plaunch_membership.records import RecordError
from plaunch_membership.store import Connect, RendezvousStore
from plaunch_membership.token import read_token

__all__ = [
    "Connect",
    "DynamicRendezvousHandler",
    "RecordError",
    "RendezvousStore",
    "read_token",
]
