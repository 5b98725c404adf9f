"""Limits on processes, files and processors: checks, and the error text when one is reached."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch.doctor import DoctorContext, Finding, Status
from plaunch.numbers import format_bytes
from plaunch.process import find_cpu_quota, find_field, group_paths, list_numbers, read_proc

from plaunch_doctor.machine import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch_doctor.context import NodeContext

_NEAR = 8  # a limit counts as reached with this many left: some may have ended since the failure
# Descriptors of the launcher: a base, and for each worker. Descriptors of a worker: a base, and for
# each rank that it is connected to.
_OWN_FILES, _FILES_PER_WORKER = 64, 8
_WORKER_FILES, _FILES_PER_RANK = 512, 4
_THREADS_PER_WORKER = 32  # with torch, gloo or NCCL, before any DataLoader


@dataclass(frozen=True)
class ProcessLimit:
    """A limit on processes and threads together, and how many exist."""

    name: str
    maximum: int
    used: int

    @property
    def left(self) -> int:
        """How many more can be started."""
        return self.maximum - self.used

    def __str__(self) -> str:
        return f"{self.name} allows {self.maximum} processes and threads, {self.used} exist"


def describe_shortage(context: DoctorContext | None = None) -> str:
    """Explain why a process or thread cannot be started: name the limits reached, and a fix."""
    context = context or DoctorContext()
    limits = sorted(
        [*find_process_limits(context), *_kernel_limits(context)], key=lambda limit: limit.left
    )
    if not limits:
        return (
            "the system gives no more processes or threads, and plaunch finds no limit that is "
            "reached; check the free memory (ulimit -v, ulimit -s)"
        )
    near = [limit for limit in limits if limit.left < _NEAR] or limits
    return (
        f"the system gives no more processes or threads: {'; '.join(map(str, near))}. Raise the "
        "limit (ulimit -u, limits.conf, docker --pids-limit, the pod's limit), start fewer "
        "workers, or end other processes"
    )


def find_process_limits(
    context: DoctorContext, user: int | None = None, soft: int | None = None
) -> Iterator[ProcessLimit]:
    """Yield the limits of this user and of this process's control groups.

    Args:
        context: where limits are read.
        user: the user whose threads are counted; by default this process's.
        soft: the soft limit RLIMIT_NPROC; by default this process's.
    """
    import resource  # errors and the doctor only

    user = os.getuid() if user is None else user
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0] if soft is None else soft
    if soft != resource.RLIM_INFINITY and user != 0:  # does not apply to root
        yield ProcessLimit("ulimit -u", soft, _count_threads(context, user))
    limits = group_files(context, "pids", "pids.max", "pids.max")
    used = group_files(context, "pids", "pids.current", "pids.current")
    for limit, use in zip(limits, used, strict=False):
        if limit.isdecimal() and use.isdecimal():
            yield ProcessLimit("pids.max of the control group", int(limit), int(use))


def _kernel_limits(context: DoctorContext) -> Iterator[ProcessLimit]:
    # "0.12 0.20 0.22 2/345 6789": 2 running threads of 345
    used = context.read("/proc/loadavg").rpartition(" ")[0].rpartition("/")[2]
    for name in ("threads-max", "pid_max"):
        maximum = context.read(f"/proc/sys/kernel/{name}")
        if maximum.isdecimal() and used.isdecimal():
            yield ProcessLimit(f"kernel.{name}", int(maximum), int(used))


def group_files(context: DoctorContext, controller: str, new: str, old: str) -> list[str]:
    """Return the contents of a file in this process's control group and in its parents.

    Args:
        context: where files are read.
        controller: `memory`, `cpu` or `pids`.
        new: the file's name in version 2.
        old: its name in version 1.
    """
    groups = context.read("/proc/self/cgroup")
    texts = (context.read(path) for path in group_paths(groups, controller, new, old))
    return [text for text in texts if text]


def _count_threads(context: DoctorContext, user: int) -> int:
    """Count the threads of this user's processes."""
    proc = context.path("/proc")
    total = 0
    for pid in list_numbers(proc=proc):
        status = read_proc(f"{pid}/status", proc)
        if find_field(status, "Uid").split()[:1] == [str(user)]:
            total += int(find_field(status, "Threads") or 1)
    return total


def check_open_files(context: NodeContext) -> Iterator[Finding]:
    """Compare the limit on open files with the needs of the launcher and of a worker."""
    what = "open files"
    soft, hard = context.machine.limit("RLIMIT_NOFILE")
    text = f"limit {_say(soft)}, may be raised to {_say(hard)}"
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
        yield Finding(Status.PROBLEM, what, f"{text}; the launcher needs about {launcher}", advice)
    elif soft != UNLIMITED and soft < worker:
        yield Finding(
            Status.WARNING,
            what,
            f"{text}; a worker that talks to {ranks} rank(s) may need about {worker}",
            advice,
        )
    else:
        yield Finding(Status.OK, what, text)


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
        text = "none are written (ulimit -c 0)"
    elif pattern.startswith("|"):
        text = f"crashes are handed to {pattern[1:].split(' ')[0]}"
    else:
        text = (
            f"up to {'any size' if soft == UNLIMITED else format_bytes(soft)} for each worker that "
            f"crashes, at {pattern or 'core'!r}"
        )
    yield Finding(Status.OK, "core files", text)


def check_locked_memory(context: NodeContext) -> Iterator[Finding]:
    """Check the limit on locked memory on nodes with InfiniBand, where NCCL locks its buffers."""
    devices = context.list("/sys/class/infiniband")
    soft, _ = context.machine.limit("RLIMIT_MEMLOCK")
    if not devices:
        return
    text = (
        f"limit {_say(soft) if soft == UNLIMITED else format_bytes(soft)}, {len(devices)} device(s)"
    )
    if soft == UNLIMITED:
        yield Finding(Status.OK, "locked memory", text)
    else:
        yield Finding(
            Status.WARNING,
            "locked memory",
            text,
            "ulimit -l unlimited (limits.conf, docker --ulimit memlock=-1): NCCL over InfiniBand "
            "registers its buffers",
        )


def _say(value: int) -> str:
    return "none" if value == UNLIMITED else str(value)


def check_processors(context: NodeContext) -> Iterator[Finding]:
    """Compare the affinity mask and the CPU quota with the workers and OMP_NUM_THREADS."""
    what, nproc = "processors", context.nproc
    mask = context.machine.processors()
    quota = find_cpu_quota(context.read)
    usable = mask if quota is None else min(float(mask), quota)
    text = f"{mask} in the affinity mask"
    if quota is not None:
        text += f", {quota:g} by the control group's quota"
    if usable < nproc:
        yield Finding(
            Status.WARNING,
            what,
            f"{text}, for {nproc} workers",
            "start fewer workers, or ask for more processors (--cpus-per-task, the pod's limit): "
            "workers wait for each other at every collective",
        )
    else:
        yield Finding(Status.OK, what, f"{text}, for {nproc} worker(s)")
    yield from _check_threads(context, usable)


def _check_threads(context: NodeContext, usable: float) -> Iterator[Finding]:
    what, nproc = "OMP_NUM_THREADS", context.nproc
    text = context.environ.get(what)
    if text is None:
        if nproc > 1:
            yield Finding(Status.OK, what, f"not set; plaunch sets it to 1 for {nproc} workers")
        elif usable < context.machine.processors():
            yield Finding(
                Status.WARNING,
                what,
                f"not set; torch starts a thread for each of {context.machine.processors()} "
                f"processors, but the quota allows {usable:g}",
                f"export OMP_NUM_THREADS={max(int(usable), 1)}",
            )
        return
    first = text.partition(",")[0]
    if not first.isdecimal():
        yield Finding(Status.WARNING, what, f"{text!r} is not a number", "correct or unset it")
        return
    threads = int(first) * nproc
    too_many = threads > usable
    yield Finding(
        Status.WARNING if too_many else Status.OK,
        what,
        f"{first} for each of {nproc} worker(s), {threads} threads on {usable:g} processors",
        f"export OMP_NUM_THREADS={max(int(usable) // nproc, 1)}" if too_many else "",
    )
