"""Teed lines as JSON."""

from __future__ import annotations

import json

import pytest
from plaunch_logs_default.streams.json_lines import JsonLinesToConsole, LineFormat
from plaunch_logs_default.streams.lines import MatchesToFile

from helpers.clock import Clock

TEMPLATE = '{"time": ${utc}, "rank": 3, "stream": ${stream}, "message": ${line}}'
TIME = "1970-01-01T00:00:01.500000+00:00"


class Console:
    """Records what is put on it, piece by piece."""

    def __init__(self):
        self.pieces = []

    def put(self, data, owner):
        del owner
        self.pieces.append(data)


def form(**more):
    return LineFormat(TEMPLATE, "stderr", clock=Clock(1.5), **more)


def messages(pieces):
    return [json.loads(line)["message"] for line in b"".join(pieces).splitlines()]


def test_a_line_has_its_time_and_stream():
    told = {"time": TIME, "rank": 3, "stream": "stderr", "message": 'a "b" \\ ${utc}'}
    assert json.loads(form()([b'a "b" \\ ${utc}'])) == told


def test_an_unknown_time_is_null():
    assert json.loads(form(is_delayed=True)([b"a"]))["time"] is None


def test_invalid_utf8_becomes_backslash_escapes():
    assert messages([form()([b"\xff\xc3\xa9\x00"])]) == ["\\xff\u00e9\0"]


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([b"one\ntw", b"o\nthree"], ["one", "two", "three"]),
        ([b"1%\r2%\r3%", b"\n"], ["1%", "2%", "3%"]),
        ([b"one\r", b"\ntwo\r\n"], ["one", "two"]),
        ([b"one\r", b"two"], ["one", "two"]),
        ([b"\n\n"], ["", ""]),
        ([b"x" * 30, b"y\n"], ["x" * 30, "y"]),  # longer than `max_line`
        ([b"a\x0bb\x85c\xe2\x80\xa8d\n"], ["a\x0bb\\x85c\u2028d"]),  # line ends of `str.splitlines`
    ],
)
def test_lines_are_whole(pieces, lines):
    console = Console()
    sink = JsonLinesToConsole(form(), console, max_line=20)
    for piece in pieces:
        sink.write(piece)
    sink.close()
    sink.close()
    assert messages(console.pieces) == lines
    assert all(piece.endswith(b"\n") for piece in console.pieces)


def test_matching_lines_are_json_too():
    written = []

    class File:
        write = written.append

    sink = MatchesToFile(form(), [b"loss"], File())
    sink.write(b"epoch 1\nloss 0.3\nepoch 2\nloss")
    sink.close()
    assert messages(written) == ["loss 0.3", "loss"]
