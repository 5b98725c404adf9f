"""Fixtures for error files of workers."""

from __future__ import annotations

import json
import os

import pytest


@pytest.fixture
def child_file(tmp_path):
    """Write a worker's error file."""

    def write(data, mtime=None):
        path = tmp_path / "child.json"
        text = data if isinstance(data, (str, bytes)) else json.dumps(data)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        if mtime is not None:
            os.utime(path, (mtime, mtime))
        return str(path)

    return write
