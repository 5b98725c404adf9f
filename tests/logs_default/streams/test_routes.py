from __future__ import annotations

import os

import pytest
from plaunch_logs_default.streams.routes import Route, RouteKind, choose_route

NULL = os.devnull


@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize(
    ("path", "tee_path", "route"),
    [
        ("a.log", None, Route(RouteKind.FILE, "a.log", is_shown=False)),
        ("a.log", "", Route(RouteKind.FILE, "a.log", is_shown=False)),
        ("a.log", "a.log", Route(RouteKind.TEE, "a.log")),
        ("a.log", NULL, Route(RouteKind.TEE, "a.log")),
        (NULL, "a.log", Route(RouteKind.TEE, "a.log")),
        (NULL, NULL, Route(RouteKind.TEE)),
        ("", NULL, Route(RouteKind.TEE)),
        ("", "", Route(RouteKind.TEE)),
        ("a.log", "b.log", Route(RouteKind.FILE, "a.log", is_shown=False, tail="b.log")),
    ],
)
def test_a_redirected_or_teed_stream(path, tee_path, route, capture):
    assert choose_route(path, tee_path, capture=capture) == route


@pytest.mark.parametrize(
    ("path", "tee_path", "capture", "route"),
    [
        ("", None, False, Route(RouteKind.INHERIT)),
        ("", None, True, Route(RouteKind.CAPTURE)),
        (NULL, None, False, Route(RouteKind.FILE, NULL, is_shown=False)),
        (NULL, None, True, Route(RouteKind.CAPTURE, is_shown=False)),
        ("", "b.log", False, Route(RouteKind.INHERIT, tail="b.log")),
        ("", "b.log", True, Route(RouteKind.CAPTURE, tail="b.log")),
    ],
)
def test_a_stream_without_a_file(path, tee_path, capture, route):
    assert choose_route(path, tee_path, capture=capture) == route
