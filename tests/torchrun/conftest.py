"""Fixtures of these tests: folders that look like site-packages, and error files."""

from __future__ import annotations

import faulthandler

import pytest

from helpers.error_files import child_file
from helpers.site import checked_in, own_metadata, site

__all__ = ["checked_in", "child_file", "own_metadata", "site"]


@pytest.fixture
def enabled(monkeypatch):
    """How faulthandler was turned on; pytest keeps its own."""
    calls = []
    monkeypatch.setattr(faulthandler, "enable", lambda **kwargs: calls.append(kwargs))
    return calls


@pytest.fixture
def error_file(tmp_path, monkeypatch, enabled):
    """Where this process writes, as a worker's does."""
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    return path
