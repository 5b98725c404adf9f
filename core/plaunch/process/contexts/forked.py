"""What a process does first that is a worker, but was not started as a program of its own."""

from __future__ import annotations

import contextlib
import os

from plaunch.process.kernel.processes import find_identity
from plaunch.process.kernel.subreaper import become_subreaper
from plaunch.process.kernel.title import blank_variables, set_title
from plaunch.process.launcher_variables import is_secret
from plaunch.process.stopping.guard.protocol import process_line


def become_worker(local_rank: int, *, tags: str | None = None, guard_fd: int | None = None) -> None:
    """Lead a session of its own, and be found by the launcher and its guard.

    Called once, in the process that is to be the worker, before it does anything of the user's.

    Args:
        local_rank: the worker's.
        tags: the value of `JOBS_VARIABLE` that it is to have; None if it was started with that.
        guard_fd: through which it makes itself known to the guard, for the launcher may be gone by
            now; it is closed. None if it was started with its tags.
    """
    if os.getsid(0) != os.getpid():
        os.setsid()
    if tags is not None:
        set_title(f"worker {local_rank} {tags}", tags, tags.rpartition(":")[2])
        blank_variables(is_secret)
    become_subreaper()  # else nobody would know of its orphans as long as it lives
    if guard_fd is not None:
        # The guard waits for as long as somebody holds the line, so that a worker lets go of it
        # only when it can be found.
        with contextlib.suppress(OSError):  # the guard may be gone, too
            os.write(guard_fd, process_line(local_rank, *find_identity(os.getpid())))
        os.close(guard_fd)
