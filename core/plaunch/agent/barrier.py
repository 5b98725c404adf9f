"""Waiting for the other nodes of a round whose rendezvous does not know the whole job."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plaunch.rendezvous.api import Store

_KEY = "torchelastic/agent/terminal_state"


def wait_for_peers(store: Store, nodes: int, timeout: float) -> None:
    """Return when all `nodes` of the round have called this, or raise after `timeout` seconds.

    Blocks, so it runs in a background thread. Keys and order are torchrun's, so that agents of
    both kinds could meet. It goes on when the time is over, and so does our agent.
    """
    from datetime import timedelta  # noqa: PLC0415 - several nodes with a shared store only

    from plaunch.durations import bounded  # noqa: PLC0415 - as above

    if store.add(f"{_KEY}/num_members", 1) == nodes:
        store.set(f"{_KEY}/last_member", "<val_ignored>")
    store.wait([f"{_KEY}/last_member"], timedelta(seconds=bounded(timeout)))
