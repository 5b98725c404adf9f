"""Detects nodes that have stopped sending heartbeats, by the observer's own clock.

That clock nearly stops while the observer itself is suspended.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_EARLY = 0.75  # of an interval; an observation sooner after the last one is early
_LATE = 2.0  # intervals
_MIN_LATE = 1.0  # seconds; with a very short interval a busy machine would always be late
_MAX_LATE = 3  # observations in a row; an observer that is always late is slow, not suspended
_MAX_ABSENCES = 3


def late_after(interval: float) -> float:
    """Seconds after the last observation from which the next one is late."""
    return max(interval * _LATE, _MIN_LATE)


@dataclass
class _ObservedNode:
    beat: bytes | None
    changed_at: float
    was_seen: bool = False
    misses: int = 0
    absences: int = 0
    is_lost: bool = False
    lease: float | None = None  # seconds without renewal that its absence proves, if known


class LivenessObserver:
    """Counts how many consecutive observations have shown no new heartbeat of a node.

    A node is lost after `max_misses` observations in a row without a new heartbeat. If its
    heartbeat has disappeared, as after the end of a lease, it is lost after three observations in a
    row, or after `max_misses` if that is less, but never at the first one: a store that was
    suspended revokes the leases of healthy nodes too, and they come back.

    A heartbeat with a known lease only has to exist. Once it has disappeared, nothing has renewed
    it for the duration of the lease. Its first absence therefore counts for all heartbeats of that
    time, unless an earlier observation was late. The node is then lost after `max_misses`, but
    again never at the first absence.

    Only observations in time count. A late observation, because this process or the store was
    suspended, restarts all counts; so does one in which the observer's own heartbeat is missing. An
    early one only registers changes. After three late observations in a row, further ones count
    however late they are, because a permanently slow store would otherwise hide dead nodes. Nothing
    here waits, and clocks of different hosts are never compared.

    A store may also delete the heartbeats of processes that are gone, and of no others. Then a
    missing heartbeat is a loss at once, because a node sends one before it is observed. After a
    late observation it is one only an interval later: if the store was suspended, all nodes connect
    again, and none of them is first.

    Args:
        interval: the time between two heartbeats, in seconds.
        max_misses: see above; at least 1.
        clock: a monotonic clock, in seconds.
        absence_is_loss: whether the store deletes heartbeats only of processes that are gone.
    """

    def __init__(
        self,
        interval: float,
        max_misses: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        absence_is_loss: bool = False,
    ) -> None:
        self._absence_is_loss = absence_is_loss
        self._interval = interval
        self._max_misses = max_misses
        self._clock = clock
        self._nodes: dict[str, _ObservedNode] = {}
        self._observed_at: float | None = None
        self._counted_at: float | None = None
        self._late_in_a_row = 0
        self._late_at = -math.inf  # the last late observation

    def observe(
        self,
        beats: Mapping[str, bytes | None],
        *,
        own: str | None = None,
        leases: Mapping[str, float] | None = None,
    ) -> list[str]:
        """Process one observation; called about once per interval.

        Args:
            beats: the last heartbeat of each node, None if it has none. Unknown nodes are watched
                from now on; watched nodes that are not named keep their counts.
            own: the observer's own node, once it has sent a heartbeat. It is never lost.
            leases: the duration of the leases of heartbeats that have one, in seconds.

        Returns:
            The lost nodes, sorted. A node is returned each time until it is forgotten or sends a
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
            self._restart_counts()
            self._late_at = now
        has_connected = now - self._late_at >= self._interval
        for node, beat in beats.items():
            observed = self._nodes.get(node)
            lease = leases.get(node)
            if self._absence_is_loss and beat is None and node != own:
                self._nodes[node] = _ObservedNode(None, now, is_lost=has_connected)
            elif observed is None or (
                beat is not None and (beat != observed.beat or lease is not None)
            ):
                # A lease that expires after a late observation proves nothing about the time
                # before.
                lease = 0.0 if is_late and lease is not None else lease
                self._nodes[node] = _ObservedNode(beat, now, beat is not None, lease=lease)
            elif not is_late and not is_early and node != own:
                self._miss(observed, beat, now)
        return sorted(node for node in beats if self._nodes[node].is_lost)

    def describe_loss(self, node: str) -> str:
        """Describe how a lost node was noticed."""
        observed = self._nodes[node]
        if self._absence_is_loss and observed.beat is None:
            return "its connection to the store has ended"
        return f"no heartbeat for {self._clock() - observed.changed_at:.1f} s"

    def _is_late(self, now: float) -> bool:
        if self._observed_at is None or now - self._observed_at <= late_after(self._interval):
            self._late_in_a_row = 0
            return False
        self._late_in_a_row += 1
        return self._late_in_a_row <= _MAX_LATE

    def _restart_counts(self) -> None:
        for observed in self._nodes.values():
            observed.misses = observed.absences = 0
            observed.is_lost = False
            if observed.lease is not None:
                observed.lease = 0.0

    def _miss(self, observed: _ObservedNode, beat: bytes | None, now: float) -> None:
        observed.misses += 1
        if beat is None and observed.absences == 0 and observed.lease is not None:
            observed.misses = max(observed.misses, int(observed.lease / self._interval))
            observed.changed_at = min(observed.changed_at, now - observed.lease)
        is_silent = observed.misses >= self._max_misses
        if beat is not None:
            observed.is_lost |= is_silent
            return
        observed.beat = None  # even the old heartbeat counts as new when it reappears
        observed.absences += 1
        has_disappeared = observed.was_seen and observed.lease is None
        is_gone = has_disappeared and observed.absences >= _MAX_ABSENCES
        observed.is_lost |= is_gone or (is_silent and observed.absences > 1)


class AwakeClock:
    """A clock that nearly stops while the process is suspended.

    A stopped process, a frozen container or a migrated machine shows as a long time between two
    readings. No more than `most` seconds of it count, so a running process must read the clock more
    often than that; the agent's loop and the heartbeats do. Thread-safe.

    Args:
        most: the longest time between two readings that counts, in seconds.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._read_at = clock()
        self._now = self._read_at

    def __call__(self) -> float:
        """Seconds since an arbitrary start; never decreases."""
        with self._lock:
            now = self._clock()
            self._now += min(now - self._read_at, self._most)
            self._read_at = now
            return self._now
