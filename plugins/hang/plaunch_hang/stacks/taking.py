"""Reading the stacks of many processes in parallel, within a time limit."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from plaunch.errors import ThreadStartError
from plaunch.process import (
    children_by_parent,
    find_field,
    read_command,
    read_name,
    read_proc,
    read_process,
    read_stack,
    read_stat,
    read_table,
    read_waiting_place,
)
from plaunch.texts import printable
from plaunch.threads import BoundedCall

from plaunch_hang.stacks.py_spy import UnreadableError, find_py_spy, read_threads
from plaunch_hang.stacks.stack import KernelState, ProcessStacks
from plaunch_hang.stacks.terminals import find_terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

PROC = "/proc"

_TITLE = 200  # characters
_TICKS = os.sysconf("SC_CLK_TCK")
_AT_A_TIME = 4  # processes to read at a time, if there are as many CPUs
_READ_TIMEOUT = 2.0  # seconds for one process, which takes 20 to 80 ms
_TRIES = 3  # a changing stack cannot always be read
_MOST_CHILDREN = 1000  # of all workers together
_ENDED = "it has ended"

T = TypeVar("T")


def read_kernel_state(pid: int, proc: str = PROC) -> KernelState | None:
    """Read the state of a process; None if it has ended."""
    fields = read_stat(pid, proc)
    if len(fields) < 13:
        return None
    tracer = find_field(read_proc(f"{pid}/status", proc), "TracerPid")
    call = read_proc(f"{pid}/syscall", proc).decode(errors="replace").strip()
    return KernelState(
        state=fields[0].decode(errors="replace"),
        place=read_waiting_place(pid, proc),
        call=call,
        stack=tuple(read_stack(pid, proc)),
        seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
        tracer=int(tracer) if tracer.isdigit() else 0,
        tracer_name=read_name(tracer, proc) if tracer.strip("0") else "",
        terminal=find_terminal(pid, call, proc),
        threads=int(fields[17]) if len(fields) > 17 else 1,
    )


def read_title(pid: int, proc: str = PROC) -> str:
    """The beginning of the command line of a process, or its short name."""
    words = " ".join(read_command(pid, proc)) or read_name(pid, proc)
    return printable(" ".join(words.split()), _TITLE)


def timeout_for(count: int) -> float:
    """The default timeout for this number of processes, in seconds."""
    return min(3.0 + 0.1 * count, 60.0)


def take(
    pids: Mapping[int, int], *, timeout: float | None = None, children: bool = True
) -> dict[int, ProcessStacks]:
    """Read the stacks of all threads of processes and their descendants.

    It runs py-spy for each process, some at a time, which pauses no process. If py-spy is not
    installed or not permitted, the result has the reason and the kernel's state. Blocks up to the
    timeout; thread-safe; raises nothing.

    Args:
        pids: the process ids, by the ranks of the workers.
        timeout: seconds for all of them; the default depends on their number. Workers are read
            first; processes that were not read in time have that as their reason.
        children: whether to read descendants too.

    Returns:
        One entry for each rank.
    """
    trees = _find_trees(pids, children=children)
    read = _read_all(trees, timeout, is_whole=True)
    return {rank: _assemble(tree, read) for rank, tree in zip(pids, trees, strict=True)}


def own_stacks(
    pids: Mapping[int, int], *, timeout: float | None = None
) -> dict[int, ProcessStacks]:
    """Read the stacks of processes alone, which takes 10 to 20 ms of CPU time each.

    The same as `take` without descendants and titles. Two results have the same
    `main.frames` if the main thread is on the same lines.
    """
    trees = _find_trees(pids, children=False)
    read = _read_all(trees, timeout, is_whole=False)
    return {rank: _assemble(tree, read) for rank, tree in zip(pids, trees, strict=True)}


class _Tree(NamedTuple):
    """A process to read, with its children."""

    pid: int
    start: int  # -1 if it has ended already
    children: tuple[_Tree, ...] = ()


def _find_trees(pids: Mapping[int, int], *, children: bool) -> list[_Tree]:
    if not children:
        return [_Tree(pid, _find_start(pid)) for pid in pids.values()]
    table = read_table()
    below = children_by_parent({pid: one for pid, one in table.items() if one.is_alive})
    room = _MOST_CHILDREN
    seen: set[int] = set(pids.values())

    def grow(pid: int) -> _Tree:
        nonlocal room
        found = table.get(pid)
        own = [child for child in sorted(below.get(pid, ())) if child not in seen][:room]
        room -= len(own)
        seen.update(own)
        return _Tree(pid, -1 if found is None else found.start, tuple(grow(one) for one in own))

    return [grow(pid) for pid in pids.values()]


def _find_start(pid: int) -> int:
    process = read_process(pid)
    return -1 if process is None or not process.is_alive else process.start


def _in_order(trees: Collection[_Tree]) -> list[_Tree]:
    """The workers, then their children, then their grandchildren, and so on."""
    level, found = list(trees), []
    while level:
        found += level
        level = [child for tree in level for child in tree.children]
    return found


def _read_all(
    trees: Collection[_Tree], timeout: float | None, *, is_whole: bool
) -> dict[int, ProcessStacks]:
    """Read the processes within the timeout; return the results by pid."""
    order = _in_order(trees)
    if timeout is None:
        timeout = timeout_for(len(order))
    until = time.monotonic() + timeout
    try:
        program, problem = find_py_spy(), ""
    except FileNotFoundError as error:
        program, problem = "", str(error)
    read: dict[int, ProcessStacks] = {}

    def read_one(tree: _Tree) -> None:
        read[tree.pid] = _read(tree, program, problem, until, is_whole=is_whole)

    has_begun = read_in_parallel(order, read_one, until, "stacks")
    late = f"not read within {timeout:.1f} s" if has_begun else "no thread could be started"
    for tree in order:
        if tree.pid not in read:
            kernel = read_kernel_state(tree.pid)
            reason = _ENDED if kernel is None else late
            read[tree.pid] = ProcessStacks(tree.pid, tree.start, reason=reason, kernel=kernel)
    return read


def read_in_parallel(
    items: Collection[T], read: Callable[[T], None], until: float, name: str
) -> bool:
    """Call `read` with each item, on a few threads; items that are late are left out.

    Args:
        items: the items, in the order in which they are read.
        read: reads one item.
        until: the deadline on the monotonic clock.
        name: of the threads.

    Returns:
        Whether a thread could be started.
    """
    waiting = deque(items)

    def read_next() -> None:
        while time.monotonic() < until:
            try:
                item = waiting.popleft()
            except IndexError:
                return
            read(item)

    calls = []
    with contextlib.suppress(ThreadStartError, RuntimeError):
        for number in range(min(_AT_A_TIME, len(os.sched_getaffinity(0)), len(waiting))):
            calls.append(BoundedCall(f"{name}-{number}", read_next))
    for call in calls:
        call.wait(until - time.monotonic())
    return bool(calls)


def _read(
    tree: _Tree, program: str, problem: str, until: float, *, is_whole: bool
) -> ProcessStacks:
    pid, start = tree.pid, tree.start
    seen = ProcessStacks(pid, start, title=read_title(pid) if is_whole else "", reason=problem)
    for _ in range(_TRIES if program else 0):
        try:
            threads = read_threads(
                program, pid, min(_READ_TIMEOUT, max(until - time.monotonic(), 0.1))
            )
        except UnreadableError as error:
            seen = seen._replace(reason=str(error))
            if error.is_lasting or time.monotonic() >= until:
                break
        else:
            seen = seen._replace(threads=threads, reason="" if threads else "it has no threads")
            break
    seen = seen._replace(kernel=read_kernel_state(pid))
    # The pid may have been reused meanwhile.
    if start == -1 or _find_start(pid) != start:
        return ProcessStacks(pid, start, reason=_ENDED)
    if seen.kernel is not None and seen.kernel.state == "Z":
        return seen._replace(reason="its main thread has ended")
    return seen


def _assemble(tree: _Tree, read: Mapping[int, ProcessStacks]) -> ProcessStacks:
    children = tuple(_assemble(child, read) for child in tree.children)
    return read[tree.pid]._replace(children=children)
