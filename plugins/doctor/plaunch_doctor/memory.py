"""Shared memory, and the memory that the workers may use."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plaunch.doctor import Finding, Status
from plaunch.numbers import format_bytes

from plaunch_doctor.capacity import group_files
from plaunch_doctor.units import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch_doctor.context import NodeContext

# What one worker needs at least, in bytes: NCCL's buffers and a few batches of a DataLoader's; and
# a process that has imported torch.
SHARED_LEAST, SHARED_GOOD = 32 * MIB, 256 * MIB
WORKER_MEMORY = 512 * MIB
_HUGE = 1 << 60  # version 1 of control groups says "no limit" with a number near 2**63


def check_shared_memory(context: NodeContext) -> Iterator[Finding]:
    """The room in /dev/shm, against what the workers of this node need."""
    what, nproc = "shared memory", context.nproc
    folder = context.path("/dev/shm")  # noqa: S108 - looked at only
    if not os.path.isdir(folder):
        yield Finding(
            Status.WARNING,
            what,
            "there is no /dev/shm",
            "mount a tmpfs there: DataLoader workers, NCCL and gloo share memory in it",
        )
        return
    space = context.machine.space(folder)
    said = f"{format_bytes(space.free)} free of {format_bytes(space.total)} in /dev/shm"
    advice = (
        f"make it {format_bytes(max(nproc * SHARED_GOOD, GIB))} or more: docker run --ipc=host or "
        "--shm-size, in Kubernetes an emptyDir with medium: Memory at /dev/shm; remove files that "
        "dead jobs left there"
    )
    if space.free < nproc * SHARED_LEAST:
        yield Finding(Status.PROBLEM, what, f"{said}, too little for {nproc} worker(s)", advice)
    elif space.free < nproc * SHARED_GOOD:
        yield Finding(
            Status.WARNING,
            what,
            f"{said}, little for {nproc} worker(s) with DataLoaders",
            advice,
        )
    else:
        yield Finding(Status.OK, what, said)


def check_memory(context: NodeContext) -> Iterator[Finding]:
    """Free memory, the control group's limit, and what the kernel has killed for lack of it."""
    nproc = context.nproc
    info = {
        name: int(rest.split()[0]) * 1024
        for name, colon, rest in (
            line.partition(":") for line in context.read("/proc/meminfo").splitlines()
        )
        if colon and rest.split() and rest.split()[0].isdecimal()
    }
    free = info.get("MemAvailable", _HUGE)
    said = [f"{format_bytes(free)} available of {format_bytes(info.get('MemTotal', 0))}"]
    if free == _HUGE:
        said = ["the system does not report how much is available"]
    for limit, used in _limits(context):
        if limit < _HUGE:
            said.append(
                f"the control group allows {format_bytes(limit)}, {format_bytes(used)} used"
            )
            free = min(free, max(limit - used, 0))
    needed = nproc * WORKER_MEMORY
    short = free < needed
    yield Finding(
        Status.WARNING if short else Status.OK,
        "memory",
        "; ".join(said),
        f"{nproc} worker(s) that import torch need about {format_bytes(needed)}: give the job more "
        "memory, or start fewer workers"
        if short
        else "",
    )
    killed = 0
    for text in group_files(context, "memory", "memory.events", "memory.oom_control")[:1]:
        for line in text.splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill" and number.isdecimal():
                killed = int(number)
    if killed:
        yield Finding(
            Status.WARNING,
            "out of memory",
            f"the kernel has killed {killed} process(es) of this control group for lack of memory",
            "give the job more memory; such workers end with SIGKILL (exit code 137)",
        )


def _limits(context: NodeContext) -> list[tuple[int, int]]:
    """Limit and use of this process's control group, and of those above it that have a limit."""
    limits = group_files(context, "memory", "memory.max", "memory.limit_in_bytes")
    used = group_files(context, "memory", "memory.current", "memory.usage_in_bytes")
    found = [
        (int(limit), int(use))
        for limit, use in zip(limits, used, strict=False)
        if limit.isdecimal() and use.isdecimal()
    ]
    return sorted(found)[:1]
