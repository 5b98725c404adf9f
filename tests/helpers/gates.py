"""An event on which threads of a test wait; a conftest imports the fixture."""

from __future__ import annotations

import threading

import pytest


@pytest.fixture
def gate():
    """An event that is set at the end, so that no thread is left."""
    opened = threading.Event()
    yield opened
    opened.set()
