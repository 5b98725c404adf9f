"""Check that there are enough processors for the workers and their threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.doctor import Finding, Status

from plaunch_doctor.capacity import group_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch_doctor.context import NodeContext


def check_processors(context: NodeContext) -> Iterator[Finding]:
    """Compare the affinity mask and the CPU quota with the workers and OMP_NUM_THREADS."""
    what, nproc = "processors", context.nproc
    mask = context.machine.processors()
    quota = _quota(context)
    usable = mask if quota is None else min(float(mask), quota)
    said = f"{mask} in the affinity mask"
    if quota is not None:
        said += f", {quota:g} by the control group's quota"
    if usable < nproc:
        yield Finding(
            Status.WARNING,
            what,
            f"{said}, for {nproc} workers",
            "start fewer workers, or ask for more processors (--cpus-per-task, the pod's limit): "
            "workers wait for each other at every collective",
        )
    else:
        yield Finding(Status.OK, what, f"{said}, for {nproc} worker(s)")
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


def _quota(context: NodeContext) -> float | None:
    """Return the smallest CPU quota of this process's control groups, in processors."""
    quotas = []
    for text in group_files(context, "cpu", "cpu.max", ""):
        quota, _, period = text.partition(" ")
        if quota.isdecimal() and period.isdecimal() and int(period):
            quotas.append(int(quota) / int(period))
    old = group_files(context, "cpu", "", "cpu.cfs_quota_us")
    periods = group_files(context, "cpu", "", "cpu.cfs_period_us")
    for quota, period in zip(old, periods, strict=False):
        if quota.isdecimal() and period.isdecimal() and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)
