"""Programs in Python that a test runs to their end."""

from __future__ import annotations

import subprocess
import sys

BOUND = 60.0  # seconds


def run_python(*arguments, timeout=BOUND, check=False, **options):
    """Run `python ARGUMENTS`; the result has the exit code, and what was printed, as text.

    Options are those of `subprocess.run`.
    """
    command = [sys.executable, *map(str, arguments)]
    wanted = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, **options}
    return subprocess.run(command, timeout=timeout, check=check, **wanted)
