"""Finds out whether workers that do not exit have left their program, and where they are.

When the program has ended, Python calls the functions of its exit from C: no frame of the program
is below them. A function worker returns from the function that `multiprocessing` has called.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plaunch.process import ExitPlace

from plaunch_hang.stacks.grouping import fold, name_frames
from plaunch_hang.stacks.holds import find_hold
from plaunch_hang.stacks.py_spy import MOST_FRAMES
from plaunch_hang.stacks.stack import CodeOrigin
from plaunch_hang.stacks.taking import own_stacks
from plaunch_hang.stacks.variables import has_uncaught_exception
from plaunch_hang.stacks.waiting import is_multiprocessing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from plaunch_hang.stacks.stack import ProcessStacks, StackFrame, ThreadStack

_MOST_THREADS = 2  # named in a place
# Libraries whose own stacks replace that of the main thread, which then does not begin in a module.
_GREENLETS = ("/gevent/", "/eventlet/", "/greenlet/")


def runs_python(pid: int) -> bool:
    """Whether the program of a process is Python, and not one that embeds it; True if unknown."""
    try:
        program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return True
    return program.startswith(("python", "pypy"))


def find_exit_places(
    pids: Mapping[int, int],
    take: Callable[[Mapping[int, int]], Mapping[int, ProcessStacks]] = own_stacks,
    has_raised: Callable[[int], bool | None] = has_uncaught_exception,
    runs_python: Callable[[int], bool] = runs_python,
) -> dict[int, ExitPlace]:
    """Find where workers are, given their process ids by local rank.

    Args:
        pids: the process ids.
        take: reads the stacks of processes.
        has_raised: whether the interpreter of a process has printed an uncaught exception.
        runs_python: whether the program of a process is Python.
    """
    found = {}
    for rank, stacks in take(pids).items():
        exception = has_raised(pids[rank])
        hold = find_hold(stacks, is_still=True)
        if not stacks.threads:
            found[rank] = ExitPlace(None, exception, "", stacks.reason, hold)
            continue
        main, *others = stacks.threads
        place = describe_place(main, others)
        # In a program that embeds Python, its main thread may have other frames, or none.
        is_end = is_exiting(main.frames) if runs_python(pids[rank]) else None
        place = place if main.frames or is_end else ""
        found[rank] = ExitPlace(is_end, exception, place, hold=hold)
    return found


def is_exiting(frames: Sequence[StackFrame]) -> bool:
    """Whether a main thread has left its program.

    Args:
        frames: its frames, innermost first. There are none while Python ends in C, as in the
            destructors of torch.
    """
    if not frames or any(map(_is_exit_function, frames)):
        return True
    first = frames[-1]
    # A program begins in a module, or in Python's own code that looks for it: `runpy`, a frozen
    # module since Python 3.11. Of a deep stack only the innermost frames are known.
    is_runpy = first.origin is CodeOrigin.PYTHON and _module(first) == "runpy"
    is_begin = first.function == "<module>" or first.file.startswith("<frozen ") or is_runpy
    is_switched = any(name in first.file for name in _GREENLETS)
    return not (is_begin or is_switched) and len(frames) < MOST_FRAMES


def _is_exit_function(frame: StackFrame) -> bool:
    if is_multiprocessing(frame, "util"):
        return frame.function == "_exit_function"
    is_python = frame.origin is CodeOrigin.PYTHON
    return is_python and frame.function == "_shutdown" and _module(frame) == "threading"


def describe_place(main: ThreadStack, others: Sequence[ThreadStack]) -> str:
    """Describe where a main thread is; if it waits for threads, where those are in the user's code.

    Args:
        main: the main thread.
        others: the other threads of its process.
    """
    if not main.frames:
        return "the exit of the interpreter"
    outer = next((one for one in reversed(main.frames) if _is_exit_function(one)), None)
    if outer is None:
        return name_frames(fold(main.frames))  # as in the report of a hang
    place = f"{_module(outer)}.{outer.function}"
    named = list(filter(None, map(_describe_thread, others)))
    if not named:
        return place
    more = len(named) - _MOST_THREADS
    shown = ", ".join(named[:_MOST_THREADS])
    return f"{place} ({shown}{f' and {more} more' if more > 0 else ''})"


def _describe_thread(thread: ThreadStack) -> str:
    """Describe a thread by its name and the user's line; empty if it runs none of that code."""
    user = next((frame for frame in thread.frames if not frame.is_library), None)
    if user is None:
        return ""
    return f"thread {thread.name or thread.number} is in {user}"


def _module(frame: StackFrame) -> str:
    """The name of the module of Python that a frame is in, such as `multiprocessing.util`."""
    name = os.path.basename(frame.file).removesuffix(".py")
    return f"multiprocessing.{name}" if is_multiprocessing(frame, name) else name
