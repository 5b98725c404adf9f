"""A folder for the sockets of one test's launches; a conftest imports the fixture."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def runtime_dir():
    """The path of a folder that does not exist yet; short, because socket paths are limited."""
    with tempfile.TemporaryDirectory(prefix="pt", dir="/tmp") as folder:
        yield Path(folder) / "run"
