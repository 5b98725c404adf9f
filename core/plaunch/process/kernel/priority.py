"""The launcher's own priority, so that it acts on signals in time on a busy machine."""

from __future__ import annotations

import os
import sys

_HIGHEST = -20


def raise_priority() -> bool:
    """Give the calling thread the highest priority, but not what it starts from now on.

    Only root, or a process with CAP_SYS_NICE, may do so. The kernel gives new processes and
    threads the usual priority again (SCHED_RESET_ON_FORK). A priority that the user has set stays.

    Returns:
        Whether the priority is raised.
    """
    if not sys.platform.startswith("linux") or os.getpriority(os.PRIO_PROCESS, 0) != 0:
        return False
    try:
        if os.sched_getscheduler(0) != os.SCHED_OTHER:
            return False
        # First, so that there is no moment in which a child would inherit the priority.
        policy = os.SCHED_OTHER | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, policy, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, 0, _HIGHEST)
    except OSError:
        return False
    return True
