from __future__ import annotations

import os

import pytest
from plaunch_logs_default.streams.routes import Route, Way, choose_route

NULL = os.devnull


@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize(
    ("path", "tee_path", "route"),
    [
        ("a.log", None, Route(Way.FILE, "a.log", is_shown=False)),
        ("a.log", "", Route(Way.FILE, "a.log", is_shown=False)),
        ("a.log", "a.log", Route(Way.TEE, "a.log")),
        ("a.log", NULL, Route(Way.TEE, "a.log")),
        (NULL, "a.log", Route(Way.TEE, "a.log")),
        (NULL, NULL, Route(Way.TEE)),
        ("", NULL, Route(Way.TEE)),
        ("", "", Route(Way.TEE)),
        ("a.log", "b.log", Route(Way.FILE, "a.log", is_shown=False, tail="b.log")),
    ],
)
def test_a_redirected_or_teed_stream(path, tee_path, route, capture):
    assert choose_route(path, tee_path, capture=capture) == route


@pytest.mark.parametrize(
    ("path", "tee_path", "capture", "route"),
    [
        ("", None, False, Route(Way.INHERIT)),
        ("", None, True, Route(Way.CAPTURE)),
        (NULL, None, False, Route(Way.FILE, NULL, is_shown=False)),
        (NULL, None, True, Route(Way.CAPTURE, is_shown=False)),
        ("", "b.log", False, Route(Way.INHERIT, tail="b.log")),
        ("", "b.log", True, Route(Way.CAPTURE, tail="b.log")),
    ],
)
def test_a_stream_that_has_no_file(path, tee_path, capture, route):
    assert choose_route(path, tee_path, capture=capture) == route
