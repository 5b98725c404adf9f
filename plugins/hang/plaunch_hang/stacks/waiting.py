"""Finds out from frames what a thread waits for in a library, and for which child process.

`DataLoader`, `multiprocessing` and `subprocess` wait in loops with timeouts: their innermost frames
and variables change although nothing happens.
"""

from __future__ import annotations

import enum
from itertools import takewhile
from typing import TYPE_CHECKING

from plaunch_hang.stacks.stack import CodeOrigin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plaunch_hang.stacks.stack import ProcessStacks, StackFrame

# Without asyncio, whose loop waits in `selectors` too, but continues with every event, and without
# `concurrent.futures` and `subprocess.communicate`, whose variables change with every result.
_PYTHON_WAITS = ("selectors", "threading", "queue", "multiprocessing")
_WAITS_OF_SUBPROCESS = ("wait", "_wait", "_try_wait", "_remaining_time")
_TORCH = ("torch", "torchdata")
_LOADERS = ("torch/utils/data/dataloader.py", "torch/utils/data/_utils/worker.py", "torchdata/")
_PROCESSES = ("multiprocessing/", "concurrent/futures/", "subprocess.py")
_THREADS = ("threading.py", "queue.py", "asyncio/")
_KERNEL_WAIT = "do_wait"  # the kernel function of a thread that waits for a process
_SERVANTS = (
    "resource_tracker",
    "forkserver",
)  # of multiprocessing; they only wait


def count_waiting(frames: Sequence[StackFrame]) -> int:
    """Count the innermost frames that are a wait in a library; 0 if the thread does not wait.

    A wait begins in one of Python's waiting modules, or in that of `DataLoader`, and includes the
    calling frames of these modules and of torch.

    Args:
        frames: the frames of a thread, innermost first.
    """
    if not frames or not (_is_python_wait(frames[0]) or is_loader(frames[0])):
        return 0
    for number, frame in enumerate(frames):
        if not (_is_python_wait(frame) or _is_torch(frame)):
            return number
    return len(frames)


def waits_for_process(frames: Sequence[StackFrame]) -> bool:
    """Whether a thread waits for a child process or its output."""
    if not count_waiting(frames) and not (frames and _is_of_processes(frames[0])):
        return False
    inside = takewhile(lambda one: one.origin is CodeOrigin.PYTHON or _is_torch(one), frames)
    return any(map(_is_of_processes, inside))


def waits_for_program(frames: Sequence[StackFrame]) -> bool:
    """Whether a thread waits in `subprocess`, for the end of a program or for its output."""
    inside = takewhile(lambda one: one.origin is CodeOrigin.PYTHON, frames)
    return any(_python_path(one) == "subprocess.py" for one in inside)


def waits_for_thread(frames: Sequence[StackFrame]) -> bool:
    """Whether a thread waits in a library, possibly for another thread of its process.

    It does in `threading` and `queue`, which `concurrent.futures` uses, and in the loop of asyncio.
    A `DataLoader` also waits there, but for its processes.
    """
    count = count_waiting(frames)
    if not count or any(map(is_loader, frames[:count])):
        return False
    return any(_python_path(one).startswith(_THREADS) for one in frames[: count + 1])


def waits_for_peers(frames: Sequence[StackFrame]) -> bool:
    """Whether a thread is in a collective operation of torch, in which other ranks take part.

    It is in `torch.distributed`, in DDP, and in a backward pass, at whose end DDP waits.
    """
    library = next((one for one in frames if one.origin is not CodeOrigin.PYTHON), None)
    return library is not None and _package_path(library).startswith(
        ("torch/distributed/", "torch/nn/parallel/", "torch/autograd/")
    )


def is_loader(frame: StackFrame) -> bool:
    """Whether it is code of a `DataLoader`, in the worker or in a loader process."""
    return _package_path(frame).startswith(_LOADERS)


def is_multiprocessing(frame: StackFrame, module: str) -> bool:
    """Whether it is code of a module of `multiprocessing`."""
    return _python_path(frame) == f"multiprocessing/{module}.py"


def _is_python_wait(frame: StackFrame) -> bool:
    first = _python_path(frame).partition("/")[0].removesuffix(".py")
    if first == "subprocess":
        return frame.function.rpartition(".")[2] in _WAITS_OF_SUBPROCESS
    return first in _PYTHON_WAITS


def _is_of_processes(frame: StackFrame) -> bool:
    return is_loader(frame) or _python_path(frame).startswith(_PROCESSES)


def _is_torch(frame: StackFrame) -> bool:
    return _package_path(frame).partition("/")[0] in _TORCH


def _python_path(frame: StackFrame) -> str:
    return frame.module_path if frame.origin is CodeOrigin.PYTHON else ""


def _package_path(frame: StackFrame) -> str:
    return frame.module_path if frame.origin is CodeOrigin.INSTALLED else ""


def waits_for_children(worker: ProcessStacks) -> bool:
    """Whether the main thread waits for a process, itself or through another thread."""
    if not worker.threads:
        return is_in_wait(worker)
    frames = worker.threads[0].frames
    if waits_for_process(frames) or is_in_wait(worker):
        return True
    return waits_for_thread(frames) and runs_program(worker)


def runs_program(process: ProcessStacks) -> bool:
    """Whether a thread waits for a program that its process has started."""
    return is_in_wait(process) or any(waits_for_program(one.frames) for one in process.threads)


def is_in_wait(process: ProcessStacks) -> bool:
    """Whether the main thread waits for a process in the kernel, as in `os.system`."""
    return process.kernel is not None and process.kernel.place == _KERNEL_WAIT


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
