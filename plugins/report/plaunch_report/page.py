"""The page: one self-contained HTML file. Log lines and other input are untrusted.

The template escapes all values, and data for scripts is JSON without `<`. The page's content
security policy allows only its own scripts, by a random nonce, and no requests. For its table, the
events are read a second time, because not all can be kept.
"""

from __future__ import annotations

import datetime
import heapq
import itertools
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch_events import describe_seconds

from plaunch_report.charts import MARKS, MAX_LIVES, PHASES, WORKER_STATES, create_charts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch_report.agents import EventRecord
    from plaunch_report.event_files import EventFiles
    from plaunch_report.facts import LaunchSummary, NodeSummary, ReportedFailure, RestartSummary
    from plaunch_report.summary import SummaryBuilder

_MAX_FAILURES = 20  # of one attempt, shown in full
_MAX_NODES = 200  # in the table of nodes
_MAX_RESTARTS = 200  # in the table of restarts, of all nodes together
_MAX_LINES = 20_000  # characters of the last lines of a failure
MAX_EVENTS = 50_000  # normal starts and ends of workers, and later events, are left out first
_MAX_TEXT = 400  # characters of a value
# Keys of all events, and those with a column in the table.
_COMMON = frozenset(
    {"run_id", "host", "hostname", "role", "agent_pid", "group_rank", "ranks", "round", "attempt"}
    | {"backend", "entry_point", "group_world_size", "elapsed", "last_lines"}
)


def create_page(summary: LaunchSummary, table: Table) -> Iterator[str]:
    """Create the page, as pieces of text."""
    from bokeh.resources import Resources
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("plaunch_report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Keep the order of keys: Bokeh's models must be defined before they are referenced.
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}
    environment.filters["lasting"] = describe_seconds
    environment.filters["clock"] = _clock
    environment.filters["cut"] = _cut_lines
    libraries = Resources(mode="inline", components=["bokeh"]).js_raw
    template = environment.get_template("report.html")
    return template.generate(
        summary=summary,
        nonce=secrets.token_urlsafe(16),
        # An end tag inside the library would end its script element.
        libraries=[text.replace("</script", "<\\/script") for text in libraries],
        charts=create_charts(summary),
        events=_compact(summary, table),
        events_left_out=table.left_out,
        lives_left_out=max(len(summary.lives) - MAX_LIVES, 0),
        failures=_by_attempt(summary),
        most_failures=_MAX_FAILURES,
        legend=_legend(summary),
        world_sizes=[
            size for size, _ in itertools.groupby(item.world_size for item in summary.rounds)
        ],
        nodes=_choose_nodes(summary),
        account=_account_of_all(summary),
        parts=_PARTS,
        restarts=_choose_restarts(summary),
        restart_parts=_RESTART_PARTS,
        began=_date(summary.began),
    )


# The parts of an account: words and color.
_PARTS = {
    "waiting": ("waiting for nodes", "#f2c14e"),
    "starting": ("starting", "#7fb2e5"),
    "training": ("training", "#2f8f6b"),
    "stopping": ("stopping", "#a680b8"),
    "showing": ("waiting for the console", "#8d99ae"),
    "lost": ("lost to restarts", "#d1495b"),
}


# The parts of a restart; those that are also in `_PARTS` have the same words and colors.
_RESTART_PARTS = {
    "noticing": ("noticing", "#e08e6d"),
    "stopping": _PARTS["stopping"],
    "waiting": ("waiting", _PARTS["waiting"][1]),
    "starting": _PARTS["starting"],
}


def _choose_restarts(summary: LaunchSummary) -> list[RestartSummary]:
    """The restarts in order of rounds; if there are too many, only the longest."""
    longest = sorted(summary.restarts, key=lambda restart: -restart.seconds["total"])
    return sorted(longest[:_MAX_RESTARTS], key=lambda restart: (restart.round, restart.node))


def _choose_nodes(summary: LaunchSummary) -> list[NodeSummary]:
    """The nodes; if there are too many, first those with another outcome than the job."""
    if len(summary.nodes) <= _MAX_NODES:
        return summary.nodes
    order = sorted(summary.nodes, key=lambda node: node.outcome == summary.outcome)
    return order[:_MAX_NODES]


def _legend(summary: LaunchSummary) -> list[tuple[str, str, str]]:
    """The entries of the legend: words, color, and a character (a box if it is empty)."""
    phases = {span.phase for span in summary.spans}
    states = {life.state for life in summary.lives}
    marks = {mark.kind for mark in summary.marks} | ({"failure"} if "failed" in states else set())
    return [
        *((words, color, "") for name, (words, color) in PHASES.items() if name in phases),
        *(
            (f"worker {words}", color, "")
            for name, (words, color) in WORKER_STATES.items()
            if name in states
        ),
        *(
            (words, color, char)
            for name, (words, _, color, char, _) in MARKS.items()
            if name in marks
        ),
    ]


def _account_of_all(summary: LaunchSummary) -> dict[str, float]:
    """The sum of the seconds of all nodes, by name."""
    return {name: sum(node.seconds[name] for node in summary.nodes) for name in (*_PARTS, "total")}


def _by_attempt(summary: LaunchSummary) -> dict[int, list[ReportedFailure]]:
    found: dict[int, list[ReportedFailure]] = {}
    for failure in summary.failures:
        found.setdefault(failure.attempt, []).append(failure)
    return found


def _compact(summary: LaunchSummary, table: Table) -> dict[str, object]:
    """The table of events for the page's script, with each name once and a list for each row."""
    names: dict[str, int] = {}
    rows = [
        [row.time, row.node, row.round, names.setdefault(row.name, len(names)), row.details]
        for row in table.rows
    ]
    return {"nodes": [node.label for node in summary.nodes], "names": list(names), "rows": rows}


def _cut_lines(text: str) -> str:
    """The text, cut to its end if it is very long."""
    return text if len(text) <= _MAX_LINES else "...\n" + text[-_MAX_LINES:]


def _date(seconds: float) -> str:
    """Format the date of the first event, which may be out of range if clocks are wrong."""
    try:
        date = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    except (ValueError, OverflowError, OSError):
        return "at an unknown time"
    return f"{date:%Y-%m-%d %H:%M:%S} UTC"


def _clock(seconds: float) -> str:
    """Format a time of the run: 12.30 s, or 1:02:03."""
    if seconds < 300:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


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


def create_table(
    event_files: EventFiles, builder: SummaryBuilder, max_events: int = MAX_EVENTS
) -> Table:
    """Read the events of all nodes again, and keep the `max_events` most important ones."""
    nodes = {id(agent): node for node, agent in enumerate(builder.agents)}
    kept: list[tuple[tuple[float, ...], Row]] = []  # a heap with the least important on top
    count = 0
    for agent, record in event_files.records():
        node = nodes.get(id(agent))
        if node is None:
            continue
        count += 1
        now = builder.time(node, record)
        place = (-float(_is_routine(record)), -now, -float(node), -float(count))
        if len(kept) < max_events:
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
        text = text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 3] + "..."
        parts.append(f"{key}={text}")
    return " ".join(parts)
