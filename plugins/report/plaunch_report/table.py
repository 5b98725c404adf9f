"""The table of events: those that are on the page, read again because not all can be kept."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plaunch_report.reading import Reading
    from plaunch_report.record import Record
    from plaunch_report.story import Storyteller

MOST_EVENTS = 50_000  # those of workers that started and ended well, and the later ones, give way
_MOST_TEXT = 400  # characters of a value
# What each event has, and what the table has columns for.
_COMMON = frozenset(
    {"run_id", "host", "hostname", "role", "agent_pid", "group_rank", "ranks", "round", "attempt"}
    | {"backend", "entry_point", "group_world_size", "elapsed", "last_lines"}
)


@dataclass(frozen=True)
class Row:
    """One event as the table has it."""

    time: float  # seconds since the first event of all
    node: int
    round: int
    name: str
    details: str


@dataclass(frozen=True)
class Table:
    """The rows in the order of time, and how many there are not."""

    rows: list[Row]
    left_out: int


def create_table(reading: Reading, teller: Storyteller, most: int = MOST_EVENTS) -> Table:
    """Read the events of all nodes again, and keep the `most` telling ones of them."""
    nodes = {id(agent): node for node, agent in enumerate(teller.agents)}
    kept: list[tuple[tuple[float, ...], Row]] = []  # a heap, what gives way first on top
    count = 0
    for agent, record in reading.records():
        node = nodes.get(id(agent))
        if node is None:
            continue
        count += 1
        now = teller.time(node, record)
        place = (-float(_is_routine(record)), -now, -float(node), -float(count))
        if len(kept) < most:
            heapq.heappush(kept, (place, _row(now, node, record)))
        elif place > kept[0][0]:
            heapq.heapreplace(kept, (place, _row(now, node, record)))
    kept.sort(key=lambda item: item[0][1:], reverse=True)
    return Table([row for _, row in kept], count - len(kept))


def _is_routine(record: Record) -> bool:
    if record.name == "plaunch.worker.exited":
        return record.metadata.get("exit_code") == 0 or record.metadata.get("stopped") is True
    return record.name == "plaunch.worker.started"


def _row(now: float, node: int, record: Record) -> Row:
    name = record.name.removeprefix("plaunch.")
    return Row(round(now, 3), node, record.number("round"), name, _details(record))


def _details(record: Record) -> str:
    parts = []
    for key, value in record.metadata.items():
        if key in _COMMON or value is None or value == "":
            continue
        text = f"{value:.3f}" if isinstance(value, float) else str(value)
        text = text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 3] + "..."
        parts.append(f"{key}={text}")
    return " ".join(parts)
