"""The charts of a page: a timeline of nodes and workers, and the world size over time.

Bokeh draws on a canvas: a thousand workers are one glyph, not elements of the page. Texts are
passed as data, which Bokeh escapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plaunch_events import describe_seconds

if TYPE_CHECKING:
    from plaunch_report.facts import LaunchSummary, WorkerLife

PHASES = {
    "starting": ("starting", "#7fb2e5"),
    "rendezvous": ("waiting for nodes", "#f2c14e"),
    "pausing": ("waiting to restart", "#d9d2c5"),
    "training": ("training", "#2f8f6b"),
    "lingering": ("done, waiting for others", "#dfe6b0"),
    "stopping": ("stopping", "#a680b8"),
    "showing": ("waiting for the console", "#8d99ae"),
}
WORKER_STATES = {
    "succeeded": ("ended well", "#a5d6c0"),
    "failed": ("failed", "#d1495b"),
    "stopped": ("stopped by its launcher", "#c4c7cc"),
    "unknown": ("end unknown", "#eadfc8"),
}
# Name, shape, color, the same shape as a character, and the vertical position in the row of the
# node, so that simultaneous marks do not hide each other.
MARKS = {
    "failure": ("failure", "x", "#8c1c2e", "\u2715", 0.5),
    "restart": ("restart", "inverted_triangle", "#1d4e89", "\u25bc", 0.8),
    "membership": ("nodes change", "diamond", "#e07a1f", "\u25c6", 0.2),
    "signal": ("signal", "star", "#5b2a86", "\u2605", 0.5),
    "request": ("request", "triangle", "#5b2a86", "\u25b2", 0.35),
    "killed": ("killed", "square", "#000000", "\u25a0", 0.5),
}
MAX_LIVES = 50_000  # workers that are drawn; the failed ones first
_MAX_TEXT = 300  # characters of a tooltip
_MAX_LABELS = 40  # of nodes
_MAX_RANKS = 3  # in the label of a worker's row; a worker may have another rank in each round
_LINE = 12.0  # pixels of a line of text
_WORKERS_IN_FULL = 64  # workers with a row as high as a node's


@dataclass(frozen=True)
class _Rows:
    """The layout: each node has a row, and below it one for each worker."""

    tops: list[float]
    node: float
    worker: float
    total: float

    @staticmethod
    def of(summary: LaunchSummary) -> _Rows:
        workers = _workers_by_node(summary)
        height = min(1.0, _WORKERS_IN_FULL / max(sum(workers), 1))
        tops, total = [], 0.0
        for count in workers:
            tops.append(total)
            total += 1.0 + count * height + 0.4
        return _Rows(tops, 1.0, height, total)

    def of_life(self, life: WorkerLife) -> tuple[float, float]:
        top = self.tops[life.node] + self.node + max(life.local_rank, 0) * self.worker
        return top + 0.1 * self.worker, top + 0.9 * self.worker


def create_charts(summary: LaunchSummary) -> dict[str, dict[str, Any]]:
    """Create the charts, by the id of their element, for `Bokeh.embed_item`.

    They share their time axis, so they are panned together.
    """
    from bokeh.embed import json_item
    from bokeh.layouts import column
    from bokeh.models import Range1d

    length = max(summary.duration, 1e-3)
    x_range = Range1d(-0.01 * length, 1.01 * length, bounds=(-0.1 * length, 1.1 * length))
    layout = column(
        _create_timeline(summary, x_range),
        _create_world(summary, x_range),
        sizing_mode="stretch_width",
    )
    return {"charts": dict(json_item(layout, "charts"))}


def _create_timeline(summary: LaunchSummary, x_range: Any) -> Any:
    from bokeh.models import FixedTicker, Range1d

    rows = _Rows.of(summary)
    plot = _create_plot(
        summary,
        height=int(min(max(22 * rows.total + 90, 180), 1100)),
        x_range=x_range,
        y_range=Range1d(rows.total, -0.4),
        title="What nodes and workers did",
    )
    _draw_spans(plot, summary, rows)
    _draw_lives(plot, summary, rows)
    _draw_marks(plot, summary, rows)
    labels = _create_labels(summary, rows, plot.height / (rows.total + 0.4))
    plot.yaxis.ticker = FixedTicker(ticks=list(labels))
    plot.yaxis.major_label_overrides = labels
    plot.min_border_left = 50 + 6 * max(map(len, labels.values()))
    plot.ygrid.visible = False
    return plot


def _create_labels(summary: LaunchSummary, rows: _Rows, height: float) -> dict[float, str]:
    """Create the labels of the rows, by position: nodes, and the ranks of their workers.

    Args:
        summary: the summary.
        rows: the layout.
        height: the height of a node's row, in pixels. If the rows of workers are too low for a line
            of text, the label of the node has all ranks.
    """
    ranks: dict[int, dict[int, list[int]]] = {}  # by node and local rank, in order of time
    for life in sorted(summary.lives, key=lambda life: life.begin):
        known = ranks.setdefault(life.node, {}).setdefault(max(life.local_rank, 0), [])
        if life.global_rank not in known:
            known.append(life.global_rank)
    has_lines = height * rows.worker >= _LINE
    labels = {}
    for index in range(0, len(summary.nodes), -(-len(summary.nodes) // _MAX_LABELS)):
        there = ranks.get(index, {})
        name = _label(summary.nodes[index].label)
        if there and not has_lines:
            every = [rank for known in there.values() for rank in known]
            name = f"{name}: ranks {min(every)}-{max(every)}"
        labels[rows.tops[index] + rows.node / 2] = name
        for local_rank, known in there.items() if has_lines else ():
            top = rows.tops[index] + rows.node + local_rank * rows.worker
            more = ", ..." if len(known) > _MAX_RANKS else ""
            word = "rank" if len(known) == 1 else "ranks"
            shown = ", ".join(map(str, known[:_MAX_RANKS]))
            labels[top + rows.worker / 2] = f"{word} {shown}{more}"
    return labels


def _create_world(summary: LaunchSummary, x_range: Any) -> Any:
    from bokeh.models import Range1d

    most = max((item.world_size for item in summary.rounds), default=0)
    plot = _create_plot(
        summary,
        height=180,
        x_range=x_range,
        y_range=Range1d(0, 1.15 * max(most, 1)),
        title="Workers that trained",
    )
    there = [item for item in summary.rounds if item.trains_from is not None]
    ends = [summary.duration if item.trains_until is None else item.trains_until for item in there]
    renderer = plot.quad(
        left="begin",
        right="end",
        bottom=0,
        top="world",
        fill_color="#2f8f6b",
        fill_alpha=0.55,
        line_color="#2f8f6b",
        source={
            "begin": [item.trains_from for item in there],
            "end": ends,
            "world": [item.world_size for item in there],
            "text": [
                f"round {item.number}: {item.world_size} workers on {item.nodes} nodes"
                for item in there
            ],
        },
    )
    _add_hover(plot, [renderer])
    return plot


def _create_plot(summary: LaunchSummary, **arguments: Any) -> Any:
    from bokeh.models import NumeralTickFormatter
    from bokeh.plotting import figure

    plot = figure(
        tools="xpan,box_zoom,wheel_zoom,reset",
        active_drag="xpan",
        active_scroll=None,
        sizing_mode="stretch_width",
        min_border_left=50 + 6 * max(len(_label(node.label)) for node in summary.nodes),
        min_border_right=20,
        output_backend="canvas",
        **arguments,
    )
    plot.toolbar.logo = None
    plot.outline_line_color = None
    plot.grid.grid_line_color = "#e3e6ea"
    plot.axis.axis_line_color = "#b9c0ca"
    plot.axis.major_tick_line_color = "#b9c0ca"
    plot.axis.minor_tick_line_color = None
    length = arguments["x_range"].end
    if length >= 300:
        from bokeh.models import AdaptiveTicker

        plot.xaxis.formatter = NumeralTickFormatter(format="00:00:00")
        plot.xaxis.ticker = AdaptiveTicker(base=60, mantissas=[1, 2, 5, 10, 20, 30], min_interval=1)
    else:
        plot.xaxis.formatter = NumeralTickFormatter(format="0.[00]")
        plot.xaxis.axis_label = "seconds"
    return plot


def _draw_spans(plot: Any, summary: LaunchSummary, rows: _Rows) -> None:
    renderers = []
    for phase, (words, color) in PHASES.items():
        spans = [span for span in summary.spans if span.phase == phase]
        if not spans:
            continue
        source = {
            "left": [span.begin for span in spans],
            "right": [span.end for span in spans],
            "top": [rows.tops[span.node] for span in spans],
            "bottom": [rows.tops[span.node] + rows.node for span in spans],
            "text": [
                f"{summary.nodes[span.node].label}: {words} for "
                f"{describe_seconds(span.end - span.begin)}"
                for span in spans
            ],
        }
        renderers.append(_draw_boxes(plot, source, color))
    _add_hover(plot, renderers)


def _draw_lives(plot: Any, summary: LaunchSummary, rows: _Rows) -> None:
    renderers = []
    lives = sorted(summary.lives, key=lambda life: life.state != "failed")[:MAX_LIVES]
    for state, (words, color) in WORKER_STATES.items():
        there = [life for life in lives if life.state == state]
        if not there:
            continue
        places = [rows.of_life(life) for life in there]
        ends = [summary.nodes[life.node].end if life.end is None else life.end for life in there]
        source = {
            "left": [life.begin for life in there],
            "right": ends,
            "top": [top for top, _ in places],
            "bottom": [bottom for _, bottom in places],
            "text": [_describe_life(life, words) for life in there],
        }
        renderers.append(_draw_boxes(plot, source, color))
    _add_hover(plot, renderers)


def _draw_boxes(plot: Any, source: dict[str, Any], color: str) -> Any:
    return plot.quad(
        left="left",
        right="right",
        top="top",
        bottom="bottom",
        fill_color=color,
        line_color=None,
        hover_line_color="#222222",
        source=source,
    )


def _draw_marks(plot: Any, summary: LaunchSummary, rows: _Rows) -> None:
    places: dict[str, list[tuple[float, float, str]]] = {kind: [] for kind in MARKS}
    for life in summary.lives:
        if life.state == "failed" and life.end is not None and len(places["failure"]) < MAX_LIVES:
            top, bottom = rows.of_life(life)
            text = _describe_life(life, "failed")
            places["failure"].append((life.end, (top + bottom) / 2, text))
    for mark in summary.marks:
        down = MARKS[mark.kind][4] * rows.node
        places[mark.kind].append((mark.time, rows.tops[mark.node] + down, mark.text))
    renderers = []
    for kind, (_, shape, color, _, _) in MARKS.items():
        if not places[kind]:
            continue
        renderers.append(
            plot.scatter(
                "x",
                "y",
                marker=shape,
                size=11,
                line_width=2 if shape == "x" else 1,
                fill_color=color,
                line_color=color if shape == "x" else "white",
                source={
                    "x": [x for x, _, _ in places[kind]],
                    "y": [y for _, y, _ in places[kind]],
                    "text": [_cut(text) for _, _, text in places[kind]],
                },
            )
        )
    _add_hover(plot, renderers)


def _add_hover(plot: Any, renderers: list[Any]) -> None:
    if renderers:
        from bokeh.models import HoverTool

        # Bokeh escapes the column after @ by default.
        plot.add_tools(HoverTool(renderers=renderers, tooltips="@text", visible=False))


def _describe_life(life: WorkerLife, words: str) -> str:
    lasted = "" if life.end is None else f" after {describe_seconds(life.end - life.begin)}"
    how = ""
    if life.exit_code is not None and not life.stopped and life.exit_code != 0:
        how = f" ({life.signal or f'exit code {life.exit_code}'})"
    return f"rank {life.global_rank} (pid {life.pid}), round {life.round}: {words}{lasted}{how}"


def _workers_by_node(summary: LaunchSummary) -> list[int]:
    """The number of worker rows of each node."""
    counts = [0] * len(summary.nodes)
    for life in summary.lives:
        counts[life.node] = max(counts[life.node], life.local_rank + 1)
    return counts


def _label(text: str) -> str:
    # Bokeh would render text between dollar signs as a formula.
    return _cut(text.replace("$", ""), 24)


def _cut(text: str, max_chars: int = _MAX_TEXT) -> str:
    return text if len(text) <= max_chars else text[: max_chars - 3] + "..."
