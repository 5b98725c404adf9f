"""What threads of a test wait at; a conftest whose tests need one imports the fixture."""

from __future__ import annotations

import threading

import pytest


@pytest.fixture
def gate():
    """Is opened at the end, so that no thread of a test stays."""
    opened = threading.Event()
    yield opened
    opened.set()
