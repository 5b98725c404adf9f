"""The hook of this plugin, which is loaded if no other plugin hosts the workers' store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.plugin import hookimpl

if TYPE_CHECKING:
    from plaunch.agent import OpenStore, StoreRound, WorkerStore
    from plaunch.plugin import PluginContext


@hookimpl
def plaunch_worker_store(context: PluginContext) -> OpenStore | None:
    """Return the store for --worker-store=agent, the default."""
    return _open if context.options.get("worker_store", "agent") == "agent" else None


def _open(store_round: StoreRound) -> WorkerStore:
    from plaunch_worker_store.store import open_store  # on the node of rank 0 only

    return open_store(store_round)
