"""Samples of child processes that a worker waits for, such as data loaders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from plaunch_hang.process import read_parents, read_use
from plaunch_hang.stacks import (
    count_waiting,
    waits_for_process,
    waits_for_program,
    waits_for_thread,
)
from plaunch_hang.watch import ChildSample

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

    from plaunch_hang.stacks import ProcessStacks, StackFrame

_WAIT = "do_wait"  # the kernel function of a thread that waits for a process, as in `os.system`


class ReadStacks(Protocol):
    """`plaunch_hang.stacks.own_stacks` or `take`."""

    def __call__(self, pids: Mapping[int, int], /) -> dict[int, ProcessStacks]:
        """Read the stacks of processes, by rank."""


def place_of(frames: Sequence[StackFrame]) -> tuple[bool, tuple[StackFrame, ...]]:
    """Whether a thread waits in a library, and its frames without those of the wait."""
    waiting = count_waiting(frames)
    return waiting > 0, tuple(frames[waiting:])


def waits_for_children(worker: ProcessStacks) -> bool:
    """Whether the main thread waits for a process, itself or through another thread."""
    frames = worker.threads[0].frames
    if waits_for_process(frames) or _is_in_wait(worker):
        return True
    return waits_for_thread(frames) and _runs_program(worker)


def _runs_program(process: ProcessStacks) -> bool:
    """Whether a thread waits for a program that its process has started."""
    return _is_in_wait(process) or any(waits_for_program(one.frames) for one in process.threads)


def _is_in_wait(process: ProcessStacks) -> bool:
    return process.kernel is not None and process.kernel.place == _WAIT


def read_children(
    waiting: Mapping[int, ProcessStacks],
    own_stacks: ReadStacks,
    read_variables: Callable[[Collection[int]], Mapping[int, Hashable]],
    find_parents: Callable[[Collection[int]], Mapping[int, Mapping[int, int]]] = read_parents,
    read_use: Callable[[int], Hashable] = read_use,
) -> dict[int, dict[int, ChildSample]]:
    """Sample all descendants of processes that wait for them.

    Of a program that is not Python, its resource usage counts, but only if the Python process above
    it waits for a program. Otherwise it may be a monitor that also runs while a job hangs.

    Args:
        waiting: the stacks of the waiting processes, by pid.
        own_stacks: reads the stacks of processes.
        read_variables: reads digests of the variables of processes.
        find_parents: returns the parents of all descendants of processes.
        read_use: reads the resource usage of a process.

    Returns:
        The samples of the descendants of each process. Processes that cannot be read are left out.
    """
    if not waiting:
        return {}
    below = find_parents(waiting)
    every = {pid: pid for found in below.values() for pid in found}
    seen = own_stacks(every) if every else {}
    seen = {pid: one for pid, one in seen.items() if one.threads}
    values = read_variables(seen) if seen else {}
    samples: dict[int, dict[int, ChildSample]] = {}
    for pid, parents in below.items():
        samples[pid] = {}
        runs = {pid: _runs_program(waiting[pid])}
        for child, parent in parents.items():
            if child in seen:
                runs[child] = _runs_program(seen[child])
                place = place_of(seen[child].threads[0].frames)
                samples[pid][child] = ChildSample(place, values.get(child))
                continue
            runs[child] = runs[parent]
            use = read_use(child) if runs[child] else None
            if use is not None:
                samples[pid][child] = ChildSample(use=use)
    return samples
