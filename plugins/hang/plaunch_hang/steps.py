"""How far the workers of a node are, from the steps that they say with their heartbeats."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from plaunch.agent import Progress
from plaunch.numbers import name_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch_hang.beats import Beat

_LOOKS = 30  # over which a rate is taken
_MOST = 4  # places that are named


class Steps:
    """The steps of the workers of one node, from look to look."""

    def __init__(self) -> None:
        self._pids: Mapping[int, int] = {}
        self._seen: dict[int, deque[tuple[float, int]]] = {}  # by rank: when, and the step

    def look(
        self, now: float, pids: Mapping[int, int], beats: Mapping[int, Beat]
    ) -> dict[int, Progress]:
        """Take the next look: how far each worker is that says it.

        Args:
            now: seconds that never go back.
            pids: the processes, by global rank; others are other workers.
            beats: what they have said.
        """
        if pids != self._pids:
            self._pids, self._seen = dict(pids), {}
        found = {}
        for rank, beat in beats.items():
            if beat.step < 0:
                continue
            seen = self._seen.setdefault(rank, deque(maxlen=_LOOKS))
            if seen and beat.step < seen[-1][1]:
                seen.clear()  # another epoch, say
            seen.append((now, beat.step))
            passed, steps = now - seen[0][0], beat.step - seen[0][1]
            rate = steps / passed if passed > 0 else 0.0
            found[rank] = Progress(beat.step, beat.total if beat.total >= 0 else None, rate)
        return found


def format_steps(progress: Mapping[int, Progress]) -> str:
    """`last step: 3 of 20 (rank 2), 4 of 20 (ranks 0-1,3)`, the least first; empty without any."""
    ranks: dict[tuple[int, str], list[int]] = {}
    for rank, one in progress.items():
        of = "" if one.total is None else f" of {one.total}"
        ranks.setdefault((one.step, of), []).append(rank)
    places = [
        f"{step}{of} ({name_ranks(of_place)})" for (step, of), of_place in sorted(ranks.items())
    ]
    if len(places) > _MOST:
        places = [*places[: _MOST - 1], "...", places[-1]]
    return f"last step: {', '.join(places)}" if places else ""
