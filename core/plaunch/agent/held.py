"""Workers that something holds, such as a debugger: they have not ended, and cannot run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.agent.requests import Held
from plaunch.process.kernel.holds import describe_hold

if TYPE_CHECKING:
    from plaunch.agent.requests import Snapshot


def find_held(snapshot: Snapshot) -> dict[int, Held]:
    """The workers of a snapshot that something holds now, by global rank."""
    found = {}
    for rank, pid in snapshot.pids.items():
        how = describe_hold(pid)
        noted = snapshot.held.get(rank)
        if how:
            found[rank] = Held(how, None if noted is None else noted.since)
    return found
