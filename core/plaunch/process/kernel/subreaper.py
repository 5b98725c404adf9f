"""Makes this process inherit the orphans among its descendants."""

from __future__ import annotations

import sys

_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> bool:
    """Make the orphans among the descendants of this process its children.

    This lasts until the process ends and is not inherited. Only for the command line and function
    workers: a user's program would not expect children that it has not started.

    Returns:
        Whether it succeeded; only Linux can.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        import ctypes  # as above

        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False  # no C library, or one without prctl
