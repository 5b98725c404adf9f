"""Functions that return their affinity."""

from __future__ import annotations

import os

AT_IMPORT = os.sched_getaffinity(0)


def look():
    """The affinity when this module was imported, and now."""
    return AT_IMPORT, os.sched_getaffinity(0)
