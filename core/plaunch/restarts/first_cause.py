"""What restart policies get of a failure: read from what is known of the workers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from plaunch.durations import LONGEST
from plaunch.restarts.api import Cause, Failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.process import ProcessFailure


def failure_of(
    failures: Mapping[int, ProcessFailure],
    first: int,
    *,
    started: float,
    attempt: int,
    cause: Cause | None = None,
) -> Failure:
    """What restart policies get of a failure.

    A worker's own word is that in its error file. Of one that wrote none, exception and place are
    those of the last traceback among its last lines, if it exited as Python does after one.

    Args:
        failures: the workers that failed by themselves, by global rank; never empty.
        first: which of them was the first one.
        started: seconds between the start of the workers and the failure.
        attempt: how many restarts the job had used.
        cause: what kind of failure it is; by default one of a worker, a hang, or memory that ran
            out.
    """
    found = failures[first]
    if cause is None:
        cause = Cause.OUT_OF_MEMORY if found.oom_killed else Cause.WORKER
        cause = Cause.HANG if found.hung else cause
    traits = _traits_of(found)
    return Failure(
        cause=cause,
        rank=first,
        host=found.host,
        exitcode=found.exitcode,
        exception=found.raised.exception,
        message=found.brief,
        place=found.place,
        last_lines=tuple(found.last_lines),
        is_retryable=_truth(traits.get("retryability")),
        retry_after=_seconds(traits.get("retry_after")),
        started=started,
        time=found.began,
        attempt=attempt,
        failures=dict(failures),
    )


def _traits_of(failure: ProcessFailure) -> Mapping[str, Any]:
    traits = failure.error_file_data.get("errorTraits") if failure.has_reply else None
    # torch says of every worker without a reply that it is not retryable; that is not its word, and
    # a launcher that is a worker itself hands it up in a file.
    is_word = isinstance(traits, dict) and traits.get("category") != "system_terminated_error"
    return traits if isinstance(traits, dict) and is_word else {}


def _truth(value: object) -> bool | None:
    return {"true": True, "false": False}.get(str(value).lower())


def _seconds(value: object) -> float | None:
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    if math.isnan(seconds) or seconds < 0 or isinstance(value, bool):
        return None
    return min(seconds, LONGEST)
