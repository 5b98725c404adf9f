"""A folder for the sockets of launches, of one test alone; a conftest imports the fixture."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def runtime_dir():
    """The path of a folder that is not there yet; short, as the paths of sockets must be."""
    with tempfile.TemporaryDirectory(prefix="pt", dir="/tmp") as folder:
        yield Path(folder) / "run"
