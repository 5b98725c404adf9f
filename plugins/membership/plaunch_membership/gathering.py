"""How long a round waits for more nodes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gathering:
    """The nodes that are present while a round is being formed.

    Args:
        present: the number of living nodes that have joined.
        awaited: the number of living members of the previous round that have not rejoined.
        rejoin_timeout: the longest time that these may need, in seconds.
        has_survivors: whether any member of the previous round is alive.
        since: when there were enough nodes, on the leader's clock; None if there are too few.
    """

    present: int
    awaited: int
    rejoin_timeout: float
    has_survivors: bool
    since: float | None


def time_left(
    gathering: Gathering, *, min_nodes: int, max_nodes: int, last_call: float, now: float
) -> float | None:
    """Return the seconds that the round must wait: 0 if it is complete, None if nodes are missing.

    A round is complete when all survivors of the previous round have rejoined; without survivors,
    when there are `max_nodes`. Otherwise it is complete `last_call` seconds after there were
    `min_nodes`, but not while survivors may still be stopping their workers: forming it without
    them would cause another round at once.
    """
    if gathering.present < min_nodes or gathering.since is None:
        return None
    if gathering.awaited == 0 and (gathering.has_survivors or gathering.present >= max_nodes):
        return 0.0
    wait = max(last_call, gathering.rejoin_timeout)
    return max(0.0, gathering.since + wait - now)
