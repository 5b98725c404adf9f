"""Counters of events, as plain numbers, which cost the agent almost nothing."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING

from plaunch_events import RESTART_PARTS, LaunchPhase, worker_state

if TYPE_CHECKING:
    from plaunch.events import Event

# Seconds, upper bounds; a rendezvous takes a tenth of a second or hours, training days.
BOUNDS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 28800.0, 86400.0)


class Durations:
    """The buckets of a histogram of durations, not cumulative."""

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds


class Counters:
    """Counts the events of one agent, in order."""

    def __init__(self) -> None:
        self.events = 0
        self.rounds = 0
        self.failed_rendezvous = 0
        self.restarts: Counter[str] = Counter(failure=0, membership=0)
        self.restart_seconds = dict.fromkeys(RESTART_PARTS, 0.0)
        self.membership: Counter[str] = Counter()
        self.signals: Counter[tuple[str, str]] = Counter()
        self.exits: Counter[tuple[str, str, str]] = Counter()  # state, exit code, signal
        self.phases = {phase.value: Durations() for phase in LaunchPhase}
        self._phase = next(iter(self.phases))
        self._began: float | None = None

    def note(self, event: Event, phase: str) -> None:
        """Count the next event; `phase` is the phase of the agent after it."""
        self.events += 1
        if self._began is None:
            self._began = event.monotonic
        if phase != self._phase:
            durations = self.phases.get(self._phase)
            if durations is not None:
                durations.add(max(event.monotonic - self._began, 0.0))
            self._phase, self._began = phase, event.monotonic
        metadata = event.metadata
        if event.name == "plaunch.rendezvous.completed":
            self.rounds += 1
        elif event.name == "plaunch.rendezvous.failed":
            self.failed_rendezvous += 1
        elif event.name == "plaunch.restart":
            self.restarts[str(metadata.get("cause"))] += 1
        elif event.name == "plaunch.restart.completed":
            for part in RESTART_PARTS:
                self.restart_seconds[part] += float(metadata.get(f"seconds_{part}") or 0.0)
        elif event.name == "plaunch.membership.changed":
            self.membership[str(metadata.get("kind"))] += 1
        elif event.name == "plaunch.signal.received":
            self.signals[str(metadata.get("signal_name")), str(metadata.get("action"))] += 1
        elif event.name == "plaunch.worker.exited":
            name = metadata.get("signal_name") or ""
            code = "" if name else str(metadata.get("exit_code"))
            self.exits[worker_state(metadata), code, str(name)] += 1
