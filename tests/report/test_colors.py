"""Colours of messages."""

from __future__ import annotations

import re

import pytest
from plaunch_report.colors import paint

SEQUENCE = re.compile(r"\x1b\[[0-9;]+m")
RED = "31m"


@pytest.mark.parametrize("level", ["DEBUG", "INFO", "WARNING", "ERROR", "Level 15", ""])
@pytest.mark.parametrize(
    "text", ["plaunch: rank 1 of /logs/a\n  ranks 0-3,7", "", "\n", "plaunch:"]
)
def test_without_its_colours_it_is_the_same_text(text, level):
    painted = paint(text, level)
    assert SEQUENCE.sub("", painted) == text
    assert painted.count("\x1b[0m") * 2 <= painted.count("\x1b")  # each colour ends


def test_only_an_error_is_a_headline():
    head, rest = paint("plaunch: bad\nrank 1", "ERROR").split("\n")
    assert head == "\x1b[1;31mplaunch: bad\x1b[0m"
    assert RED not in rest
    assert RED not in paint("plaunch: bad", "WARNING")


@pytest.mark.parametrize(
    ("text", "standing_out"),
    [
        ("rank 1 failed, ranks 0-3,7 did not", ["rank 1", "ranks 0-3,7"]),
        ("frank 1, rank one", []),
        ("see /logs/a.log, node-b:/logs/b (x)", ["/logs/a.log", "node-b:/logs/b"]),
        ('File "/a/b.py", line 1', ["/a/b.py"]),
        ("1/2 and a/b and / and ./here", []),
        ("local rank 3: 4", ["local rank 3"]),
    ],
)
def test_ranks_and_paths_stand_out(text, standing_out):
    assert re.findall(r"\x1b\[\d+m([^\x1b]+)\x1b\[0m", paint(text, "")) == standing_out
