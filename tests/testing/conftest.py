from __future__ import annotations

import os
import subprocess
import sys

import pytest
from plaunch_rendezvous_etcd.testing.fixtures import etcd_server  # noqa: F401 - a fixture

CHECK_TIMEOUT = 110.0  # seconds


@pytest.fixture
def check(tmp_path):
    """Runs plaunch in a folder that is on its path, with a module `faulty` in it."""

    def run(*argv, source="", **environ):
        (tmp_path / "faulty.py").write_text(source)
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PET_", "PLAUNCH_"))
        }
        return subprocess.run(
            [sys.executable, "-m", "plaunch", *argv],
            cwd=tmp_path,
            env={**inherited, "PYTHONPATH": str(tmp_path), **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CHECK_TIMEOUT,
            check=False,
        )

    return run
