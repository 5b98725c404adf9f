"""A launch where /proc does not show processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from helpers.waiting import BOUND

SCRIPT = """\
mount -t tmpfs tmpfs /proc
"$0" -m plaunch --no-python touch "$1/started"
"""


@pytest.mark.needs("mounts")
def test_nothing_is_started(tmp_path):
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", SCRIPT, sys.executable, tmp_path],
        check=False,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert done.returncode == 2, done.stderr
    assert "/proc does not show processes here, and plaunch finds those of workers" in done.stderr
    assert list(tmp_path.iterdir()) == []
