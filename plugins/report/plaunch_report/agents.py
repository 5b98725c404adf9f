"""One launcher: what its events come to, one after the other, without being kept."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from plaunch_events import TimeAccount

from plaunch_report.facts import Life, Span

if TYPE_CHECKING:
    from plaunch_report.record import Record

# Those of which there are few, and which the story is made of; there may be one for each worker and
# round of all others, and they only count.
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


_MOST_WORKERS = 65_536  # of one node


class Agent:
    """One launcher and what it wrote; there is at least one event.

    Spans and lives have the times of its monotonic clock, until `place` says how that is read.
    """

    def __init__(self, run_id: str, host: str, pid: int) -> None:
        self.run_id = run_id
        self.host = host
        self.pid = pid
        self.count = 0  # events
        self.began = self.ended = 0.0  # the dates of the first event and of the last
        self.first = 0.0  # the monotonic time of the first
        self.least = self.most = 0.0  # the monotonic times that are least and most
        self.account = TimeAccount()
        self.spans: list[Span] = []
        self.lives: list[Life] = []
        self.kept: list[Record] = []  # in the order in which they were written
        self.offsets = array("d")  # what its date was ahead of its monotonic clock, for each event
        self._running: dict[tuple[int, int], Life] = {}
        self._added = 0.0

    def note(self, record: Record) -> None:
        """Take its next event."""
        now = record.monotonic
        if not self.count:
            self.began, self.first, self.least, self.most = record.timestamp, now, now, now
        self.count += 1
        self.ended = record.timestamp
        self.least, self.most = min(self.least, now), max(self.most, now)
        self.offsets.append(record.timestamp - now)
        self._note_phase(record)
        if record.name == "plaunch.worker.started":
            self._note_start(record)
        elif record.name == "plaunch.worker.exited":
            self._note_exit(record)
        elif record.name in _KEPT:
            self.kept.append(record)

    def _note_phase(self, record: Record) -> None:
        now, before = record.monotonic, self.account.phase.value
        self.account.note(record)
        phase, spans = self.account.phase.value, self.spans
        if not spans:
            spans.append(Span(-1, phase, now, now, record.number("round")))
            return
        spans[-1].end = max(now, spans[-1].end)
        if phase != before:
            spans.append(Span(-1, phase, spans[-1].end, spans[-1].end, record.number("round")))

    def _note_start(self, record: Record) -> None:
        life = Life(
            node=-1,
            round=record.number("round"),
            attempt=record.number("attempt", 0),
            local_rank=record.number("local_rank", most=_MOST_WORKERS),
            global_rank=record.number("global_rank"),
            pid=record.number("worker_pid"),
            begin=record.monotonic,
        )
        self._running[life.local_rank, life.pid] = life
        self.lives.append(life)

    def _note_exit(self, record: Record) -> None:
        local_rank = record.number("local_rank", most=_MOST_WORKERS)
        life = self._running.pop((local_rank, record.number("worker_pid")), None)
        if life is not None:
            life.end = record.monotonic
            life.exit_code = record.code
            life.signal = record.text("signal_name")
            life.stopped = record.metadata.get("stopped") is True

    def place(self, node: int, offset: float) -> None:
        """Say which node it is, and what is added to its monotonic times."""
        added, self._added = offset - self._added, offset
        for span in self.spans:
            span.node = node
            span.begin += added
            span.end += added
        for life in self.lives:
            life.node = node
            life.begin += added
            if life.end is not None:
                life.end += added

    def all(self, name: str) -> list[Record]:
        """Its events of one name of those that are kept, which is written without `plaunch.`."""
        return [record for record in self.kept if record.name == f"plaunch.{name}"]

    def last(self, name: str) -> Record | None:
        """The last of them, if there are any."""
        found = self.all(name)
        return found[-1] if found else None
