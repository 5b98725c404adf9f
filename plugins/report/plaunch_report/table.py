"""The table of events of the page; they are read a second time, because not all can be kept."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plaunch_report.reading import Reading
    from plaunch_report.record import EventRecord
    from plaunch_report.story import StoryBuilder

MOST_EVENTS = 50_000  # normal starts and ends of workers, and later events, are left out first
_MOST_TEXT = 400  # characters of a value
# Keys of all events, and those with a column in the table.
_COMMON = frozenset(
    {"run_id", "host", "hostname", "role", "agent_pid", "group_rank", "ranks", "round", "attempt"}
    | {"backend", "entry_point", "group_world_size", "elapsed", "last_lines"}
)


@dataclass(frozen=True)
class Row:
    """One event in the table."""

    time: float  # seconds since the first event of the launch
    node: int
    round: int
    name: str
    details: str


@dataclass(frozen=True)
class Table:
    """The rows in order of time, and the number of events left out."""

    rows: list[Row]
    left_out: int


def create_table(reading: Reading, builder: StoryBuilder, most: int = MOST_EVENTS) -> Table:
    """Read the events of all nodes again, and keep the `most` important ones."""
    nodes = {id(agent): node for node, agent in enumerate(builder.agents)}
    kept: list[tuple[tuple[float, ...], Row]] = []  # a heap with the least important on top
    count = 0
    for agent, record in reading.records():
        node = nodes.get(id(agent))
        if node is None:
            continue
        count += 1
        now = builder.time(node, record)
        place = (-float(_is_routine(record)), -now, -float(node), -float(count))
        if len(kept) < most:
            heapq.heappush(kept, (place, _row(now, node, record)))
        elif place > kept[0][0]:
            heapq.heapreplace(kept, (place, _row(now, node, record)))
    kept.sort(key=lambda item: item[0][1:], reverse=True)
    return Table([row for _, row in kept], count - len(kept))


def _is_routine(record: EventRecord) -> bool:
    if record.name == "plaunch.worker.exited":
        return record.metadata.get("exit_code") == 0 or record.metadata.get("stopped") is True
    return record.name == "plaunch.worker.started"


def _row(now: float, node: int, record: EventRecord) -> Row:
    name = record.name.removeprefix("plaunch.")
    return Row(round(now, 3), node, record.number("round"), name, _details(record))


def _details(record: EventRecord) -> str:
    parts = []
    for key, value in record.metadata.items():
        if key in _COMMON or value is None or value == "":
            continue
        text = f"{value:.3f}" if isinstance(value, float) else str(value)
        text = text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 3] + "..."
        parts.append(f"{key}={text}")
    return " ".join(parts)
