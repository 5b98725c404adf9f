"""Failures as the nodes of a job tell each other: from a `ProcessFailure` to JSON and back.

What comes from another node is not trusted: a field that is missing or of another type is left out.
"""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING, Any

from plaunch.errors import PlaunchError
from plaunch.process.error_file import text_of, traceback_of
from plaunch.process.failures import NOT_AVAILABLE, ProcessFailure
from plaunch.rendezvous.job import JobFailure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_TEXT_BYTES = 8 << 10  # of a message, of a traceback, and of the last lines together
MAX_BRIEF_BYTES = 200  # of the message of a failure that was not the node's first
MAX_LINES = 20
MAX_FAILURES = 32  # that one node tells of

_NODE = -1


def to_job_failures(failures: Mapping[int, ProcessFailure]) -> list[JobFailure]:
    """What a node tells of its workers' failures (by global rank), the first one first.

    Only the first one comes with its traceback and last lines: it alone can be the job's first.
    """
    ranks = sorted(failures, key=lambda rank: failures[rank].began)[:MAX_FAILURES]
    return [_worker(rank, failures[rank], in_full=rank == ranks[0]) for rank in ranks]


def node_failure(error: BaseException, host: str, what: str = "") -> JobFailure:
    """What a node tells when it failed itself, and not its workers: of `error`, or of `what`."""
    text = what or (str(error) if isinstance(error, PlaunchError) else repr(error))
    return JobFailure(
        rank=_NODE,
        began=time.time(),
        summary=f"the launcher on {host} failed: {text.partition(chr(10))[0]}",
        detail={
            "host": host,
            "pid": os.getpid(),
            "exit_code": int(getattr(error, "exit_code", 1)),
            "has_reply": True,
            "message": _end_of(text, MAX_TEXT_BYTES),
            "timestamp": time.time(),
        },
    )


def from_job_failures(
    told: Sequence[JobFailure], own: Mapping[int, ProcessFailure]
) -> tuple[dict[int, ProcessFailure], int]:
    """All failures of a round by global rank, and the rank of the first one.

    `told` is what the nodes agreed on, the first one first, and not empty. `own` are this node's,
    which are known in full; those that the others were not told of are there as well. A node that
    failed itself has a negative number, from -1 on down.
    """
    failures: dict[int, ProcessFailure] = {}
    ranks = []
    nodes = 0
    for failure in told:
        rank = failure.rank
        if rank < 0:
            nodes += 1
            rank = -nodes
        ranks.append(rank)
        failures.setdefault(rank, own.get(rank) or _rebuild(rank, failure))
    for rank, mine in own.items():
        failures.setdefault(rank, mine)
    return failures, ranks[0]


def _worker(rank: int, failure: ProcessFailure, *, in_full: bool) -> JobFailure:
    limit = MAX_TEXT_BYTES if in_full else MAX_BRIEF_BYTES
    what = f"rank {rank} on {failure.host} (pid {failure.pid}) failed: {failure.describe_exit()}"
    if rank < 0:
        what = f"the launcher on {failure.host} failed: {text_of(failure.message)}"
    detail: dict[str, object] = {
        "host": failure.host,
        "local_rank": failure.local_rank,
        "pid": failure.pid,
        "exit_code": failure.exitcode,
        "timestamp": failure.timestamp,
        "oom_killed": failure.oom_killed,
        "has_reply": failure.has_reply,
        "error_file": failure.error_file,
        "message": _end_of(text_of(failure.message), limit),
    }
    if in_full:
        detail["traceback"] = _end_of(traceback_of(failure.message), limit)
        detail["log_files"] = failure.log_files
    detail["last_lines"] = _last_lines(failure.last_lines, MAX_LINES if in_full else 1, limit)
    return JobFailure(
        rank=rank,
        began=failure.began,
        summary=what.partition("\n")[0],
        detail=detail,
    )


def _rebuild(rank: int, told: JobFailure) -> ProcessFailure:
    """The failure as it was, for the report; files that it names are on the other node."""
    detail = told.detail
    exitcode = _integer(detail, "exit_code", 1)
    failure = ProcessFailure(
        _integer(detail, "local_rank", -1), _integer(detail, "pid", 0), exitcode, ""
    )
    failure.global_rank = rank
    failure.host = _text(detail, "host") or "an unknown host"
    failure.timestamp = _number(detail, "timestamp", told.began)
    failure.oom_killed = detail.get("oom_killed") is True
    failure.last_lines = _lines(detail, "last_lines")
    failure.log_files = [f"{failure.host}:{path}" for path in _lines(detail, "log_files")]
    path = _text(detail, "error_file")
    if path and path != NOT_AVAILABLE:
        failure.error_file = f"{failure.host}:{path}"
    message = _text(detail, "message")
    traceback = _text(detail, "traceback")
    if detail.get("has_reply") is True and message:
        reply: str | dict[str, Any] = message
        if traceback:
            extra = {"py_callstack": traceback, "timestamp": str(int(failure.timestamp))}
            reply = {"message": message, "extraInfo": extra}
        failure.message = reply
        failure.error_file_data = {"message": reply}
    else:
        failure.message = message or told.summary
    return failure


def _end_of(text: str, limit: int) -> str:
    """`text`, or its last `limit` bytes: the last call and the error are at the end."""
    raw = text.encode("utf-8", "backslashreplace")
    if len(raw) <= limit:
        return raw.decode()
    return f"... {raw[-limit:].decode('utf-8', 'ignore')}"


def _last_lines(lines: Sequence[str], count: int, limit: int) -> list[str]:
    text = _end_of("\n".join(line.rstrip("\r\n") for line in lines[-count:]), limit)
    return text.split("\n") if text else []


def _text(detail: Mapping[str, object], name: str) -> str:
    value = detail.get(name)
    return value if isinstance(value, str) else ""


def _lines(detail: Mapping[str, object], name: str) -> list[str]:
    value = detail.get(name)
    return [line for line in value if isinstance(line, str)] if isinstance(value, list) else []


def _integer(detail: Mapping[str, object], name: str, default: int) -> int:
    value = detail.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _number(detail: Mapping[str, object], name: str, default: float) -> float:
    value = detail.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return default
    return float(value)
