"""What restart policies are told of a failure, read from what is known of the workers."""

from __future__ import annotations

import math
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from plaunch.durations import LONGEST
from plaunch.restarts import Cause, Failure

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from plaunch.process import ProcessFailure

_UNCAUGHT = 1  # what Python exits with after an exception that nobody caught
_LONGEST_MESSAGE = 300  # characters of the one line that is kept
_HEADER = "Traceback (most recent call last):"
# The second form is that of a SyntaxError, which has no function.
_FRAME = re.compile(r'  File "(.+)", line (\d+)(?:, in .*)?')
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:<locals>\.[\w.]+)*")
# torch.distributed puts it before each line of an exception that nobody caught.
_RANK = re.compile(r"\[rank\d+\]: ")


def failure_of(
    failures: Mapping[int, ProcessFailure],
    first: int,
    *,
    started: float,
    attempt: int,
    cause: Cause | None = None,
) -> Failure:
    """What restart policies are told of a failure; see `plaunch.restarts.failure_of`."""
    found = failures[first]
    if cause is None:
        cause = Cause.OUT_OF_MEMORY if found.oom_killed else Cause.WORKER
        cause = Cause.HANG if found.hung else cause
    raised = _raised_by(found)
    how = found.describe_exit() if first >= 0 else found.text
    traits = _traits_of(found)
    return Failure(
        cause=cause,
        rank=first,
        host=found.host,
        exitcode=found.exitcode,
        exception=raised.exception,
        message=_one_line(raised.text or how),
        place=raised.place,
        last_lines=tuple(found.last_lines),
        is_retryable=_truth(traits.get("retryability")),
        retry_after=_seconds(traits.get("retry_after")),
        started=started,
        time=found.began,
        attempt=attempt,
        failures=dict(failures),
    )


class _Raised(NamedTuple):
    """An exception: its type, what it says with its type, and where it was raised."""

    exception: str = ""
    text: str = ""
    place: str = ""


def _raised_by(failure: ProcessFailure) -> _Raised:
    if failure.has_reply:
        text = failure.text
        raised = _end_of_traceback(_last_block(failure.traceback.splitlines()))
        if not (raised.exception or raised.place):
            name = text.partition(":")[0]
            is_one = _EXCEPTION.fullmatch(name) and name.rpartition(".")[2][:1].isupper()
            raised = _Raised(name if is_one else "")
        return raised._replace(text=text)
    if failure.exitcode != _UNCAUGHT:
        return _Raised()  # whatever was caught and written before, it did not end the worker
    lines = [_RANK.sub("", line, count=1) for line in failure.last_lines]
    raised = _end_of_traceback(_from_last_frame(lines))
    return raised if raised.exception else _Raised()


def _last_block(lines: Sequence[str]) -> Sequence[str]:
    """What stands behind the last header: before it are causes, in it other workers' exceptions."""
    starts = [number for number, line in enumerate(lines, 1) if line == _HEADER]
    # Of a long one, nodes tell each other the end.
    return lines[starts[-1] :] if starts else _from_last_frame(lines)


def _from_last_frame(lines: Sequence[str]) -> Sequence[str]:
    """The end of the last traceback, whose beginning may be lost."""
    frames = [number for number, line in enumerate(lines) if _FRAME.fullmatch(line)]
    return lines[frames[-1] :] if frames else ()


def _end_of_traceback(lines: Iterable[str]) -> _Raised:
    place = ""
    for line in lines:
        if frame := _FRAME.fullmatch(line):
            place = f"{os.path.basename(frame[1])}:{frame[2]}"
        elif line and not line.startswith(" "):
            name = line.partition(":")[0]
            if _EXCEPTION.fullmatch(name):
                return _Raised(name, line, place)
            break  # what `plaunch.worker` writes, which is no exception
    return _Raised(place=place)


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


def _one_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= _LONGEST_MESSAGE else f"{line[: _LONGEST_MESSAGE - 3]}..."
