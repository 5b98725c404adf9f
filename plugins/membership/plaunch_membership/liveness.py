"""Which nodes have gone silent, judged by the observer's own clock."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_EARLY = 0.75  # of an interval; an observation sooner after the last one says too little
_LATE = 2.0  # intervals
_LEAST_LATE = 1.0  # seconds; with a very short interval any busy machine would be late for ever
_MOST_LATE = 3  # observations in a row; whoever is always late is not paused, but slow
_MAX_ABSENCES = 3


def late_after(interval: float) -> float:
    """How long after the last observation another one is late, in seconds."""
    return max(interval * _LATE, _LEAST_LATE)


@dataclass
class _Watched:
    beat: bytes | None
    changed_at: float
    was_seen: bool = False
    misses: int = 0
    absences: int = 0
    is_lost: bool = False
    lease: float | None = None  # seconds that its absence stands for; None if it has no lease


class Observer:
    """Counts how often in a row nodes have shown no new heartbeat.

    A node is lost after `max_misses` observations in a row without a new heartbeat. One that was
    there and is gone, as when a lease has ended, makes its node lost after three observations in a
    row, or after `max_misses` if they are fewer, but never at the first one: a store that was
    paused revokes the leases of healthy nodes too, and they come back.

    A heartbeat that is known to have a lease only has to exist. Once it is gone,
    nothing has renewed it for as long as the lease lasts, so that its first absence counts for all
    the heartbeats of that time, unless an observation was late before. Its node is lost after
    `max_misses` then, but again never at the first absence.

    Only observations that are on time count. One that is late, because this process or the store
    was paused, starts everybody's count anew, and so does one in which the observer's own heartbeat
    is missing; one that is early counts only what has changed. After three late ones in a row the
    next ones count however late they are, because a store that is slow all the time would hide the
    dead for ever. Nothing here waits, and clocks of different hosts are never compared.

    Args:
        interval: how often nodes send a heartbeat, in seconds.
        max_misses: see above; at least 1.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self, interval: float, max_misses: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval = interval
        self._max_misses = max_misses
        self._clock = clock
        self._nodes: dict[str, _Watched] = {}
        self._observed_at: float | None = None
        self._counted_at: float | None = None
        self._late_in_a_row = 0

    def watch(self, node: str) -> None:
        """Begin to count for `node`, from nothing."""
        self._nodes[node] = _Watched(beat=None, changed_at=self._clock())

    def forget(self, node: str) -> None:
        """Do not count for `node` any longer; nothing happens if it is not watched."""
        self._nodes.pop(node, None)

    def observe(
        self,
        beats: Mapping[str, bytes | None],
        *,
        own: str | None = None,
        leases: Mapping[str, float] | None = None,
    ) -> list[str]:
        """Count one observation; to be called about once in each interval.

        Args:
            beats: the last heartbeat of each node, None for one that is not there. Nodes that
                are not watched yet are from now on; watched ones that are not named keep their
                counts.
            own: the observer's own node, once it has given a heartbeat. It is never lost.
            leases: for how many seconds heartbeats stay that vanish without being renewed.

        Returns:
            The nodes that are lost, sorted; the same ones again until they are forgotten or give a
            new heartbeat.
        """
        now = self._clock()
        leases = leases or {}
        is_late = self._is_late(now) or (own is not None and beats.get(own) is None)
        is_early = self._counted_at is not None and now - self._counted_at < self._interval * _EARLY
        self._observed_at = now
        if is_late or not is_early:
            self._counted_at = now
        if is_late:
            self._start_anew()
        for node, beat in beats.items():
            watched = self._nodes.get(node)
            lease = leases.get(node)
            if watched is None or (
                beat is not None and (beat != watched.beat or lease is not None)
            ):
                # Leases that end after a pause say nothing about the time before.
                lease = 0.0 if is_late and lease is not None else lease
                self._nodes[node] = _Watched(beat, now, beat is not None, lease=lease)
            elif not is_late and not is_early and node != own:
                self._miss(watched, beat, now)
        return sorted(node for node in beats if self._nodes[node].is_lost)

    def is_alive(self, node: str) -> bool:
        """Whether `node` is watched and not lost."""
        watched = self._nodes.get(node)
        return watched is not None and not watched.is_lost

    def silent_for(self, node: str) -> float:
        """Seconds since the last new heartbeat of `node`, or since it is watched; else 0.0."""
        watched = self._nodes.get(node)
        return 0.0 if watched is None else self._clock() - watched.changed_at

    def _is_late(self, now: float) -> bool:
        if self._observed_at is None or now - self._observed_at <= late_after(self._interval):
            self._late_in_a_row = 0
            return False
        self._late_in_a_row += 1
        return self._late_in_a_row <= _MOST_LATE

    def _start_anew(self) -> None:
        for watched in self._nodes.values():
            watched.misses = watched.absences = 0
            watched.is_lost = False
            if watched.lease is not None:
                watched.lease = 0.0

    def _miss(self, watched: _Watched, beat: bytes | None, now: float) -> None:
        watched.misses += 1
        if beat is None and watched.absences == 0 and watched.lease is not None:
            watched.misses = max(watched.misses, int(watched.lease / self._interval))
            watched.changed_at = min(watched.changed_at, now - watched.lease)
        is_silent = watched.misses >= self._max_misses
        if beat is not None:
            watched.is_lost |= is_silent
            return
        watched.beat = None  # so that even the old heartbeat, written again, is a new one
        watched.absences += 1
        has_vanished = watched.was_seen and watched.lease is None
        is_gone = has_vanished and watched.absences >= _MAX_ABSENCES
        watched.is_lost |= is_gone or (is_silent and watched.absences > 1)
