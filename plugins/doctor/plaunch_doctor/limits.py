"""Checks of this user's limits: open files, processes, core files, locked memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.doctor import Finding, Status
from plaunch.numbers import format_bytes

from plaunch_doctor.capacity import find_process_limits
from plaunch_doctor.machine import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch_doctor.context import NodeContext

# Descriptors of the launcher: a base, and for each worker. Descriptors of a worker: a base, and for
# each rank that it is connected to.
_OWN_FILES, _FILES_PER_WORKER = 64, 8
_WORKER_FILES, _FILES_PER_RANK = 512, 4
_THREADS_PER_WORKER = 32  # with torch, gloo or NCCL, before any DataLoader


def check_open_files(context: NodeContext) -> Iterator[Finding]:
    """Compare the limit on open files with the needs of the launcher and of a worker."""
    what = "open files"
    soft, hard = context.machine.limit("RLIMIT_NOFILE")
    said = f"limit {_say(soft)}, may be raised to {_say(hard)}"
    launcher = _OWN_FILES + _FILES_PER_WORKER * context.nproc
    ranks = context.nproc * context.max_nodes
    worker = _WORKER_FILES + _FILES_PER_RANK * ranks
    wanted = max(launcher, worker)
    advice = f"ulimit -n {wanted if hard in (UNLIMITED,) or hard >= wanted else hard}"
    if hard != UNLIMITED and hard < wanted:
        advice += (
            "; for more, raise the hard limit (limits.conf, docker --ulimit nofile=65536:65536)"
        )
    if soft != UNLIMITED and soft < launcher:
        yield Finding(Status.PROBLEM, what, f"{said}; the launcher needs about {launcher}", advice)
    elif soft != UNLIMITED and soft < worker:
        yield Finding(
            Status.WARNING,
            what,
            f"{said}; a worker that talks to {ranks} rank(s) may need about {worker}",
            advice,
        )
    else:
        yield Finding(Status.OK, what, said)


def check_processes(context: NodeContext) -> Iterator[Finding]:
    """Check the limits on processes and threads, of this user and of the control group."""
    what = "processes"
    needed = _THREADS_PER_WORKER * context.nproc
    soft, _ = context.machine.limit("RLIMIT_NPROC")
    limits = list(find_process_limits(context, context.machine.user, soft))
    if not limits:
        yield Finding(Status.OK, what, "no limit")
        return
    nearest = min(limits, key=lambda limit: limit.left)
    if nearest.left < needed:
        yield Finding(
            Status.WARNING if nearest.left > context.nproc * 2 else Status.PROBLEM,
            what,
            f"{nearest}; {context.nproc} worker(s) need about {needed}",
            "raise it (limits.conf, docker --pids-limit, the pod's limit), or end what is there",
        )
    else:
        yield Finding(Status.OK, what, str(nearest))


def check_core_files(context: NodeContext) -> Iterator[Finding]:
    """Report whether and where crashing workers write core files."""
    soft, _ = context.machine.limit("RLIMIT_CORE")
    pattern = context.read("/proc/sys/kernel/core_pattern")
    if soft == 0 and not pattern.startswith("|"):
        said = "none are written (ulimit -c 0)"
    elif pattern.startswith("|"):
        said = f"crashes are handed to {pattern[1:].split(' ')[0]}"
    else:
        said = (
            f"up to {'any size' if soft == UNLIMITED else format_bytes(soft)} for each worker that "
            f"crashes, at {pattern or 'core'!r}"
        )
    yield Finding(Status.OK, "core files", said)


def check_locked_memory(context: NodeContext) -> Iterator[Finding]:
    """Check the limit on locked memory on nodes with InfiniBand, where NCCL locks its buffers."""
    devices = context.list("/sys/class/infiniband")
    soft, _ = context.machine.limit("RLIMIT_MEMLOCK")
    if not devices:
        return
    said = (
        f"limit {_say(soft) if soft == UNLIMITED else format_bytes(soft)}, {len(devices)} device(s)"
    )
    if soft == UNLIMITED:
        yield Finding(Status.OK, "locked memory", said)
    else:
        yield Finding(
            Status.WARNING,
            "locked memory",
            said,
            "ulimit -l unlimited (limits.conf, docker --ulimit memlock=-1): NCCL over InfiniBand "
            "registers its buffers",
        )


def _say(value: int) -> str:
    return "none" if value == UNLIMITED else str(value)
