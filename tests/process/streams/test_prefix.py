"""Prefixes that tell the time."""

from __future__ import annotations

import time

import pytest
from plaunch.process.streams.lines import MatchesToFile, Prefix

from helpers.clock import Clock
from helpers.sinks import Plain
from helpers.teed import Teed


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_the_time_is_iso_with_milliseconds_wherever_it_is_asked_for():
    clock = Clock(0.0)
    prefix = Prefix("${time} [0] ${time}|", clock)
    assert prefix() == b"1970-01-01T00:00:00.000 [0] 1970-01-01T00:00:00.000|"
    clock.now = 86399.9996
    assert prefix() == b"1970-01-01T23:59:59.999 [0] 1970-01-01T23:59:59.999|"


def test_a_prefix_without_the_time_is_just_bytes():
    assert Prefix("[é0]:")() == "[é0]:".encode()


def test_a_prefix_with_the_time_is_made_for_each_piece():
    clock = Clock(1.0)
    lines = Teed(Prefix("${time} ", clock))
    assert lines.feed(b"one\ntwo") == b"1970-01-01T00:00:01.000 one\n"
    clock.now = 2.5
    assert lines.feed(b"!\nthree\n") == (
        b"1970-01-01T00:00:02.500 two!\n1970-01-01T00:00:02.500 three\n"
    )


def test_matching_lines_tell_the_time_too():
    written = []
    MatchesToFile(Prefix("${time}|"), [b"loss"], Plain(written.append)).write(b"epoch\nloss 1\n")
    stamp, _, text = written[0].partition(b"|")
    assert (len(stamp), text) == (len("1970-01-01T00:00:01.000"), b"loss 1\n")


def test_a_line_end_in_it_does_not_break_the_line():
    lines = Teed(Prefix("a\nb\rc:"))
    assert lines.feed(b"one\ntwo\n") == b"a b c:one\na b c:two\n"
