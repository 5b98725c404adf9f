"""Writing complete stacks to text files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plaunch_hang.stacks.grouping import format_groups
from plaunch_hang.stacks.operations import format_operations, last_operations

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from plaunch_hang.stacks.grouping import StackGroup
    from plaunch_hang.stacks.stack import ProcessStacks, ThreadStack

SUMMARY = "summary.txt"


def write(
    folder: str,
    stacks: Mapping[int, ProcessStacks],
    groups: Sequence[StackGroup] = (),
    title: str = "",
) -> None:
    """Write a file for each rank, one with the groups, and the answers of torch's servers.

    Args:
        folder: the folder to create; it must not exist.
        stacks: the stacks, by global rank.
        groups: the groups of this node or of the whole job.
        title: the first line of each file.

    Raises:
        OSError: a file cannot be written.
    """
    os.makedirs(folder)
    head = [title] if title else []
    if groups:
        shown = [
            *head,
            *format_groups(groups, most=len(groups)),
            *format_operations(last_operations(stacks)),
        ]
        _write(os.path.join(folder, SUMMARY), shown)
    for rank, process in stacks.items():
        _write(os.path.join(folder, f"rank_{rank}.txt"), [*head, *format_process(process)])
        for name, text in _torch_files(rank, process).items():
            _write(os.path.join(folder, name), [text])


def format_process(process: ProcessStacks, indent: str = "") -> Iterator[str]:
    """Format a process and its descendants as lines."""
    yield f"{indent}process {process.pid}{f': {process.title}' if process.title else ''}"
    if process.kernel is not None:
        yield f"{indent}  {process.kernel}, {process.kernel.seconds:.2f} s of processors"
    if process.reason:
        yield f"{indent}  its stack is unknown: {process.reason}"
        if process.kernel is not None:
            yield from (f"{indent}    {function} (kernel)" for function in process.kernel.stack)
    for thread in process.threads:
        yield from _format_thread(thread, f"{indent}  ")
    if process.torch_answers:
        pages = ", ".join(page for page, _ in process.torch_answers)
        yield f"{indent}  torch's server in it has answered: {pages}"
    for child in process.children:
        yield ""
        yield from format_process(child, f"{indent}  ")


def _format_thread(thread: ThreadStack, indent: str) -> Iterator[str]:
    name = thread.name or ("MainThread" if thread.is_main else "without a name")
    words = [f"thread {name}"]
    if thread.number:
        words.append(str(thread.number))
    if thread.has_lock:
        words.append("(holds the lock of the interpreter)")
    yield f"{indent}{' '.join(words)}"
    for frame in thread.frames:
        yield f"{indent}  {frame.function} ({frame.file}:{frame.line})"
    if not thread.frames:
        yield f"{indent}  no Python code runs in it"


def _torch_files(rank: int, process: ProcessStacks) -> dict[str, str]:
    """The answers of torch's servers in a worker, by file name."""
    files: dict[str, str] = {}
    for one in process.walk():
        for page, text in one.torch_answers:
            kind = "json" if page.endswith("json") else "txt"
            name = f"rank_{rank}.{page.removesuffix('_json')}"
            # A worker may have several processes with a server.
            name = f"{name}.{one.pid}" if f"{name}.{kind}" in files else name
            files[f"{name}.{kind}"] = text
    return files


def _write(path: str, lines: Sequence[str]) -> None:
    with open(path, "x", encoding="utf-8", errors="replace") as file:
        file.writelines(f"{line}\n" for line in lines)
