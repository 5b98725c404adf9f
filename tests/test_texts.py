"""Text from outside, made safe for messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some
from plaunch.texts import (
    MOST_CHARS,
    MOST_LINES,
    printable,
    printable_message,
    printable_output,
)

from helpers.hostile import HOSTILE, assert_harmless


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("host \u00e9 \U0001f600", "host \u00e9 \U0001f600"),
        ("a\tb\u00a0c\u3000d", "a\tb\u00a0c\u3000d"),
        ("a\nb\rc", "a\\nb\\rc"),
        ("\x1b[31m\x9b2J\b\x00", "\\x1b[31m\\x9b2J\\x08\\x00"),
        ("\u202ebidi\u2066\u2028", "\\u202ebidi\\u2066\\u2028"),
        ("\udcff", "\\udcff"),
        ("C:\\x", "C:\\x"),
    ],
)
def test_what_a_terminal_interprets_is_escaped(text, shown):
    assert printable(text) == shown


def test_a_long_text_is_cut_and_says_how_long_it_was():
    assert printable("x" * 1000, 40) == "x" * 19 + "... (1000 characters)"
    assert len(printable("x" * (1 << 20))) == MOST_CHARS


@given(some.text(), some.integers(0, 60))
def test_the_result_is_bounded_and_harmless_and_is_not_changed_again(text, most):
    shown = printable(text, most)
    assert len(shown) <= most
    assert_harmless(shown)
    assert printable(shown, most) == shown


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_is_one_harmless_line(text):
    assert_harmless(printable(text))
    assert "\n" not in printable(text)


def test_a_message_keeps_its_lines_but_none_looks_like_another_message():
    text = "failed:\n    at \x1b[2Jline\nplaunch: the job has succeeded\nend"
    assert printable_message(text) == (
        "failed:\n    at \\x1b[2Jline\n  plaunch: the job has succeeded\nend"
    )


def test_of_very_many_lines_the_rest_is_counted():
    lines = printable_message("x\n" * 5000).split("\n")
    assert len(lines) == MOST_LINES + 1
    assert lines[-1] == f"... and {5001 - MOST_LINES} more lines"


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[1;35mValueError\x1b[0m: bad\n", "ValueError: bad"),
        (" 10%|#   \r 50%|##  \r100%|####", "100%|####"),
        ("\x1b]0;title\x07a\x9b2Jb", "a\\x9b2Jb"),
    ],
)
def test_a_line_of_output_is_what_a_terminal_shows(raw, shown):
    assert printable_output(raw) == shown
