"""The failure report in a bundle."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from plaunch.process import ChildFailedError, ProcessFailure

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.events import Event

    from plaunch_report.failure_bundle.history import FailedAttempt


def find_failures(
    failed: FailedAttempt, path_of: Callable[[int, str], str]
) -> dict[int, ProcessFailure]:
    """The workers that failed, by global rank, from the result or else from the events.

    Args:
        failed: the failed attempt.
        path_of: returns the path of a file of a worker of this node, by local rank and name; may be
            empty.
    """
    if failed.result is not None and failed.result.failures:
        return failed.result.failures
    local_ranks = {rank: local_rank for local_rank, rank in failed.ranks.items()}
    return {
        rank: _read(event, rank, local_ranks.get(rank, -1), path_of)
        for rank, event in failed.failures.items()
    }


def format_report(failed: FailedAttempt, failures: dict[int, ProcessFailure]) -> str:
    """The report on these failures; if no worker failed, why the launch ended."""
    if not failures:
        return f"{failed.name}: {failed.reason}\n"
    result = failed.result
    if result is None or not result.failures:
        error = ChildFailedError(
            failed.name, failures, stopped=failed.stopped, first=next(iter(failures))
        )
    else:
        error = replace(result, failures=failures).error(failed.name)
    return f"{error}\n"


def _read(
    event: Event, rank: int, local_rank: int, path_of: Callable[[int, str], str]
) -> ProcessFailure:
    """Restore a failure from its event and the worker's error file."""
    metadata = event.metadata
    path = path_of(local_rank, "error.json") if metadata["error_file"] and local_rank >= 0 else ""
    exitcode, pid = metadata["exit_code"], metadata["worker_pid"]
    failure = ProcessFailure(
        local_rank,
        pid if isinstance(pid, int) else -1,
        exitcode if isinstance(exitcode, int) else -1,
        path,
        last_lines=str(metadata["last_lines"] or "").splitlines(),
        global_rank=rank,
        host=str(metadata["failed_host"]),
        log_files=_find_logs(local_rank, path_of),
    )
    if place := metadata.get("place"):
        failure.place = str(place)
    if not failure.has_reply:
        failure.timestamp = event.timestamp
        if metadata["message"]:
            failure.message = str(metadata["message"])
    return failure


def _find_logs(local_rank: int, path_of: Callable[[int, str], str]) -> list[str]:
    if local_rank < 0:
        return []
    paths = (path_of(local_rank, name) for name in ("stdout.log", "stderr.log"))
    return [path for path in paths if os.path.isfile(path)]
