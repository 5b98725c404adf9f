"""One event as read from a file, and one launcher, folded from its events."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch_events import LauncherHistory

from plaunch_report.facts import PhaseSpan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch_events import TimeAccount

# The events that the summary needs. Of the others there may be one for each worker and round.
_KEPT = frozenset(
    f"plaunch.{name}"
    for name in (
        "launcher.started",
        "launcher.finished",
        "rendezvous.completed",
        "restart",
        "restart.completed",
        "membership.changed",
        "signal.received",
        "request.received",
        "stop.step",
        "failure",
    )
)
Plain = str | int | float | bool | None

MAX_NUMBER = 10**12  # larger numbers are invalid: plaunch writes none


class Agent:
    """One launcher and its events, of which there is at least one.

    Args:
        run_id: the id of the job.
        host: the host of the launcher.
        pid: its process id.
    """

    def __init__(self, run_id: str, host: str, pid: int) -> None:
        self.run_id = run_id
        self.host = host
        self.pid = pid
        self.count = 0  # events
        self.began = self.ended = 0.0  # the dates of the first event and of the last
        self.first = 0.0  # the monotonic time of the first
        self.earliest = self.latest = 0.0  # the smallest and the largest monotonic time
        self.history: LauncherHistory[EventRecord] = LauncherHistory(max_runs=None)
        self.spans: list[PhaseSpan] = []  # in monotonic times of this agent; of no node yet
        self.kept: list[EventRecord] = []  # in the order in which they were written
        self.offsets = array("d")  # date minus monotonic time, for each event

    @property
    def account(self) -> TimeAccount:
        """Where its time went."""
        return self.history.account

    def note(self, record: EventRecord) -> None:
        """Add its next event."""
        now = record.monotonic
        if not self.count:
            self.began = record.timestamp
            self.first = self.earliest = self.latest = now
        self.count += 1
        self.ended = record.timestamp
        self.earliest, self.latest = min(self.earliest, now), max(self.latest, now)
        self.offsets.append(record.timestamp - now)
        before = self.account.phase
        self.history.note(record)
        self._note_phase(record, has_changed=self.account.phase is not before)
        if record.name in _KEPT:
            self.kept.append(record)

    def _note_phase(self, record: EventRecord, *, has_changed: bool) -> None:
        now, spans = record.monotonic, self.spans
        if spans:
            now = spans[-1].end = max(now, spans[-1].end)
        if has_changed or not spans:
            spans.append(PhaseSpan(-1, self.account.phase.value, now, now, record.number("round")))

    def all(self, name: str) -> list[EventRecord]:
        """Its kept events of a name, which is given without `plaunch.`."""
        return [record for record in self.kept if record.name == f"plaunch.{name}"]

    def last(self, name: str) -> EventRecord | None:
        """The last of its kept events of a name, if any."""
        found = self.all(name)
        return found[-1] if found else None


@dataclass(frozen=True)
class EventRecord:
    """One event, as read; see `plaunch.events.Event`. Its numbers are at most `MAX_NUMBER`."""

    name: str
    timestamp: float
    monotonic: float
    metadata: Mapping[str, Plain]

    def text(self, key: str) -> str:
        """The value of `key` as text; empty if there is none."""
        value = self.metadata.get(key)
        return "" if value is None else str(value)

    def number(self, key: str, default: int = -1) -> int:
        """The whole number under `key`; `default` if there is none."""
        value = self.metadata.get(key)
        return value if type(value) is int else default

    def seconds(self, key: str) -> float:
        """The number of seconds under `key`; 0 if there is none."""
        value = self.metadata.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return 0.0
        return float(value)

    @property
    def code(self) -> int | None:
        """The exit code, if there is one."""
        value = self.metadata.get("exit_code")
        return value if type(value) is int else None
