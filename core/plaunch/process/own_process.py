"""What this process changes about itself: limits, priority, orphans, title, becoming a worker."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import sys

from plaunch.process.marks import is_secret
from plaunch.process.proc import PROC, read_proc, read_stat

_HIGHEST_PRIORITY = -20
_PR_SET_CHILD_SUBREAPER = 36


class DescriptorLimit:
    """The limit of this process on open files, and its value before it was raised."""

    def __init__(self) -> None:
        self._before: tuple[int, int] | None = None

    def raise_to_most(self) -> int:
        """Raise the soft limit to the hard one, and return it."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
                self._before = self._before or (soft, hard)
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def give_back(self, pid: int) -> None:
        """Restore the original limit in a child that was just started.

        Programs that use `select`, or close all possible descriptors, rely on a low limit.
        """
        if self._before is not None:
            with contextlib.suppress(OSError, ValueError):  # the child may have ended
                resource.prlimit(pid, resource.RLIMIT_NOFILE, self._before)


@functools.cache
def descriptor_limit() -> DescriptorLimit:
    """Return the limit of this process."""
    return DescriptorLimit()


def raise_descriptor_limit() -> int:
    """Allow this process, but not its workers, as many open files as the system permits.

    Returns:
        The new limit.
    """
    return descriptor_limit().raise_to_most()


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
        os.setpriority(os.PRIO_PROCESS, 0, _HIGHEST_PRIORITY)
    except OSError:
        return False
    return True


def become_subreaper() -> bool:
    """Make the orphans among the descendants of this process its children.

    This lasts until the process ends and is not inherited. Only for the command line and function
    workers: a user's program would not expect children that it has not started.

    Returns:
        Whether it succeeded.
    """
    try:
        import ctypes  # the command line and function workers only

        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False  # no C library, or one without prctl


# Without an execve, a process shows the command line and environment of its parent, and so does the
# memory that has them. Writing there is safe: Python copied both at its start, and the parent has
# its own copy of each page.
_ARGUMENTS, _ENVIRONMENT = 45, 47  # fields of `read_stat`: begin, and then end


def set_title(*candidates: str, proc: str = PROC) -> bool:
    """Show the first of `candidates` that fits; False if none does, or the system refuses."""
    try:
        start, end = _read_range(proc, _ARGUMENTS)
        for candidate in candidates:
            title = candidate.encode("utf-8", "replace")
            if 0 < len(title) < end - start:
                _write_memory(proc, start, title.ljust(end - start, b"\0"))
                return True
    except (OSError, IndexError, ValueError, OverflowError):
        pass  # nothing depends on the title alone
    return False


def hide_secrets(proc: str = PROC) -> None:
    """Hide secrets in `/proc/PID/environ`, unless the system refuses. `os.environ` stays."""
    with contextlib.suppress(OSError, IndexError, ValueError, OverflowError):
        start, end = _read_range(proc, _ENVIRONMENT)
        area = read_proc("self/environ", proc)[: end - start]
        shown = [
            b"\0" * len(entry) if is_secret(os.fsdecode(entry.partition(b"=")[0])) else entry
            for entry in area.split(b"\0")
        ]
        blanked = b"\0".join(shown)
        if blanked != area:
            _write_memory(proc, start, blanked)


def _read_range(proc: str, first: int) -> tuple[int, int]:
    fields = read_stat("self", proc)
    return int(fields[first]), int(fields[first + 1])


def _write_memory(proc: str, address: int, data: bytes) -> None:
    memory = os.open(f"{proc}/self/mem", os.O_WRONLY)
    try:
        os.pwrite(memory, data, address)
    finally:
        os.close(memory)


def become_worker(local_rank: int, *, tags: str | None = None, guard_fd: int | None = None) -> None:
    """Make this process a worker: leader of a session, and known to the launcher and its guard.

    Called once, in the new process, before it runs any of the user's code.

    Args:
        local_rank: the local rank of the worker.
        tags: its value of `JOBS_VARIABLE`; None if it already has that.
        guard_fd: the pipe to the guard, which is closed; None if the worker already has its tags.
    """
    if os.getsid(0) != os.getpid():
        os.setsid()
    if tags is not None:
        set_title(f"worker {local_rank} {tags}", tags, tags.rpartition(":")[2])
        hide_secrets()
    become_subreaper()  # otherwise, its orphans cannot be found while it runs
    if guard_fd is not None:
        # The guard waits as long as a process holds the pipe. So the worker closes it only now,
        # when the guard can find the worker by its title, even if the launcher is gone.
        os.close(guard_fd)
