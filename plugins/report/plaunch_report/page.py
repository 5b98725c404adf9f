"""The page: one HTML file that needs nothing else, and trusts nothing that a log line says.

The template escapes what it is given, data for scripts is JSON without `<`, and the page's own
policy lets the browser run its scripts only, those with a number that nobody could know before,
and load nothing from anywhere.
"""

from __future__ import annotations

import datetime
import itertools
import secrets
from typing import TYPE_CHECKING

from plaunch.agent import describe_seconds

from plaunch_report.charts import FATES, MARKS, MOST_LIVES, PHASES, create_charts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plaunch_report.facts import Failure, Node, Story
    from plaunch_report.reading import Record

MOST_EVENTS = 50_000  # in the table; those of workers that started and ended well give way
_MOST_FAILURES = 20  # of one attempt that are shown in full
_MOST_NODES = 200  # in the table of nodes
_MOST_TEXT = 400  # characters of a value in the table
_MOST_LINES = 20_000  # characters of the last lines of a failure
# What each event has, and what the table has columns for.
_COMMON = frozenset(
    {"run_id", "host", "hostname", "role", "agent_pid", "group_rank", "ranks", "round", "attempt"}
    | {"backend", "entry_point", "group_world_size", "elapsed", "last_lines"}
)

Happened = tuple[float, int, "Record"]


def create_page(story: Story, events: Sequence[Happened]) -> str:
    """The whole page as text."""
    from bokeh.resources import Resources
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("plaunch_report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # In a chart, what is referred to must come first.
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}
    environment.filters["lasting"] = describe_seconds
    environment.filters["clock"] = _clock
    environment.filters["cut"] = _cut_lines
    libraries = Resources(mode="inline", components=["bokeh"]).js_raw
    shown = _choose_events(events)
    template = environment.get_template("report.html")
    return template.render(
        story=story,
        nonce=secrets.token_urlsafe(16),
        # An end tag within the library would end the script that it is in.
        libraries=[text.replace("</script", "<\\/script") for text in libraries],
        charts=create_charts(story),
        events=_compact(story, shown),
        events_left_out=len(events) - len(shown),
        lives_left_out=max(len(story.lives) - MOST_LIVES, 0),
        failures=_by_attempt(story),
        most_failures=_MOST_FAILURES,
        legend=_legend(story),
        world_sizes=[
            size for size, _ in itertools.groupby(item.world_size for item in story.rounds)
        ],
        nodes=_choose_nodes(story),
        account=_account_of_all(story),
        parts=_PARTS,
        began=datetime.datetime.fromtimestamp(story.began, datetime.timezone.utc),
    )


# The parts of an account: words and color.
_PARTS = {
    "waiting": ("waiting for nodes", "#f2c14e"),
    "starting": ("starting", "#7fb2e5"),
    "training": ("training", "#2f8f6b"),
    "stopping": ("stopping", "#a680b8"),
    "lost": ("lost to restarts", "#d1495b"),
}


def _choose_nodes(story: Story) -> list[Node]:
    """All of them if they are not too many; else those that ended differently come first."""
    if len(story.nodes) <= _MOST_NODES:
        return story.nodes
    order = sorted(story.nodes, key=lambda node: node.outcome == story.outcome)
    return order[:_MOST_NODES]


def _legend(story: Story) -> list[tuple[str, str, str]]:
    """What the chart has: words, color, and a character (a box, if it is empty)."""
    phases = {span.phase for span in story.spans}
    fates = {life.fate for life in story.lives}
    marks = {mark.kind for mark in story.marks} | ({"failure"} if "failed" in fates else set())
    return [
        *((words, color, "") for name, (words, color) in PHASES.items() if name in phases),
        *(
            (f"worker {words}", color, "")
            for name, (words, color) in FATES.items()
            if name in fates
        ),
        *(
            (words, color, char)
            for name, (words, _, color, char, _) in MARKS.items()
            if name in marks
        ),
    ]


def _account_of_all(story: Story) -> dict[str, float]:
    """Seconds of all nodes together, by name."""
    return {name: sum(node.seconds[name] for node in story.nodes) for name in (*_PARTS, "total")}


def _by_attempt(story: Story) -> dict[int, list[Failure]]:
    found: dict[int, list[Failure]] = {}
    for failure in story.failures:
        found.setdefault(failure.attempt, []).append(failure)
    return found


def _choose_events(events: Sequence[Happened]) -> list[Happened]:
    """All of them if they are not too many; else the more telling ones, in order."""
    if len(events) <= MOST_EVENTS:
        return list(events)
    order = sorted(range(len(events)), key=lambda index: (_is_routine(events[index][2]), index))
    return [events[index] for index in sorted(order[:MOST_EVENTS])]


def _is_routine(record: Record) -> bool:
    if record.name == "plaunch.worker.exited":
        return record.metadata.get("exit_code") == 0 or record.metadata.get("stopped") is True
    return record.name == "plaunch.worker.started"


def _compact(story: Story, events: Sequence[Happened]) -> dict[str, object]:
    """The table of events for the page's script: names once, and a short list for each row."""
    names: dict[str, int] = {}
    rows = [
        [
            round(now, 3),
            node,
            record.number("round"),
            names.setdefault(record.name.removeprefix("plaunch."), len(names)),
            _details(record),
        ]
        for now, node, record in events
    ]
    return {"nodes": [node.label for node in story.nodes], "names": list(names), "rows": rows}


def _details(record: Record) -> str:
    parts = []
    for key, value in record.metadata.items():
        if key in _COMMON or value is None or value == "":
            continue
        text = f"{value:.3f}" if isinstance(value, float) else str(value)
        text = text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 3] + "..."
        parts.append(f"{key}={text}")
    return " ".join(parts)


def _cut_lines(text: str) -> str:
    """The end of it, if it is very long."""
    return text if len(text) <= _MOST_LINES else "...\n" + text[-_MOST_LINES:]


def _clock(seconds: float) -> str:
    """A moment of the run: 12.3 s, or 1:02:03."""
    if seconds < 300:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
