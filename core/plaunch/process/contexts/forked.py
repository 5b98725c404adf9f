"""The first steps of a worker that was forked, and not executed."""

from __future__ import annotations

import contextlib
import os

from plaunch.process.kernel.processes import find_identity
from plaunch.process.kernel.subreaper import become_subreaper
from plaunch.process.kernel.title import blank_variables, set_title
from plaunch.process.launcher_variables import is_secret
from plaunch.process.stopping.guard.protocol import process_line


def become_worker(local_rank: int, *, tags: str | None = None, guard_fd: int | None = None) -> None:
    """Make this process a worker: leader of a session, and known to the launcher and its guard.

    Called once, in the new process, before it runs any of the user's code.

    Args:
        local_rank: the local rank of the worker.
        tags: its value of `JOBS_VARIABLE`; None if it already has that.
        guard_fd: the pipe to the guard, to which the worker reports itself, as the launcher may be
            gone by now. It is closed. None if the worker already has its tags.
    """
    if os.getsid(0) != os.getpid():
        os.setsid()
    if tags is not None:
        set_title(f"worker {local_rank} {tags}", tags, tags.rpartition(":")[2])
        blank_variables(is_secret)
    become_subreaper()  # otherwise, its orphans cannot be found while it runs
    if guard_fd is not None:
        # The guard waits as long as a process holds the pipe. So the worker closes it only when the
        # guard can find the worker.
        with contextlib.suppress(OSError):  # the guard may be gone, too
            os.write(guard_fd, process_line(local_rank, *find_identity(os.getpid())))
        os.close(guard_fd)
