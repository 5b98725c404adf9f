"""How long a round waits for more nodes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gathering:
    """The nodes that are there when a round is to be formed.

    Args:
        present: the living nodes that have come.
        awaited: living members of the round before that have not come back yet.
        patience: how long they may need, in seconds.
        has_survivors: whether any member of the round before is alive.
        since: when there were enough nodes, on the leader's clock; None if there are not.
    """

    present: int
    awaited: int
    patience: float
    has_survivors: bool
    since: float | None


def time_left(
    gathering: Gathering, *, min_nodes: int, max_nodes: int, last_call: float, now: float
) -> float | None:
    """How long the round must still wait, in seconds: 0 if it is complete, None if too few came.

    It is complete when all survivors of the round before are back; if there was none before, when
    there are `max_nodes`. Otherwise `last_call` seconds after there were `min_nodes`, but not
    while survivors may still stop their workers: without them there would be another round at once.
    """
    if gathering.present < min_nodes or gathering.since is None:
        return None
    if gathering.awaited == 0 and (gathering.has_survivors or gathering.present >= max_nodes):
        return 0.0
    patience = max(last_call, gathering.patience)
    return max(0.0, gathering.since + patience - now)
