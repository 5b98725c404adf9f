"""Functions that return at different times."""

from __future__ import annotations

import os
import sys
import time


def return_when(mine, others, code=0):
    """Say that this worker is up, wait for a file, and return, or exit with a code."""
    with open(mine, "w"):
        pass
    while others and not os.path.exists(others):
        time.sleep(0.01)
    if code:
        sys.exit(code)
    return os.getpid()
