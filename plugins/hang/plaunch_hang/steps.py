"""The progress of workers, from the steps that their heartbeats report."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from plaunch.agent import Progress
from plaunch.numbers import name_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch_hang.beats import HeartbeatState

_SAMPLES = 30  # samples over which a rate is computed
_MOST = 4  # steps that are named


class StepTracker:
    """Tracks the steps of the workers of one node."""

    def __init__(self) -> None:
        self._pids: Mapping[int, int] = {}
        self._seen: dict[int, deque[tuple[float, int]]] = {}  # by rank: times and steps

    def sample(
        self, now: float, pids: Mapping[int, int], beats: Mapping[int, HeartbeatState]
    ) -> dict[int, Progress]:
        """Take the next sample; return the progress of each worker that reports steps.

        Args:
            now: monotonic seconds.
            pids: the process ids, by global rank; if they change, the rates start over.
            beats: the heartbeats, by global rank.
        """
        if pids != self._pids:
            self._pids, self._seen = dict(pids), {}
        found = {}
        for rank, beat in beats.items():
            if beat.step < 0:
                continue
            seen = self._seen.setdefault(rank, deque(maxlen=_SAMPLES))
            if seen and beat.step < seen[-1][1]:
                seen.clear()  # a new epoch, for example
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
