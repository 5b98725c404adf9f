from __future__ import annotations

import os

import pytest
from plaunch_rendezvous_etcd.testing.fixtures import etcd_server  # noqa: F401 - a fixture

from helpers.programs import run_python

CHECK_TIMEOUT = 110.0  # seconds


@pytest.fixture
def check(tmp_path):
    """Runs plaunch in a folder on its path, with a module `faulty` in it."""

    def run(*argv, source="", **environ):
        (tmp_path / "faulty.py").write_text(source)
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PET_", "PLAUNCH_"))
        }
        return run_python(
            "-m",
            "plaunch",
            *argv,
            cwd=tmp_path,
            env={**inherited, "PYTHONPATH": str(tmp_path), **environ},
            timeout=CHECK_TIMEOUT,
        )

    return run
