"""Which frames of a thread are a wait in a library, and what it waits for.

`DataLoader`, `multiprocessing` and `subprocess` wait in loops with time-outs: their innermost
frames and variables change although nothing happens.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from plaunch_hang.stacks.stack import Origin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plaunch_hang.stacks.stack import Frame

# Not asyncio, whose loop waits in `selectors` as well, but goes on with every event; nor
# `concurrent.futures` and `communicate` of `subprocess`, whose variables change with every result.
_PYTHON_WAITS = ("selectors", "threading", "queue", "multiprocessing")
_WAITS_OF_SUBPROCESS = ("wait", "_wait", "_try_wait", "_remaining_time")
_TORCH = ("torch", "torchdata")
_LOADERS = ("torch/utils/data/dataloader.py", "torch/utils/data/_utils/worker.py", "torchdata/")
_PROCESSES = ("multiprocessing/", "concurrent/futures/", "subprocess.py")
_THREADS = ("threading.py", "queue.py", "asyncio/")


def count_waiting(frames: Sequence[Frame]) -> int:
    """How many of the innermost frames are a wait; 0 if the thread does not wait in a library.

    Such a wait begins in a module of Python that waits, or in that of `DataLoader`, and ends where
    code has called it that belongs neither to these nor to torch.

    Args:
        frames: of a thread, the innermost first.
    """
    if not frames or not (_is_python_wait(frames[0]) or is_loader(frames[0])):
        return 0
    for number, frame in enumerate(frames):
        if not (_is_python_wait(frame) or _is_torch(frame)):
            return number
    return len(frames)


def waits_for_process(frames: Sequence[Frame]) -> bool:
    """Whether a thread waits for a process that it has started, or for what that sends."""
    if not count_waiting(frames) and not (frames and _is_of_processes(frames[0])):
        return False
    inside = takewhile(lambda one: one.origin is Origin.PYTHON or _is_torch(one), frames)
    return any(map(_is_of_processes, inside))


def waits_for_program(frames: Sequence[Frame]) -> bool:
    """Whether a thread waits in `subprocess`, for the end of a program or for its output."""
    inside = takewhile(lambda one: one.origin is Origin.PYTHON, frames)
    return any(_python_path(one) == "subprocess.py" for one in inside)


def waits_for_thread(frames: Sequence[Frame]) -> bool:
    """Whether a thread waits in a library, maybe for another thread of its process.

    That is so in `threading` and `queue`, which `concurrent.futures` uses, and in the loop of
    asyncio. A `DataLoader` waits for its processes there as well, and not for a thread.
    """
    count = count_waiting(frames)
    if not count or any(map(is_loader, frames[:count])):
        return False
    return any(_python_path(one).startswith(_THREADS) for one in frames[: count + 1])


def waits_for_peers(frames: Sequence[Frame]) -> bool:
    """Whether a thread is in an operation of torch that the other ranks must take part in.

    That is so in `torch.distributed`, in DDP, and in a backward pass, at whose end DDP waits.
    """
    library = next((one for one in frames if one.origin is not Origin.PYTHON), None)
    return library is not None and _package_path(library).startswith(
        ("torch/distributed/", "torch/nn/parallel/", "torch/autograd/")
    )


def is_loader(frame: Frame) -> bool:
    """Whether it is code of a `DataLoader` that waits, in the worker or in a loader process."""
    return _package_path(frame).startswith(_LOADERS)


def is_multiprocessing(frame: Frame, module: str) -> bool:
    """Whether it is code of that module of `multiprocessing`."""
    return _python_path(frame) == f"multiprocessing/{module}.py"


def _is_python_wait(frame: Frame) -> bool:
    first = _python_path(frame).partition("/")[0].removesuffix(".py")
    if first == "subprocess":
        return frame.function.rpartition(".")[2] in _WAITS_OF_SUBPROCESS
    return first in _PYTHON_WAITS


def _is_of_processes(frame: Frame) -> bool:
    return is_loader(frame) or _python_path(frame).startswith(_PROCESSES)


def _is_torch(frame: Frame) -> bool:
    return _package_path(frame).partition("/")[0] in _TORCH


def _python_path(frame: Frame) -> str:
    """The path of a module of Python below its folder, such as `multiprocessing/queues.py`."""
    if frame.origin is not Origin.PYTHON:
        return ""
    after = frame.file.rpartition("/lib/python3")[2]
    return after.partition("/")[2]


def _package_path(frame: Frame) -> str:
    """The path of a module of an installed package, from that of the package on."""
    if frame.origin is not Origin.INSTALLED:
        return ""
    return frame.file.rpartition("-packages/")[2]
