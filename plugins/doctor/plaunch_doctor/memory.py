"""Memory: the doctor's checks, and the health check `memory`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from plaunch.doctor import DoctorContext, Finding, Status
from plaunch.numbers import format_bytes
from plaunch.process import group_paths

from plaunch_doctor.health import CheckDeadline
from plaunch_doctor.limits import group_files
from plaunch_doctor.machine import GIB, MIB, read_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch.health import HealthOccasion
    from plaunch.plugin import PluginContext

    from plaunch_doctor.context import NodeContext

# Bytes for one worker: in shared memory, NCCL's buffers, and a few batches of a DataLoader; in
# memory, a process that has imported torch.
SHARED_LEAST, SHARED_GOOD = 32 * MIB, 256 * MIB
WORKER_MEMORY = 512 * MIB
_HUGE = 1 << 60  # control groups version 1 express "no limit" as a number near 2**63
_WHAT = "memory"
_FLOOR = 0.05  # of the whole; the default
_SLACK = 0.1  # of the whole: loss since the start that is not blamed on workers


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
    text = f"{format_bytes(space.free)} free of {format_bytes(space.total)} in /dev/shm"
    advice = (
        f"make it {format_bytes(max(nproc * SHARED_GOOD, GIB))} or more: docker run --ipc=host or "
        "--shm-size, in Kubernetes an emptyDir with medium: Memory at /dev/shm; remove files that "
        "dead jobs left there"
    )
    if space.free < nproc * SHARED_LEAST:
        yield Finding(Status.PROBLEM, what, f"{text}, too little for {nproc} worker(s)", advice)
    elif space.free < nproc * SHARED_GOOD:
        yield Finding(
            Status.WARNING,
            what,
            f"{text}, little for {nproc} worker(s) with DataLoaders",
            advice,
        )
    else:
        yield Finding(Status.OK, what, text)


def check_memory(context: NodeContext) -> Iterator[Finding]:
    """Check the available memory, the control group's limit, and its OOM kills."""
    nproc = context.nproc
    node, groups = read_node_memory(context), read_group_memory(context)
    parts = ["the system does not report how much is available"]
    if node is not None:
        parts = [f"{format_bytes(node.available)} available of {format_bytes(node.whole)}"]
    if groups:
        limit, left = min(groups)
        parts.append(
            f"the control group allows {format_bytes(limit)}, {format_bytes(limit - left)} used"
        )
    needed = nproc * WORKER_MEMORY
    known = groups if node is None else [node, *groups]
    short = any(memory.available < needed for memory in known)
    yield Finding(
        Status.WARNING if short else Status.OK,
        "memory",
        "; ".join(parts),
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


def read_memory(context: DoctorContext) -> Memory | None:
    """Return the memory that this process may use; None if unknown."""
    node = read_node_memory(context)
    if node is None:
        return None
    return min([node, *read_group_memory(context)], key=lambda memory: memory.available)


def read_node_memory(context: DoctorContext) -> Memory | None:
    """Return the memory of this node; None if unknown."""
    info: dict[str, int] = {}
    for line in context.read("/proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if rest.split()[:1] and rest.split()[0].isdecimal():
            info[name] = int(rest.split()[0]) * 1024
    if "MemTotal" not in info or "MemAvailable" not in info:
        return None
    return Memory(info["MemTotal"], info["MemAvailable"])


def read_group_memory(context: DoctorContext) -> list[Memory]:
    """Return the memory of this process's control group and its parents, where limited."""
    groups = context.read("/proc/self/cgroup")
    limits = group_paths(groups, "memory", "memory.max", "memory.limit_in_bytes")
    uses = group_paths(groups, "memory", "memory.current", "memory.usage_in_bytes")
    found: list[Memory] = []
    for limit_path, use_path in zip(limits, uses, strict=True):
        limit, use = context.read(limit_path), context.read(use_path)
        if limit.isdecimal() and use.isdecimal() and int(limit) < _HUGE:
            # The page cache counts as used, although the kernel reclaims it when needed.
            cache = _inactive_files(context.read(f"{os.path.dirname(use_path)}/memory.stat"))
            used = max(int(use) - cache, 0)
            found.append(Memory(int(limit), max(int(limit) - used, 0)))
    return found


def _inactive_files(stat: str) -> int:
    values = dict(line.split(maxsplit=1) for line in stat.splitlines() if " " in line)
    text = values.get("total_inactive_file", values.get("inactive_file", "0"))
    return int(text) if text.isdecimal() else 0


class MemoryCheck:
    """Checks the available memory; waits until the memory of earlier workers is free.

    Args:
        context: the launch; the argument is the size that must be available.
        root: where the file system starts; `/` but in tests.
    """

    takes_argument = True

    def __init__(self, context: PluginContext, root: str = "/") -> None:
        argument = context.options.get("argument")
        self._floor = None if argument is None else read_size(argument, _WHAT)
        self._files = DoctorContext(root=root)
        self._at_start: int | None = None  # bytes that were available
        self._deadline = CheckDeadline()

    def check(self, occasion: HealthOccasion) -> Iterator[Finding]:
        """Check the memory, repeatedly while there is too little."""
        self._deadline.begin(occasion)
        memory = read_memory(self._files)
        while memory is not None and self._trouble(memory) and self._deadline.pause():
            memory = read_memory(self._files)
        if memory is None:
            yield Finding(Status.OK, _WHAT, "the system does not report how much is available")
            return
        text = f"{format_bytes(memory.available)} available of {format_bytes(memory.whole)}"
        trouble = self._trouble(memory)
        if self._at_start is None:
            self._at_start = memory.available
        if trouble:
            yield Finding(
                Status.PROBLEM,
                _WHAT,
                f"{text}, {trouble}",
                "end what uses it: processes that workers left behind, files in /dev/shm",
            )
        else:
            yield Finding(Status.OK, _WHAT, text)

    def close(self) -> None:
        """Stop waiting."""
        self._deadline.end()

    def _trouble(self, memory: Memory) -> str:
        floor = int(memory.whole * _FLOOR) if self._floor is None else self._floor
        if memory.available < floor:
            return f"less than {format_bytes(floor)}"
        gone = 0 if self._at_start is None else self._at_start - memory.available
        if gone > memory.whole * _SLACK:
            return f"{format_bytes(gone)} less than at the start"
        return ""
