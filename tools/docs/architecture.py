"""Draws docs/architecture.svg from the imports: `python tools/docs/architecture.py`.

Boxes are the rooms of the core and the packages in `plugins/`. Arrows are imports between them,
including those in functions and for type checkers. Arrows that follow from others are left out. A
test compares the picture with the code. It has its own background, so that it can be read on a dark
page too.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import plaunch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "docs" / "architecture.svg"

# The purpose of each room; the core's other modules are the base below the rooms.
ROOMS = {
    "cli": ("the command line", "and its options"),
    "launch": ("runs one launch",),
    "config": ("the settings of a launch",),
    "testing": ("fakes, for tests",),
    "plugin": ("finds, loads and", "calls plugins"),
    "agent": ("runs the workers of", "one node: a table", "and a loop"),
    "process": ("starts, watches and", "stops processes"),
    "rendezvous": ("the contract of", "backends"),
    "restarts": ("the contract of", "restart policies"),
    "events": ("what happened,", "as data"),
}
GROUND = "ground"
# A library has its own box; plugins that import the same rooms share one.
LIBRARIES = (
    "plaunch_events",
    "plaunch_hang.stacks",
    "plaunch_membership",
    "plaunch_network",
    "plaunch_testing",
)

_WIDTH, _MARGIN = 1080, 20
_BOX, _DUMMY = 168, 12  # widths: of a box, and of an arrow that passes between boxes
_LINE, _HEAD = 16, 22  # heights: of a line of text, and of a title
_GAP = 62  # between two rows
_FONT = "font-family='DejaVu Sans, Verdana, sans-serif'"
_COLOURS = {
    "core": ("#e3f0fc", "#3d7ab8"),
    "library": ("#e2f3e4", "#4c9a58"),
    "plugin": ("#fdf0d9", "#c08a28"),
}
_LEGEND = {"core": "core/plaunch", "plugin": "plugins", "library": "libraries for plugins"}

Graph = dict[str, set[str]]


@dataclass(frozen=True)
class Box:
    """A rectangle with a title, and lines below it."""

    kind: str
    title: str
    lines: tuple[str, ...] = ()

    @property
    def height(self) -> int:
        """The height in pixels."""
        return _HEAD + _LINE * len(self.lines) + 10

    def draw(self, x: int, y: int) -> str:
        """Return the rectangle and its text as SVG, with its top left corner at `x`, `y`."""
        fill, stroke = _COLOURS[self.kind]
        rows = [_text(x + 8, y + 18, self.title, weight="bold")]
        weight = "bold" if self.kind == "plugin" else "normal"  # each line of which is a name
        rows += [
            _text(x + 8, y + 18 + _LINE * number, line, weight=weight)
            for number, line in enumerate(self.lines, 1)
        ]
        return "\n".join(
            (
                f"<rect x='{x}' y='{y}' width='{_BOX}' height='{self.height}' rx='6' "
                f"fill='{fill}' stroke='{stroke}' stroke-width='1.5'/>",
                *rows,
            )
        )


def _text(x: int, y: int, text: str, *, weight: str = "normal") -> str:
    return (
        f"<text x='{x}' y='{y}' font-size='12' font-weight='{weight}' fill='#1f2933' {_FONT}>"
        f"{escape(text)}</text>"
    )


# --- imports --------------------------------------------------------------------------------------


def imports() -> Graph:
    """Return the rooms and packages with the ones that they import."""
    core = ROOT / "core" / "plaunch"
    members = {path.stem for path in core.iterdir() if path.suffix == ".py" or path.is_dir()}
    graph: Graph = defaultdict(set)
    for base in (ROOT / "core", *sorted((ROOT / "plugins").iterdir())):
        for path in sorted(base.rglob("*.py")):
            module = path.relative_to(base).with_suffix("").parts
            if module != ("plaunch", "__init__"):  # names of the rooms, loaded on first use
                place = _place(module, members)
                graph[place] |= {_place(name, members) for name in _names(path)} - {place}
    return graph


def _names(path: Path) -> Iterator[tuple[str, ...]]:
    """Return plaunch's dotted names that a file imports, or takes from `plaunch` itself."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        found: list[str] = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found = [f"{node.value.id}.{node.attr}"]
        for name in found:
            if name.startswith("plaunch") and name != "plaunch":
                yield tuple(name.split("."))


def _place(name: tuple[str, ...], members: set[str]) -> str:
    """Return the room or package that contains a dotted name."""
    if name[0] != "plaunch":
        return next((each for each in LIBRARIES if ".".join(name).startswith(each)), name[0])
    room = name[1]
    if room not in members:
        # A name that the package re-exports from one of its rooms.
        home = getattr(getattr(plaunch, room, plaunch), "__module__", "plaunch._version")
        room = home.split(".")[1]
    if room == "__main__":
        return "cli"
    return room if room in ROOMS else GROUND


def reduced(graph: Graph) -> Graph:
    """Return the graph without edges that follow from others.

    Raises:
        ValueError: there is an import cycle.
    """
    reached: Graph = {}

    def reach(place: str, way: tuple[str, ...]) -> set[str]:
        if place in way:
            raise ValueError(f"imports in a circle: {' -> '.join((*way, place))}")
        if place not in reached:
            ways = (reach(other, (*way, place)) for other in graph.get(place, ()))
            reached[place] = set(graph.get(place, ())).union(*ways)
        return reached[place]

    for place in graph:
        reach(place, ())
    return {
        place: {
            other
            for other in others
            if not any(other in reached[between] for between in others if between != other)
        }
        for place, others in graph.items()
    }


def boxes(graph: Graph) -> tuple[dict[str, Box], Graph]:
    """Return the boxes of a graph: one for each room, library, and group of plugins."""
    found = {room: Box("core", room, lines) for room, lines in ROOMS.items()}
    core = ROOT / "core" / "plaunch"
    single = {path.stem for path in core.glob("[a-z]*.py")} - {*ROOMS}
    found[GROUND] = Box("core", "modules", tuple(_wrapped(sorted(single))))
    imported = set().union(*graph.values())
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for place, others in graph.items():
        if place not in found:
            is_alone = place in LIBRARIES or place in imported
            groups[(place,) if is_alone else ("", *sorted(others))].append(place)
    arrows: Graph = {place: graph.get(place, set()) for place in found}
    for group in groups.values():
        kind = "library" if group[0] in LIBRARIES else "plugin"
        names = sorted(group)
        if kind == "plugin":
            names = [name.removeprefix("plaunch_") for name in names]
        found[group[0]] = Box(kind, names[0], tuple(names[1:]))
        arrows[group[0]] = graph[group[0]]
    return found, arrows


def _wrapped(words: Iterable[str]) -> list[str]:
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word) > 18:
            lines.append("")
        lines[-1] += f"{', ' if lines[-1] else ''}{word}"
    return lines


# --- the picture ----------------------------------------------------------------------------------


def _rows(arrows: Graph) -> dict[str, int]:
    """Return the row of each box, counted from the lowest; arrows point down."""
    rows: dict[str, int] = {}

    def row(place: str) -> int:
        if place not in rows:
            rows[place] = 1 + max((row(other) for other in arrows[place]), default=-1)
        return rows[place]

    for place in arrows:
        row(place)
    for place in sorted(rows, key=rows.__getitem__):  # place boxes without imports near their users
        users = [rows[user] for user, others in arrows.items() if place in others]
        if users and not arrows[place] and place != GROUND:
            rows[place] = min(users) - 1
    return rows


Node = tuple[str, str, int]  # a box, or where the arrow between two boxes passes a row


def _layers(arrows: Graph, rows: dict[str, int]) -> tuple[list[list[Node]], dict[Node, set[Node]]]:
    """Return the nodes of each row in order, and their edges to the row below."""
    layers: list[list[Node]] = [[] for _ in range(1 + max(rows.values()))]
    for place in arrows:
        layers[rows[place]].append((place, place, rows[place]))
    below: dict[Node, set[Node]] = defaultdict(set)
    for place, others in arrows.items():
        for other in sorted(others):
            upper: Node = (place, place, rows[place])
            for row in range(rows[place] - 1, rows[other], -1):
                passing: Node = (place, other, row)
                layers[row].append(passing)
                below[upper].add(passing)
                upper = passing
            below[upper].add((other, other, rows[other]))
    above: dict[Node, set[Node]] = defaultdict(set)
    for upper, lowers in below.items():
        for lower in lowers:
            above[lower].add(upper)
    for sweep in range(24):  # sort each row by the centers of its neighbours
        for layer in layers if sweep % 2 else reversed(layers):
            _sort(layer, layers, below if sweep % 2 else above)
    return layers, below


def _sort(layer: list[Node], layers: list[list[Node]], neighbours: dict[Node, set[Node]]) -> None:
    place_of = {node: x for other in layers for node, x in _places(other).items()}

    def middle(node: Node) -> float:
        near = [place_of[other] for other in neighbours[node]]
        return sum(near) / len(near) if near else place_of[node]

    layer.sort(key=middle)


def _places(layer: list[Node]) -> dict[Node, int]:
    """Return the horizontal center of each node of a row."""
    widths = [_BOX if node[0] == node[1] else _DUMMY for node in layer]
    gap = (_WIDTH - 2 * _MARGIN - sum(widths)) / (len(layer) + 1)
    places, x = {}, float(_MARGIN)
    for node, width in zip(layer, widths, strict=True):
        x += gap
        places[node] = round(x + width / 2)
        x += width
    return places


def draw(graph: Graph) -> str:
    """Return the whole picture as SVG."""
    found, arrows = boxes(reduced(graph))
    layers, below = _layers(arrows, _rows(arrows))
    place_of = {node: x for layer in layers for node, x in _places(layer).items()}
    tops: dict[int, int] = {}
    bottoms: dict[int, int] = {}
    y = _MARGIN
    for row in range(len(layers) - 1, -1, -1):
        tops[row] = y
        bottoms[row] = y + max(found[a].height for a, b, _ in layers[row] if a == b)
        y = bottoms[row] + _GAP
    height = y - _GAP + 50
    lines, rectangles = [], []
    for upper, lowers in below.items():
        for lower in sorted(lowers):
            is_end = lower[0] == lower[1]
            start = bottoms[upper[2]]
            if upper[0] == upper[1]:
                start = tops[upper[2]] + found[upper[0]].height
            points = [(place_of[upper], start), (place_of[lower], tops[lower[2]])]
            if not is_end:
                points.append((place_of[lower], bottoms[lower[2]]))
            path = " ".join(f"{x},{y}" for x, y in points)
            head = " marker-end='url(#head)'" if is_end else ""
            lines.append(
                f"<polyline points='{path}' fill='none' stroke='#52606d' stroke-width='1.3'{head}/>"
            )
    for layer in layers:
        for node in layer:
            if node[0] == node[1]:
                rectangles.append(found[node[0]].draw(place_of[node] - _BOX // 2, tops[node[2]]))
    legend = []
    for number, (kind, text) in enumerate(_LEGEND.items()):
        fill, stroke = _COLOURS[kind]
        x = _MARGIN + 180 * number
        legend.append(
            f"<rect x='{x}' y='{height - 28}' width='18' height='14' rx='3' fill='{fill}' "
            f"stroke='{stroke}'/>"
        )
        legend.append(_text(x + 26, height - 16, text))
    legend.append(_text(_MARGIN + 560, height - 16, "an arrow: imports"))
    return "\n".join(
        (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {height}' "
            f"width='{_WIDTH}' height='{height}' role='img' aria-label='Which room imports which'>",
            "<defs><marker id='head' viewBox='0 0 10 10' refX='9' refY='5' markerWidth='7' "
            "markerHeight='7' orient='auto'><path d='M0,0 L10,5 L0,10 z' fill='#52606d'/></marker>"
            "</defs>",
            f"<rect width='{_WIDTH}' height='{height}' fill='#ffffff'/>",
            *lines,
            *rectangles,
            *legend,
            "</svg>\n",
        )
    )


if __name__ == "__main__":
    TARGET.write_text(draw(imports()), encoding="utf-8")
