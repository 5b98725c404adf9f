"""The form of what the launcher says: text, colours, JSON."""

from __future__ import annotations

import datetime
import io
import json
import os
import re
import sys

import pytest
from plaunch.cli.form import Form
from plaunch_report.colors import paint

SEQUENCE = re.compile(r"\x1b\[[0-9;]+m")
RED = "31m"


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def form(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    return Form()


def test_text_has_a_prefix(form):
    assert form("one\ntwo", "INFO") == "plaunch: one\ntwo"


def test_an_object_a_line(form):
    form.choose("json", "always")
    form.run_id = "job17"
    line = form("one\ntwo", "WARNING", 1700000000.25)
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250000+00:00",
        "version": 1,
        "level": "WARNING",
        "run_id": "job17",
        "host": os.uname().nodename,
        "message": "one\ntwo",
    }


def test_what_is_said_now_has_the_time_of_now_and_no_run_id_before_there_is_one(form):
    form.run_id = "of the launch before"
    form.choose("json", "auto")
    before = datetime.datetime.now(datetime.timezone.utc)
    told = json.loads(form("x", "ERROR"))
    assert before <= datetime.datetime.fromisoformat(told["time"])
    assert told["run_id"] is None


@pytest.mark.parametrize(
    ("argv", "environ", "is_json"),
    [
        (["--log-format=json", "--nope"], {}, True),
        (["--log-format", "json", "--nope"], {}, True),
        (["--nope"], {"PET_LOG_FORMAT": "json"}, True),
        (["--nope", "json"], {"PET_LOG_FORMAT": "text"}, False),
        ([], {}, False),
    ],
)
def test_what_is_wrong_with_a_command_line_has_the_form_that_it_asks_for(
    form, argv, environ, is_json
):
    form.guess(argv, environ)
    assert form.is_json == is_json


@pytest.mark.parametrize(
    ("color", "stream", "environ", "is_colored"),
    [
        ("auto", Screen(), {}, True),
        ("auto", io.StringIO(), {}, False),
        ("auto", None, {}, False),
        ("auto", Screen(), {"TERM": "dumb"}, False),
        ("auto", Screen(), {"NO_COLOR": "1"}, False),
        ("auto", Screen(), {"NO_COLOR": ""}, True),
        ("auto", io.StringIO(), {"FORCE_COLOR": "1"}, True),
        ("auto", io.StringIO(), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ("never", Screen(), {"FORCE_COLOR": "1"}, False),
        ("always", io.StringIO(), {"NO_COLOR": "1"}, True),
    ],
)
def test_when_there_are_colours(form, monkeypatch, color, stream, environ, is_colored):
    monkeypatch.setattr(sys, "stderr", stream)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    form.choose("text", color)
    assert ("\x1b" in form("rank 3", "ERROR")) == is_colored


def test_a_stderr_that_is_closed_has_no_colours(form, monkeypatch):
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    assert form("rank 3", "ERROR") == "plaunch: rank 3"


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
