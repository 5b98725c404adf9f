"""What the tests of failures share: error files, read and written."""

from __future__ import annotations

import faulthandler
import json
import os

import pytest


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


@pytest.fixture
def child_file(tmp_path):
    """Write what a worker has written."""

    def write(data, mtime=None):
        path = tmp_path / "child.json"
        text = data if isinstance(data, (str, bytes)) else json.dumps(data)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        if mtime is not None:
            os.utime(path, (mtime, mtime))
        return str(path)

    return write
