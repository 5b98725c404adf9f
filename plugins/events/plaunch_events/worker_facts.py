"""The metadata of events about a worker, and about its failure."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plaunch.agent import WorkerInfo
    from plaunch.events import EventMetadataValue
    from plaunch.process import ProcessFailure

    Metadata = dict[str, EventMetadataValue]

MAX_TEXT = 8192  # characters of a message, and of last lines
_MAX_LINES = 20
_NO_FILE = "<N/A>"  # in a failure whose worker wrote no error file


def worker_metadata(worker: WorkerInfo) -> Metadata:
    """The metadata that identifies a worker."""
    return {
        "local_rank": worker.local_rank,
        "global_rank": worker.global_rank,
        "role_rank": worker.role_rank,
        "role_world_size": worker.role_world_size,
        "worker_pid": worker.pid,
    }


def failure_metadata(rank: int, failure: ProcessFailure) -> Metadata:
    """The metadata of the failure of a global rank."""
    from plaunch.process import shorten  # failures only

    lines = shorten([line.rstrip("\r\n") for line in failure.last_lines], _MAX_LINES, MAX_TEXT)
    return {
        "global_rank": rank,
        "failed_host": failure.host,
        "worker_pid": failure.pid,
        "exit_code": failure.exitcode,
        "signal_name": signal_name(failure.exitcode),
        "message": end_of(failure.text),
        "headline": failure.headline,
        "place": failure.place,
        "error_file": None if failure.error_file == _NO_FILE else failure.error_file,
        "last_lines": "\n".join(lines),
    }


def signal_name(exitcode: int) -> str | None:
    """The name of the signal that ended a worker; None if it exited."""
    if exitcode >= 0:
        return None
    try:
        return signal.Signals(-exitcode).name
    except ValueError:
        return f"signal {-exitcode}"


def end_of(text: str) -> str:
    """The text, cut to its last `MAX_TEXT` characters."""
    return text if len(text) <= MAX_TEXT else f"... {text[-MAX_TEXT:]}"
