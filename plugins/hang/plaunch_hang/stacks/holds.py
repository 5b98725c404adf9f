"""Finds out from stacks whether a user holds a process: at a prompt, or in a debugger."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plaunch_hang.stacks.waiting import waits_for_children

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plaunch_hang.stacks.stack import KernelState, ProcessStacks, StackFrame

_PDB = "pdb"
# Debuggers that run in the process, by the path of a module or of its folder in a library; those
# that use pdb come first.
_DEBUGGERS = {
    "debugpy/": "debugpy",
    "pudb/": "pudb",
    "ipdb/": "ipdb",
    "IPython/core/debugger.py": "ipdb",
    "IPython/terminal/debugger.py": "ipdb",
    "IPython/terminal/embed.py": "IPython",
    "ipykernel/embed.py": "IPython",
    "code.py": "Python",
}
_PDB_FILES = ("pdb.py", "bdb.py", "pdbpp.py")
# PyCharm's is in a folder of PyCharm.
_PYDEVD = (
    "/pydevd.py",
    "/pydevd_tracing.py",
    "/_pydevd_bundle/",
    "/_pydevd_frame_eval/",
    "/_pydev_bundle/",
)
_STOPPING = ("debugpy", "pydevd")  # their prompt is in another program
_TRACERS = ("gdb", "lldb")  # in the names of debuggers; strace and sandboxes trace as well


def find_hold(process: ProcessStacks, *, is_still: bool = False) -> str:
    """Describe what holds a process besides the kernel, in words such as `at a prompt of pdb`.

    It is held if its main thread is at the prompt of a debugger, has been stopped by one, waits for
    one to connect, or waits for input from a terminal. It is held as well if it waits for one of
    its children that is held.

    Args:
        process: the process.
        is_still: whether it has not moved for long. Then it is also held if pdb runs it, or if a
            debugger outside is connected to it.

    Returns:
        The words; empty if nothing holds it.
    """
    main, kernel = process.main, process.kernel
    frames = () if main is None else main.frames
    count = count_debugger(frames)
    if count:
        return _describe_debugger(frames[:count])
    if kernel is not None and kernel.terminal:
        return f"waiting for input from {kernel.terminal}"
    if is_still:
        if any(_find_debugger(frame) == _PDB for frame in frames):
            return f"run by {_PDB}"
        if kernel is not None and any(word in kernel.tracer_name for word in _TRACERS):
            return _describe_tracer(kernel)
    if process.children and waits_for_children(process):
        for child in process.walk():
            how = describe_child_hold(child, is_still=is_still) if child is not process else ""
            if how:
                return how
    return ""


def describe_child_hold(child: ProcessStacks, *, is_still: bool = False) -> str:
    """Describe what holds a process that a worker waits for; empty if nothing does."""
    child = child._replace(children=())
    kernel = child.kernel
    how = find_hold(child, is_still=is_still)
    if not how and kernel is not None:
        how = {"T": "suspended", "t": _describe_tracer(kernel)}.get(kernel.state, "")
    return f"waiting for process {child.pid}, which is {how}" if how else ""


def count_debugger(frames: Sequence[StackFrame]) -> int:
    """Count the innermost frames that are those of a debugger which has stopped the thread.

    0 if the thread is not in a debugger, also if a debugger runs it.

    Args:
        frames: the frames of a thread, innermost first.
    """
    count = 0
    for number, frame in enumerate(frames, 1):
        if _find_debugger(frame):
            count = number
        elif not frame.is_library:
            break
    return count


def _find_debugger(frame: StackFrame) -> str:
    """The name of the debugger to which a frame belongs; empty if it belongs to none."""
    file, path = frame.file, frame.module_path
    for start, name in _DEBUGGERS.items():
        if path == start or (start.endswith("/") and path.startswith(start)):
            return name
    if path and os.path.basename(path) in _PDB_FILES:
        return _PDB
    return "pydevd" if any(part in file for part in _PYDEVD) else ""


def _describe_debugger(frames: Sequence[StackFrame]) -> str:
    names = {name for frame in frames if (name := _find_debugger(frame))}
    name = min(names, key=lambda one: (one == _PDB, one))
    return f"stopped in {name}" if name in _STOPPING else f"at a prompt of {name}"


def _describe_tracer(kernel: KernelState) -> str:
    if not kernel.tracer:
        return "traced by a debugger"
    return f"traced by {kernel.tracer_name or 'a debugger'} (pid {kernel.tracer})"
