"""What events tell of a worker, and of its failure."""

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
_NO_FILE = "<N/A>"  # what a failure has for a file that was not written


def tell_worker(worker: WorkerInfo) -> Metadata:
    """Which worker it is."""
    return {
        "local_rank": worker.local_rank,
        "global_rank": worker.global_rank,
        "role_rank": worker.role_rank,
        "role_world_size": worker.role_world_size,
        "worker_pid": worker.pid,
    }


def tell_failure(rank: int, failure: ProcessFailure) -> Metadata:
    """How the worker of a global rank has failed."""
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
    """The signal that ended a worker; None if none did."""
    if exitcode >= 0:
        return None
    try:
        return signal.Signals(-exitcode).name
    except ValueError:
        return f"signal {-exitcode}"


def end_of(text: str) -> str:
    """A text, or the end of one that is too long."""
    return text if len(text) <= MAX_TEXT else f"... {text[-MAX_TEXT:]}"
