"""Whether the processes move that a worker has started and waits for, such as data loaders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from plaunch_hang.process import read_parents, read_use
from plaunch_hang.stacks import (
    count_waiting,
    waits_for_process,
    waits_for_program,
    waits_for_thread,
)
from plaunch_hang.watch import ChildSight

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

    from plaunch_hang.stacks import Frame, ProcessStacks

_WAIT = "do_wait"  # where the kernel has a thread that waits for a process, as in `os.system`


class ReadStacks(Protocol):
    """`plaunch_hang.stacks.own_stacks` or `take`."""

    def __call__(self, pids: Mapping[int, int], /) -> dict[int, ProcessStacks]:
        """The stacks of processes, by rank."""


def place_of(frames: Sequence[Frame]) -> tuple[bool, tuple[Frame, ...]]:
    """Where a thread is, and whether it waits there in a library; how it waits does not count."""
    waiting = count_waiting(frames)
    return waiting > 0, tuple(frames[waiting:])


def waits_for_children(worker: ProcessStacks) -> bool:
    """Whether the main thread waits for a process, itself or through another thread."""
    frames = worker.threads[0].frames
    if waits_for_process(frames) or _is_in_wait(worker):
        return True
    return waits_for_thread(frames) and _runs_program(worker)


def _runs_program(process: ProcessStacks) -> bool:
    """Whether a thread of a process waits for a program that the process has started."""
    return _is_in_wait(process) or any(waits_for_program(one.frames) for one in process.threads)


def _is_in_wait(process: ProcessStacks) -> bool:
    return process.kernel is not None and process.kernel.place == _WAIT


def read_children(
    waiting: Mapping[int, ProcessStacks],
    own_stacks: ReadStacks,
    read_variables: Callable[[Collection[int]], Mapping[int, Hashable]],
    find_parents: Callable[[Collection[int]], Mapping[int, Mapping[int, int]]] = read_parents,
    read_use: Callable[[int], Hashable] = read_use,
) -> dict[int, dict[int, ChildSight]]:
    """What is seen of all processes below others that wait for them.

    Of a program that is not Python, what it uses counts, if the Python process above it waits for a
    program: else it may be a monitor, which runs while a job hangs.

    Args:
        waiting: the stacks of the processes that wait, by process.
        own_stacks: the threads of processes.
        read_variables: the variables of processes in short, as far as they can be read.
        find_parents: the parents of all processes below others.
        read_use: what a process has used.

    Returns:
        For each of the processes those below it. Processes of which nothing is known are left out.
    """
    if not waiting:
        return {}
    below = find_parents(waiting)
    every = {pid: pid for found in below.values() for pid in found}
    seen = own_stacks(every) if every else {}
    seen = {pid: one for pid, one in seen.items() if one.threads}
    values = read_variables(seen) if seen else {}
    sights: dict[int, dict[int, ChildSight]] = {}
    for pid, parents in below.items():
        sights[pid] = {}
        runs = {pid: _runs_program(waiting[pid])}
        for child, parent in parents.items():
            if child in seen:
                runs[child] = _runs_program(seen[child])
                place = place_of(seen[child].threads[0].frames)
                sights[pid][child] = ChildSight(place, values.get(child))
                continue
            runs[child] = runs[parent]
            use = read_use(child) if runs[child] else None
            if use is not None:
                sights[pid][child] = ChildSight(use=use)
    return sights
