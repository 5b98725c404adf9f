"""Fixtures of these tests: folders that look like site-packages, and what plugins wait for."""

from __future__ import annotations

import threading

import pytest

from helpers.site import checked_in, own_metadata, site

__all__ = ["checked_in", "own_metadata", "site"]


@pytest.fixture
def gate():
    """Is opened at the end, so that no thread of a test stays."""
    opened = threading.Event()
    yield opened
    opened.set()
