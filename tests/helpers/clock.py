"""A clock that a test sets, and the time zone that it wants."""

from __future__ import annotations

import time

import pytest


class Clock:
    """Tells `now`, which changes when a test says so."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def utc(monkeypatch):
    """This process is in that time zone; who wants it imports the fixture."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
