"""Lines of messages, broken at words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plaunch_report.colors import paint
from plaunch_report.wrapping import count_columns, wrap


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("a bc def", "a bc def"),
        ("plaunch: one two", "plaunch: one\n  two"),
        ("  head: one two three", "  head: one\n    two\n    three"),
        ("one  two\n\n  three fours", "one  two\n\n  three\n    fours"),
        ("see /a/path/without/space x", "see\n  /a/path/without/space\n  x"),
        ("/a/path/without/space x", "/a/path/without/space\n  x"),
        ("             ^^^^^^^^^^", "             ^^^^^^^^^^"),
        ("\uc77c\uc77c\uc77c \uc77c\uc77c\uc77c", "\uc77c\uc77c\uc77c\n  \uc77c\uc77c\uc77c"),
        ("e\u0301" * 6 + " " + "e\u0301" * 5, "e\u0301" * 6 + " " + "e\u0301" * 5),
        ("", ""),
    ],
)
def test_lines_break_at_words(text, broken):
    assert wrap(text, 12) == broken


def test_colours_take_no_room_and_continue():
    text = paint("plaunch: one two", "ERROR")
    assert wrap(text, 16) == text
    assert wrap(text, 12) == text.replace(" two", "\n  two")


@given(st.text(alphabet="ab /\u4e00\n", max_size=80), st.integers(1, 30))
def test_no_word_is_lost_or_broken(text, width):
    broken = wrap(text, width)
    assert broken.split() == text.split()
    for line in broken.split("\n"):
        if count_columns(line) > width:  # a single word, or one that stands far right
            assert len(line.split()) <= 1 or line in text.split("\n")
