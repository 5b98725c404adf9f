"""Writes complete stacks to text files, and groups of ranks to the log."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from plaunch.process import find_run_dir

from plaunch_hang.stacks.grouping import format_groups, group

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from plaunch.agent import GroupInfo

    from plaunch_hang.stacks.grouping import StackGroup
    from plaunch_hang.stacks.stack import ProcessStacks, ThreadStack

SUMMARY = "summary.txt"
logger = logging.getLogger("plaunch")

FOLDER = "stacks"  # in the folder of a run; it has a folder for each time that stacks were taken
_MOST_FOLDERS = 1000


def write(
    folder: str,
    stacks: Mapping[int, ProcessStacks],
    groups: Sequence[StackGroup] = (),
    title: str = "",
) -> None:
    """Write a file for each rank, and one with the groups.

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
        _write(os.path.join(folder, SUMMARY), [*head, *format_groups(groups, most=len(groups))])
    for rank, process in stacks.items():
        _write(os.path.join(folder, f"rank_{rank}.txt"), [*head, *format_process(process)])


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


def _write(path: str, lines: Sequence[str]) -> None:
    with open(path, "x", encoding="utf-8", errors="replace") as file:
        file.writelines(f"{line}\n" for line in lines)


def workers_of(group: GroupInfo) -> dict[int, int]:
    """The process ids of the started workers, by global rank."""
    return {worker.global_rank: worker.pid for worker in group.workers if worker.pid is not None}


def only_alive(stacks: Mapping[int, ProcessStacks]) -> dict[int, ProcessStacks]:
    """The stacks of workers that had not ended."""
    return {rank: process for rank, process in stacks.items() if not process.has_ended}


def log_stacks(
    stacks: Mapping[int, ProcessStacks],
    headline: str,
    *,
    host: str,
    attempt: int,
    occasion: str,
    logs_specs: object = None,
    run_id: str = "",
    groups: Sequence[StackGroup] | None = None,
    is_shown: bool = True,
) -> None:
    """Log where workers are, and write their stacks to files; raises nothing.

    Args:
        stacks: the stacks, by global rank.
        headline: the first line, which ends in a colon.
        host: the name of this host.
        attempt: the attempt of the job.
        occasion: a word for why they were taken, for the name of the folder.
        logs_specs: the logs spec of the launch, which has the folder.
        run_id: the id of the job.
        groups: the groups of the whole job; by default those of `stacks`. Nothing is logged if
            there are none.
        is_shown: whether to log the groups; otherwise the stacks are only written.
    """
    groups = group({host: stacks}) if groups is None else groups
    if groups and is_shown:
        logger.warning("%s", headline)
        for line in format_groups(groups):
            logger.warning("  %s", line)
    if not stacks:
        return
    title = f"{headline} (attempt {attempt}, {host})"
    try:
        run_dir = find_run_dir(logs_specs, run_id)
        folder = keep(stacks, groups, title, run_dir, folder_name(attempt, occasion))
    except Exception as error:  # noqa: BLE001 - may come from a third party's logs spec
        logger.warning("whole stacks are not kept: %s", error)
        return
    if folder:
        logger.warning("whole stacks of this node: %s", folder)
    else:
        logger.info("whole stacks are kept with --log-dir")


def keep(
    stacks: Mapping[int, ProcessStacks],
    groups: Sequence[StackGroup],
    title: str,
    run_dir: str,
    name: str,
) -> str:
    """Write stacks to a new folder below that of the run; return it.

    Args:
        stacks: the stacks, by global rank.
        groups: the groups of this node or of the whole job.
        title: the first line of each file.
        run_dir: the folder of the run; if empty, nothing is written, and the result is empty.
        name: the name of the new folder, in which `{}` is replaced by the first free number.

    Raises:
        OSError: a file cannot be written.
    """
    if not run_dir:
        return ""
    root = os.path.abspath(run_dir)
    for number in range(1, _MOST_FOLDERS):
        folder = os.path.join(root, name.replace("{}", str(number)))
        if not os.path.lexists(folder):
            write(folder, stacks, groups, title)
            return folder
    raise FileExistsError(f"{root} has {_MOST_FOLDERS} folders {name.format('*')!r}")


def folder_name(attempt: int, occasion: str) -> str:
    """The name for `keep` of stacks that were taken in an attempt, on an occasion (one word)."""
    return os.path.join(FOLDER, f"attempt_{attempt}-{{}}-{occasion}")
