"""Logging where workers are, and writing their complete stacks to files."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from plaunch_hang.stacks.files import write
from plaunch_hang.stacks.grouping import format_groups, group

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plaunch.agent import GroupInfo

    from plaunch_hang.stacks.grouping import StackGroup
    from plaunch_hang.stacks.stack import ProcessStacks

logger = logging.getLogger("plaunch")

FOLDER = "stacks"  # in the folder of a run; it has a folder for each time that stacks were taken
_MOST_FOLDERS = 1000


def workers_of(group: GroupInfo) -> dict[int, int]:
    """The process ids of the started workers, by global rank."""
    return {worker.global_rank: worker.pid for worker in group.workers if worker.pid is not None}


def only_alive(stacks: Mapping[int, ProcessStacks]) -> dict[int, ProcessStacks]:
    """The stacks of workers that had not ended."""
    return {rank: process for rank, process in stacks.items() if not process.has_ended}


def find_run_dir(logs_specs: object, run_id: str) -> str:
    """The folder of this launch that remains after it; empty if there is none.

    Args:
        logs_specs: the logs spec of the launch, which may be written for torchrun, or None.
        run_id: the id of the job.
    """
    create_run_dir = getattr(logs_specs, "create_run_dir", None)
    path = create_run_dir(run_id) if create_run_dir is not None else None
    if path:
        return str(path)
    root = getattr(logs_specs, "root_log_dir", None)
    is_kept = root and root not in (os.devnull, getattr(logs_specs, "temporary_dir", None))
    return str(root) if is_kept else ""


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
        folder = keep(stacks, groups, title, logs_specs, run_id, attempt=attempt, occasion=occasion)
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
    logs_specs: object,
    run_id: str,
    *,
    attempt: int,
    occasion: str,
) -> str:
    """Write stacks to a new folder below that of the run; return it, or an empty text.

    Raises:
        Exception: they cannot be written, or the logs spec failed.
    """
    run_dir = find_run_dir(logs_specs, run_id)
    if not run_dir:
        return ""
    folder = _free_folder(os.path.join(os.path.abspath(run_dir), FOLDER), attempt, occasion)
    write(folder, stacks, groups, title)
    return folder


def _free_folder(root: str, attempt: int, occasion: str) -> str:
    for number in range(1, _MOST_FOLDERS):
        folder = os.path.join(root, f"attempt_{attempt}-{number}-{occasion}")
        if not os.path.lexists(folder):
            return folder
    raise FileExistsError(f"{root} has {_MOST_FOLDERS} folders of this attempt")
