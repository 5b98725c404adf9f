"""The child process that a worker waits for, such as one of a data loader."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from plaunch_hang.stacks.waiting import is_loader, is_multiprocessing, waits_for_process

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plaunch_hang.stacks.stack import ProcessStacks, StackFrame

_SERVANTS = (
    "resource_tracker",
    "forkserver",
)  # of multiprocessing; they only wait


class ChildKind(str, enum.Enum):
    """The kind of a child process. The most likely cause of a hang comes first."""

    LOADER = "loader"
    POOL = "pool"
    OTHER = "other"

    def describe(self, ranks: str, count: int) -> str:
        """Describe the processes of `count` ranks, which are named `ranks`."""
        if self is ChildKind.OTHER:
            return f"{'a process' if count == 1 else 'processes'} that {ranks} started"
        return (
            f"{f'a {self.value} process' if count == 1 else f'{self.value} processes'} of {ranks}"
        )


def find_busy_child(worker: ProcessStacks) -> tuple[tuple[StackFrame, ...], ChildKind] | None:
    """Find the child process that a worker waits for; return its frames, innermost first.

    Processes that wait for work themselves are ignored. None if the main thread of the worker waits
    for no process, or if none of them runs code of the user.
    """
    main = worker.main
    if main is None or not waits_for_process(main.frames):
        return None
    found = [
        (_own_frames(thread.frames), _kind_of(thread.frames))
        for process in worker.walk()
        for thread in process.threads[:1]
        if thread is not main
    ]
    busy = [(own, kind) for own, kind in found if any(not one.is_library for one in own)]
    return min(busy, key=lambda item: list(ChildKind).index(item[1]), default=None)


def _own_frames(frames: Sequence[StackFrame]) -> tuple[StackFrame, ...]:
    """The frames of the process itself; a forked one also has those of its parent."""
    for number, frame in enumerate(frames):
        if is_multiprocessing(frame, "process") and frame.function.endswith("_bootstrap"):
            return tuple(frames[:number])
    if any(is_multiprocessing(frame, module) for frame in frames for module in _SERVANTS):
        return ()
    return tuple(frames)


def _kind_of(frames: Sequence[StackFrame]) -> ChildKind:
    own = _own_frames(frames)
    if any(is_loader(frame) for frame in own):
        return ChildKind.LOADER
    if any(is_multiprocessing(frame, "pool") for frame in own):
        return ChildKind.POOL
    return ChildKind.OTHER
