"""Saying where workers are: a few lines for the user, and whole stacks in files."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from plaunch_hang.stacks.files import write
from plaunch_hang.stacks.grouping import format_groups, group

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plaunch.agent import GroupInfo

    from plaunch_hang.stacks.grouping import Group
    from plaunch_hang.stacks.stack import ProcessStacks

logger = logging.getLogger("plaunch")

FOLDER = "stacks"  # of the folder of a run; below it is one for each time that stacks were taken
_MOST_FOLDERS = 1000


def workers_of(group: GroupInfo) -> dict[int, int]:
    """The processes of the workers that were started, by global rank."""
    return {worker.global_rank: worker.pid for worker in group.workers if worker.pid is not None}


def only_alive(stacks: Mapping[int, ProcessStacks]) -> dict[int, ProcessStacks]:
    """Those of workers that had not ended."""
    return {rank: process for rank, process in stacks.items() if not process.has_ended}


def find_run_dir(logs_specs: object, run_id: str) -> str:
    """The folder of this launch that stays after it; empty if there is none.

    Args:
        logs_specs: the logs spec of the launch, which may be one for torchrun, or None.
        run_id: the id of the job.
    """
    create_run_dir = getattr(logs_specs, "create_run_dir", None)
    path = create_run_dir(run_id) if create_run_dir is not None else None
    if path:
        return str(path)
    root = getattr(logs_specs, "root_log_dir", None)
    is_kept = root and root not in (os.devnull, getattr(logs_specs, "temporary_dir", None))
    return str(root) if is_kept else ""


def tell(
    stacks: Mapping[int, ProcessStacks],
    headline: str,
    *,
    host: str,
    attempt: int,
    occasion: str,
    logs_specs: object = None,
    run_id: str = "",
    groups: Sequence[Group] | None = None,
    is_shown: bool = True,
) -> None:
    """Say where workers are, and keep their stacks; nothing is raised.

    Args:
        stacks: by global rank.
        headline: what they are of, as a line that ends in a colon.
        host: this node.
        attempt: of the job.
        occasion: a word for why they were taken, for the name of the folder.
        logs_specs: the logs spec of the launch, which says where its folder is.
        run_id: the id of the job.
        groups: those of the whole job; by default they are made of `stacks`. If there are none,
            nothing is said.
        is_shown: whether to show them, and not only to keep the stacks.
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
    except Exception as error:  # noqa: BLE001 - of a third party's logs spec, say
        logger.warning("whole stacks are not kept: %s", error)
        return
    if folder:
        logger.warning("whole stacks of this node: %s", folder)
    else:
        logger.info("whole stacks are kept with --log-dir")


def keep(
    stacks: Mapping[int, ProcessStacks],
    groups: Sequence[Group],
    title: str,
    logs_specs: object,
    run_id: str,
    *,
    attempt: int,
    occasion: str,
) -> str:
    """Write whole stacks into a new folder of the run; that folder, or nothing without a run's.

    Raises:
        Exception: that was not possible, or the logs spec has failed.
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
