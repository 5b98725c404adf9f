"""Where the processes are that a worker has started and waits for, such as data loaders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from plaunch_stacks import count_waiting

from plaunch_hang.process import read_descendants

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

    from plaunch_stacks import Frame, ProcessStacks


class ReadStacks(Protocol):
    """`plaunch_stacks.main_stacks` or `take`."""

    def __call__(self, pids: Mapping[int, int], /) -> dict[int, ProcessStacks]:
        """The stacks of processes, by rank."""


def place_of(frames: Sequence[Frame]) -> tuple[bool, tuple[Frame, ...]]:
    """Where a thread is, and whether it waits there in a library; how it waits does not count."""
    waiting = count_waiting(frames)
    return waiting > 0, tuple(frames[waiting:])


def read_children(
    pids: Collection[int],
    main_stacks: ReadStacks,
    read_variables: Callable[[Collection[int]], Mapping[int, Hashable]],
    find_descendants: Callable[[Collection[int]], Mapping[int, Sequence[int]]] = read_descendants,
) -> dict[int, dict[int, Hashable]]:
    """Where the main threads of all processes below others are, with their variables in short.

    Args:
        pids: the processes.
        main_stacks: the main threads of processes.
        read_variables: the variables of processes in short, as far as they can be read.
        find_descendants: the processes below others.

    Returns:
        For each of the processes those below it that could be read completely. Programs that are
        not Python, and processes that were not read in time, are left out.
    """
    if not pids:
        return {}
    below = find_descendants(pids)
    every = {pid: pid for found in below.values() for pid in found}
    seen = main_stacks(every) if every else {}
    places = {pid: place_of(one.threads[0].frames) for pid, one in seen.items() if one.threads}
    values = read_variables(places) if places else {}
    return {
        pid: {one: (places[one], values[one]) for one in found if one in places and one in values}
        for pid, found in below.items()
    }
