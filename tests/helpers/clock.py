"""A clock and a time zone that a test sets."""

from __future__ import annotations

import time

import pytest


class Clock:
    """A clock that returns `now`, which the test sets."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let some seconds pass; sleeps for code that waits."""
        self.now += seconds


@pytest.fixture
def utc(monkeypatch):
    """Set this process's time zone; tests import the fixture."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
