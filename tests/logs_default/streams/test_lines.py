from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plaunch_logs_default.streams.lines import MatchesToFile, Prefix

from helpers.clock import Clock, utc  # noqa: F401 - a fixture
from helpers.sinks import Plain
from helpers.teed import Teed

P = b"[r0]:"


def make_prefix():
    return P


def prefixed(*pieces, max_line=1 << 20):
    lines = Teed(make_prefix, max_line)
    return b"".join(lines.feed(piece) for piece in pieces) + lines.end()


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ([], b""),
        ([b""], b""),
        ([b"one\n"], b"[r0]:one\n"),
        ([b"one\ntwo\n"], b"[r0]:one\n[r0]:two\n"),
        ([b"\n\n"], b"[r0]:\n[r0]:\n"),
        ([b"on", b"e\ntw", b"o\n"], b"[r0]:one\n[r0]:two\n"),
        ([b"no line end"], b"[r0]:no line end\n"),
        ([b"one\nno line end"], b"[r0]:one\n[r0]:no line end\n"),
        ([b"\xff\xfe\x00\n"], b"[r0]:\xff\xfe\x00\n"),
        ([b"dos\r\nline\r\n"], b"[r0]:dos\r\n[r0]:line\r\n"),
        ([b"dos\r", b"\nline\r\n"], b"[r0]:dos\r\n[r0]:line\r\n"),
        ([b"10%\r20%\r\n"], b"[r0]:10%\r[r0]:20%\r\n"),
        ([b"10%\r", b"20%\r", b"done\n"], b"[r0]:10%\r[r0]:20%\r[r0]:done\n"),
        ([b"\r10%", b"\r20%", b"\n"], b"[r0]:\r[r0]:10%\r[r0]:20%\n"),
        ([b"10%\r"], b"[r0]:10%\r\n"),
        ([b"10%\r20%"], b"[r0]:10%\r[r0]:20%\n"),
        ([b"[r0]:\r[r0]:\n"], b"[r0]:[r0]:\r[r0]:[r0]:\n"),
    ],
)
def test_every_line_gets_its_prefix(pieces, shown):
    assert prefixed(*pieces) == shown


def test_only_complete_lines_are_shown():
    lines = Teed(make_prefix)
    assert lines.feed(b"half") == b""
    assert lines.feed(b" whole\nnext") == b"[r0]:half whole\n"
    assert lines.unfinished() == b"[r0]:next"
    assert lines.feed(b"\n") == b"[r0]:next\n"
    assert lines.unfinished() == b""


@pytest.mark.parametrize(
    ("pieces", "is_bar"),
    [
        ([b"text"], False),
        ([b"text\n"], False),
        ([b"10%\r"], True),
        ([b"\r10%"], True),
        ([b"\r10%", b" of 3"], True),
        ([b"\r10%", b"\n"], False),
        ([b"\r10%", b"\nloading"], False),
        ([b"dos\r", b"\nloading"], False),
        ([b"\r10%\nloading"], False),
    ],
)
def test_a_carriage_return_marks_a_progress_bar(pieces, is_bar):
    lines = Teed(make_prefix)
    for piece in pieces:
        lines.feed(piece)
    assert lines.is_bar is is_bar


@pytest.mark.parametrize("text", [b"x" * 25, b"\r" + b"x" * 25])
def test_a_line_without_end_is_shown_in_pieces(text):
    lines = Teed(make_prefix, max_line=10)
    shown = b""
    for byte in text:
        shown += lines.feed(bytes([byte]))
        assert len(lines.unfinished()) <= len(P) + 10
    shown += lines.end()
    assert shown.lstrip(b"[r0]:\r") == b"xxxxxxxxxxx\n[r0]:xxxxxxxxxxx\n[r0]:xxx\n"


def test_an_empty_prefix_changes_nothing():
    text = b"one\r\n\rtwo\rthree\n\n"
    lines = Teed(bytes)
    assert lines.feed(text) + lines.end() == text


PIECES = st.lists(st.text("ab\r\n", max_size=6).map(str.encode), max_size=12)


@given(pieces=PIECES)
def test_the_result_does_not_depend_on_the_pieces(pieces):
    assert prefixed(*pieces) == prefixed(b"".join(pieces))


@given(pieces=PIECES)
def test_without_the_prefixes_the_stream_is_unchanged(pieces):
    text = b"".join(pieces)
    shown = prefixed(*pieces)
    assert shown.replace(P, b"") == text + (b"\n" if text and not text.endswith(b"\n") else b"")


@given(pieces=PIECES)
def test_the_incomplete_line_begins_the_next_output(pieces):
    lines = Teed(make_prefix)
    for piece in pieces:
        unfinished = lines.unfinished()
        shown = lines.feed(piece) or lines.unfinished()
        assert shown.startswith(unfinished)


# --- prefixes with the time -----------------------------------------------------------------------


@pytest.mark.usefixtures("utc")
def test_the_time_is_iso_with_milliseconds():
    clock = Clock(0.0)
    prefix = Prefix("${time} [0] ${time}|", clock)
    assert prefix() == b"1970-01-01T00:00:00.000 [0] 1970-01-01T00:00:00.000|"
    clock.now = 86399.9996
    assert prefix() == b"1970-01-01T23:59:59.999 [0] 1970-01-01T23:59:59.999|"


def test_a_prefix_without_the_time_is_constant():
    assert Prefix("[é0]:")() == "[é0]:".encode()


@pytest.mark.usefixtures("utc")
def test_a_prefix_with_the_time_is_made_for_each_piece():
    clock = Clock(1.0)
    lines = Teed(Prefix("${time} ", clock))
    assert lines.feed(b"one\ntwo") == b"1970-01-01T00:00:01.000 one\n"
    clock.now = 2.5
    assert lines.feed(b"!\nthree\n") == (
        b"1970-01-01T00:00:02.500 two!\n1970-01-01T00:00:02.500 three\n"
    )


def test_matching_lines_have_the_time_too():
    written = []
    prefix = Prefix("${time}|")
    matches = MatchesToFile(prefix.format_lines, [b"loss"], Plain(written.append))
    matches.write(b"epoch\nloss 1\n")
    stamp, _, text = written[0].partition(b"|")
    assert (len(stamp), text) == (len("1970-01-01T00:00:01.000"), b"loss 1\n")


def test_a_line_end_in_it_does_not_break_the_line():
    lines = Teed(Prefix("a\nb\rc:"))
    assert lines.feed(b"one\ntwo\n") == b"a b c:one\na b c:two\n"
