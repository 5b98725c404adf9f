"""The screens in the documentation are those of this launcher, and can be read in 80 columns."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools/docs"))
try:
    import screens
finally:
    del sys.path[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", screens.LAUNCHES)
def test_a_screen_is_up_to_date(name):
    with ThreadPoolExecutor() as pool:
        drawn = pool.map(lambda columns: screens.draw(name, columns), screens.WIDTHS)
        for columns, picture in zip(screens.WIDTHS, drawn, strict=True):
            path = screens.TARGET / f"{name}-{columns}.svg"
            assert path.read_text() == picture, f"run {screens.COMMAND}"


def test_a_screen_wraps_replaces_and_colours():
    screen = screens.Screen(5)
    screen.write("a\r\x1b[Kab\x1b[1;31mcdef\x1b[0m g\nthere\n")
    assert screen.lines() == ["abcde", "f g", "there", ""]
    assert screen.runs(0) == [(0, "", "ab"), (2, "1;31", "cde")]
    assert screen.runs(1) == [(0, "1;31", "f"), (1, "", " g")]


@pytest.mark.parametrize("name", screens.LAUNCHES)
def test_nothing_but_a_path_is_too_long_for_80_columns(name):
    for line in screens.lines_of((screens.TARGET / f"{name}-120.svg").read_text()):
        assert len(line) <= 80 or "/" in line, line
