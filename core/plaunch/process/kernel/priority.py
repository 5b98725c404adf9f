"""Raises the priority of the launcher, so that it handles signals in time on a busy machine."""

from __future__ import annotations

import os
import sys

_HIGHEST = -20


def raise_priority() -> bool:
    """Give the calling thread the highest priority, but not the processes that it starts.

    Only root, or a process with CAP_SYS_NICE, may do so. New processes and threads get the usual
    priority (SCHED_RESET_ON_FORK). A priority that the user has set is kept.

    Returns:
        Whether the priority is raised.
    """
    if not sys.platform.startswith("linux") or os.getpriority(os.PRIO_PROCESS, 0) != 0:
        return False
    try:
        if os.sched_getscheduler(0) != os.SCHED_OTHER:
            return False
        # First, so that no child can inherit the priority.
        policy = os.SCHED_OTHER | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, policy, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, 0, _HIGHEST)
    except OSError:
        return False
    return True
