"""Checks of shared memory and of the memory that workers may use."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from plaunch.doctor import Finding, Status
from plaunch.numbers import format_bytes
from plaunch.process import group_paths

from plaunch_doctor.capacity import group_files
from plaunch_doctor.sizes import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch_doctor.capacity import System
    from plaunch_doctor.context import NodeContext

# Bytes for one worker: in shared memory, NCCL's buffers, and a few batches of a DataLoader; in
# memory, a process that has imported torch.
SHARED_LEAST, SHARED_GOOD = 32 * MIB, 256 * MIB
WORKER_MEMORY = 512 * MIB
_HUGE = 1 << 60  # control groups version 1 express "no limit" as a number near 2**63


def check_shared_memory(context: NodeContext) -> Iterator[Finding]:
    """Compare the free space in /dev/shm with what the workers of this node need."""
    what, nproc = "shared memory", context.nproc
    folder = context.path("/dev/shm")  # noqa: S108 - only inspected
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
    """Check the available memory, the control group's limit, and its OOM kills."""
    nproc = context.nproc
    node, groups = read_node_memory(context), read_group_memory(context)
    said = ["the system does not report how much is available"]
    if node is not None:
        said = [f"{format_bytes(node.available)} available of {format_bytes(node.whole)}"]
    if groups:
        limit, left = min(groups)
        said.append(
            f"the control group allows {format_bytes(limit)}, {format_bytes(limit - left)} used"
        )
    needed = nproc * WORKER_MEMORY
    known = groups if node is None else [node, *groups]
    short = any(memory.available < needed for memory in known)
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


class Memory(NamedTuple):
    """The memory of a node or of a control group, in bytes."""

    whole: int
    available: int


def read_memory(system: System) -> Memory | None:
    """Return the memory that this process may use; None if unknown."""
    node = read_node_memory(system)
    if node is None:
        return None
    return min([node, *read_group_memory(system)], key=lambda memory: memory.available)


def read_node_memory(system: System) -> Memory | None:
    """Return the memory of this node; None if unknown."""
    info: dict[str, int] = {}
    for line in system.read("/proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if rest.split()[:1] and rest.split()[0].isdecimal():
            info[name] = int(rest.split()[0]) * 1024
    if "MemTotal" not in info or "MemAvailable" not in info:
        return None
    return Memory(info["MemTotal"], info["MemAvailable"])


def read_group_memory(system: System) -> list[Memory]:
    """Return the memory of this process's control group and its parents, where limited."""
    groups = system.read("/proc/self/cgroup")
    limits = group_paths(groups, "memory", "memory.max", "memory.limit_in_bytes")
    uses = group_paths(groups, "memory", "memory.current", "memory.usage_in_bytes")
    found: list[Memory] = []
    for limit_path, use_path in zip(limits, uses, strict=True):
        limit, use = system.read(limit_path), system.read(use_path)
        if limit.isdecimal() and use.isdecimal() and int(limit) < _HUGE:
            # The page cache counts as used, although the kernel reclaims it when needed.
            cache = _inactive_files(system.read(f"{os.path.dirname(use_path)}/memory.stat"))
            used = max(int(use) - cache, 0)
            found.append(Memory(int(limit), max(int(limit) - used, 0)))
    return found


def _inactive_files(stat: str) -> int:
    values = dict(line.split(maxsplit=1) for line in stat.splitlines() if " " in line)
    text = values.get("total_inactive_file", values.get("inactive_file", "0"))
    return int(text) if text.isdecimal() else 0
