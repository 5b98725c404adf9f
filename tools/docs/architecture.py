"""Draws docs/architecture.svg: `python tools/docs/architecture.py`; a test compares the two.

The picture has its own background, so that it can be read on a dark page too.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

TARGET = Path(__file__).parents[2] / "docs" / "architecture.svg"

_WIDTH, _HEIGHT = 960, 616
_LINE = 17  # pixels from one line of text to the next
_FONT = "font-family='DejaVu Sans, Verdana, sans-serif'"
_COLOURS = {
    "node": ("#f4f6f8", "#9aa5b1"),
    "launcher": ("#ffffff", "#52606d"),
    "core": ("#e3f0fc", "#3d7ab8"),
    "plugin": ("#fdf0d9", "#c08a28"),
    "worker": ("#e2f3e4", "#4c9a58"),
    "outside": ("#f3e8f7", "#8e5ba6"),
}


@dataclass(frozen=True)
class Box:
    """A rectangle with a title, and lines below it."""

    x: int
    y: int
    width: int
    height: int
    kind: str
    title: str
    lines: tuple[str, ...] = ()

    def draw(self) -> str:
        """The rectangle and its text."""
        fill, stroke = _COLOURS[self.kind]
        dash = " stroke-dasharray='5 4'" if self.kind == "node" else ""
        parts = [
            f"<rect x='{self.x}' y='{self.y}' width='{self.width}' height='{self.height}' rx='6' "
            f"fill='{fill}' stroke='{stroke}' stroke-width='1.5'{dash}/>",
            _text(self.x + 10, self.y + 20, self.title, weight="bold"),
        ]
        parts += [
            _text(self.x + 10, self.y + 20 + _LINE * number, line)
            for number, line in enumerate(self.lines, start=1)
        ]
        return "\n".join(parts)


@dataclass(frozen=True)
class Arrow:
    """A line with a head at its end, or at both; what it says stands at a place of its own."""

    points: tuple[tuple[int, int], ...]
    label: str = ""
    at: tuple[int, int] = (0, 0)
    both: bool = False

    def draw(self) -> str:
        """The line and its text."""
        points = " ".join(f"{x},{y}" for x, y in self.points)
        start = " marker-start='url(#head)'" if self.both else ""
        line = (
            f"<polyline points='{points}' fill='none' stroke='#323f4b' stroke-width='1.5' "
            f"marker-end='url(#head)'{start}/>"
        )
        return f"{line}\n{_text(*self.at, self.label, size=11)}" if self.label else line


def _text(x: int, y: int, text: str, *, weight: str = "normal", size: int = 12) -> str:
    return (
        f"<text x='{x}' y='{y}' font-size='{size}' font-weight='{weight}' fill='#1f2933' {_FONT}>"
        f"{escape(text)}</text>"
    )


BOXES = (
    Box(16, 16, 606, 530, "node", "a node"),
    Box(32, 48, 574, 310, "launcher", "the launcher: one process, without torch"),
    Box(
        48, 84, 150, 92, "core", "cli, launch", ("options, variables,", "what a scheduler", "says")
    ),
    Box(
        246,
        84,
        170,
        92,
        "core",
        "agent",
        ("one loop, which waits", "in poll; decisions are", "a table"),
    ),
    Box(
        440,
        84,
        150,
        92,
        "plugin",
        "plugins",
        ("hooks: offer, add,", "are told"),
    ),
    Box(
        48,
        238,
        170,
        104,
        "core",
        "process context",
        ("starts, watches and", "stops the workers;", "a thread reads what", "they write"),
    ),
    Box(
        246,
        238,
        170,
        104,
        "plugin",
        "logs spec, events,",
        ("signal policy,", "device counter", "chosen by name"),
    ),
    Box(
        440,
        238,
        150,
        104,
        "plugin",
        "rendezvous",
        ("backend: the store;", "membership is a", "library's, on", "threads of its own"),
    ),
    Box(36, 420, 122, 66, "worker", "worker", ("RANK=0", "LOCAL_RANK=0")),
    Box(166, 420, 122, 66, "worker", "worker", ("RANK=1", "LOCAL_RANK=1")),
    Box(
        304, 420, 136, 66, "outside", "files, console", ("one folder for each", "attempt and rank")
    ),
    Box(446, 420, 160, 66, "core", "guard", ("ends the workers if", "the launcher is killed")),
    Box(656, 16, 288, 180, "node", "another node"),
    Box(672, 48, 256, 56, "launcher", "its launcher", ("the same program",)),
    Box(672, 124, 120, 56, "worker", "worker", ("RANK=2",)),
    Box(808, 124, 120, 56, "worker", "worker", ("RANK=3",)),
    Box(
        656,
        250,
        288,
        92,
        "outside",
        "store",
        (
            "one record that all follow: who takes",
            "part, attempt, verdict. In a launcher",
            "(c10d), or a service (etcd)",
        ),
    ),
    Box(
        656,
        420,
        288,
        66,
        "outside",
        "the workers' own store and network",
        ("torch, NCCL, gloo: plaunch only says", "where rank 0 is"),
    ),
)
ARROWS = (
    Arrow(((198, 130), (244, 130))),
    Arrow(((416, 130), (438, 130))),
    Arrow(((290, 176), (290, 206), (133, 206), (133, 236)), "start, stop, exits", (146, 200), True),
    Arrow(((331, 176), (331, 236))),
    Arrow(((372, 176), (372, 206), (515, 206), (515, 236)), "rounds, changes", (386, 200), True),
    Arrow(((590, 290), (654, 290)), both=True),
    Arrow(((928, 76), (936, 76), (936, 222), (800, 222), (800, 248)), both=True),
    Arrow(((100, 342), (100, 418))),
    Arrow(((160, 342), (160, 380), (218, 380), (218, 418)), "environment, signals", (226, 402)),
    Arrow(((205, 342), (205, 368), (370, 368), (370, 418)), "output", (378, 396)),
    Arrow(((218, 326), (232, 326), (232, 350), (530, 350), (530, 418))),
    Arrow(((227, 486), (227, 516), (800, 516), (800, 488)), "gradients and data", (300, 510), True),
)
_LEGEND = (
    ("core", "the core"),
    ("plugin", "chosen by name, or added: plugins"),
    ("worker", "your script"),
    ("outside", "outside the launcher"),
)


def draw() -> str:
    """The whole picture."""
    legend = []
    x = 24
    for kind, text in _LEGEND:
        fill, stroke = _COLOURS[kind]
        legend.append(
            f"<rect x='{x}' y='572' width='18' height='14' rx='3' fill='{fill}' stroke='{stroke}'/>"
        )
        legend.append(_text(x + 26, 584, text))
        x += 60 + 7 * len(text)
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {_HEIGHT}' "
        f"width='{_WIDTH}' height='{_HEIGHT}' role='img' aria-label='The parts of plaunch'>",
        "<defs><marker id='head' viewBox='0 0 10 10' refX='9' refY='5' markerWidth='7' "
        "markerHeight='7' orient='auto-start-reverse'>"
        "<path d='M0,0 L10,5 L0,10 z' fill='#323f4b'/></marker></defs>",
        f"<rect width='{_WIDTH}' height='{_HEIGHT}' fill='#ffffff'/>",
        *(box.draw() for box in BOXES),
        *(arrow.draw() for arrow in ARROWS),
        *legend,
        "</svg>\n",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    TARGET.write_text(draw(), encoding="utf-8")
