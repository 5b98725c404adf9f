"""The store in which the workers of a round meet: torch's, in a process of the launcher.

The launcher itself listens at `MASTER_ADDR:MASTER_PORT`, without torch. A process of the workers'
interpreter, the store host, serves torch's TCPStore on that socket once it is needed. So the store
outlives all workers of the round, and a job without torch costs nothing.

Public names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.lazy import attach

if TYPE_CHECKING:
    from plaunch_worker_store.store import TorchStore as TorchStore
    from plaunch_worker_store.store import open_store as open_store

__getattr__, __dir__, __all__ = attach(__name__, {".store": "TorchStore open_store"})
