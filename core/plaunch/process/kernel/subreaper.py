"""Becoming the process that inherits the orphans among its descendants."""

from __future__ import annotations

import sys

_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> bool:
    """Let the orphans among the descendants of this process become its children.

    It lasts until the process ends and is not inherited. For processes that belong to plaunch: the
    command line and function workers; a user's program would find children that are not its own.

    Returns:
        Whether the system does it; only Linux can.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        import ctypes  # processes that are plaunch's own

        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False  # no C library to be reached, or one without prctl
