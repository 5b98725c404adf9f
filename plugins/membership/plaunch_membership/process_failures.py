"""Converts a `ProcessFailure` to JSON for the other nodes of the job, and back.

Input from other nodes is not trusted: fields that are missing or have values that plaunch never
writes are left out, texts are cut, and control characters never reach a terminal.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from plaunch.durations import LONGEST
from plaunch.numbers import name_ranks
from plaunch.process import Consequence, ProcessFailure, describe_failure, shorten
from plaunch.rendezvous import Verdict
from plaunch.texts import printable

from plaunch_membership.failures import MAX_LISTED, JobFailure
from plaunch_membership.records import MAX_NAME, nearest_date

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from plaunch_membership.failures import FailureGroup
    from plaunch_membership.state import RecordedVerdict

MAX_TEXT_BYTES = 8 << 10  # of a message, of a traceback, and of the last lines together
MAX_BRIEF_BYTES = 200  # of the message of a later failure of the node
MAX_LINES = 20
MAX_DETAILED = 33  # failures of a node that are reported with details

_NODE = -1
_NODES = "launchers"
_CUT = "... "  # replaces the beginning of a text
_CUT_MIDDLE = b" ... "
_MAX_PATH_LENGTH = 4096  # characters
_MAX_TRAIT_LENGTH = 40  # characters
_TRAITS = ("category", "retryability", "retry_after")
_MAX_RANK = 1 << 31
_MAX_PID = 1 << 31
_EXIT_CODES = range(-64, 256)
_MAX_SPANS = 16  # ranges of ranks in one line


def to_job_failures(failures: Mapping[int, ProcessFailure]) -> list[JobFailure]:
    """Convert a node's failures (see `JobRendezvous.report_failure`), the first one first.

    Only the first one includes its traceback and last lines, since only it can be the job's first
    failure. Beyond `MAX_DETAILED`, failures are reduced to one sentence.
    """
    ranks = sorted(failures, key=lambda rank: failures[rank].order)
    return [_job_failure(rank, failures[rank], place) for place, rank in enumerate(ranks)]


def to_verdict(
    recorded: RecordedVerdict, own: Mapping[int, ProcessFailure], *, is_past: bool
) -> Verdict:
    """Convert a stored verdict for the agent.

    Args:
        recorded: the verdict of the job.
        own: the failures that this node reported in the last round, with all details.
        is_past: whether the job was over before this node joined.
    """
    failures, first = from_job_failures(recorded.failures, own)
    return Verdict(
        recorded.outcome,
        recorded.node,
        recorded.reason,
        recorded.time,
        failures,
        first,
        describe_groups(recorded.others, failures),
        recorded.no_restart,
        is_past,
        recorded.early_ends,
    )


def failure_of_node(host: str, text: str, code: int, now: float) -> JobFailure:
    """Return the failure of a node that has left or was lost.

    Args:
        host: its hostname.
        text: what happened to it, in one sentence.
        code: the exit code of the job if it ends because of that.
        now: seconds since the epoch.
    """
    detail = {"host": host, "exit_code": code, "message": text}
    return JobFailure(-1, now, text, detail, _NODES)


def from_job_failures(
    agreed: Sequence[JobFailure], own: Mapping[int, ProcessFailure]
) -> tuple[dict[int, ProcessFailure], int | None]:
    """Return all failures of a round by global rank, and the rank of the first one, if any.

    `agreed` are the failures that all nodes know, the first one first. `own` are this node's, with
    all details; those that are not in `agreed` are added. Failures of launchers have negative
    numbers from -1 down, which may differ from those in `own`.
    """
    failures: dict[int, ProcessFailure] = {}
    first: int | None = None
    launchers = 0
    for failure in agreed:
        rank = failure.rank
        if rank < 0:
            launchers += 1
            rank = -launchers
        first = rank if first is None else first
        if rank not in failures:
            failures[rank] = own[rank] if 0 <= rank in own else _rebuild(rank, failure)
    if first is None:
        return {}, None
    known = {(failure.host, failure.timestamp) for rank, failure in failures.items() if rank < 0}
    for rank, mine in own.items():
        if rank >= 0:
            failures.setdefault(rank, mine)
        elif (mine.host, mine.timestamp) not in known and len(agreed) < MAX_LISTED:  # else counted
            launchers += 1
            failures[-launchers] = mine
    return failures, first


def describe_groups(
    groups: Iterable[FailureGroup], known: Mapping[int, ProcessFailure]
) -> dict[str, int]:
    """Describe grouped failures, and how many each description covers.

    `known` are the failures that the report lists individually; they are not counted again.
    """
    described: dict[str, int] = {}
    for group in groups:
        listed = {rank for rank in known if any(low <= rank <= high for low, high in group.ranks)}
        spans = _without(group.ranks, listed)
        words = how = printable(group.how)
        if spans:
            words = f"{_describe_spans(spans)} ({how})" if how else _describe_spans(spans)
        words = words or "workers"
        if group.count > len(listed):
            described[words] = described.get(words, 0) + group.count - len(listed)
    return described


def _without(spans: Sequence[tuple[int, int]], ranks: Collection[int]) -> list[tuple[int, int]]:
    """Remove ranks from `spans`."""
    left = []
    for low, high in spans:
        begin = low
        for rank in sorted(rank for rank in ranks if low <= rank <= high):
            if begin < rank:
                left.append((begin, rank - 1))
            begin = rank + 1
        if begin <= high:
            left.append((begin, high))
    return left


def _job_failure(rank: int, failure: ProcessFailure, place: int) -> JobFailure:
    """Convert one failure; `place` is its position among the node's failures, 0 for the first."""
    what = describe_failure(rank, failure)
    if rank < 0:
        what = f"the launcher on {failure.host} failed: {failure.text}"
    return JobFailure(
        rank=max(rank, _NODE),
        began=failure.began,
        summary=what.partition("\n")[0],
        # Unlike a worker's, the details of a launcher's failure are not on its console.
        detail=(
            _detail(failure, in_full=place == 0 or rank < 0)
            if place < MAX_DETAILED or rank < 0
            else {}
        ),
        how=_NODES if rank < 0 else failure.describe_exit(),
        is_consequence=failure.is_consequence,
    )


def _detail(failure: ProcessFailure, *, in_full: bool) -> dict[str, object]:
    limit = MAX_TEXT_BYTES if in_full else MAX_BRIEF_BYTES
    consequence = failure.consequence
    detail: dict[str, object] = {
        "host": failure.host,
        "local_rank": failure.local_rank,
        "pid": failure.pid,
        "exit_code": failure.exitcode,
        "timestamp": failure.timestamp,
        "oom_killed": failure.oom_killed,
        "lifetime": failure.lifetime,
        "hung": failure.hung,
        "has_reply": failure.has_reply,
        "message": _ends_of(failure.text, limit),
        "place": failure.place,
        "consequence": "" if consequence is None else consequence.words[:MAX_NAME],
        "is_peer_gone": consequence is not None and consequence.is_gone,
        "reason": failure.reason[:MAX_NAME],
        "traits": _traits(failure.error_file_data.get("errorTraits")) if failure.has_reply else {},
    }
    if in_full:
        frames = failure.traceback.splitlines()
        detail["traceback"] = "\n".join(_last_lines(frames, len(frames), limit))
        detail["log_files"] = failure.log_files
    detail["last_lines"] = _last_lines(failure.last_lines, MAX_LINES if in_full else 1, limit)
    return detail


def _rebuild(rank: int, received: JobFailure) -> ProcessFailure:
    """Rebuild a failure of another node; the files that it names are on that node."""
    detail = received.detail
    host = _word(_text(detail, "host"), MAX_NAME) or "an unknown host"
    timestamp = nearest_date(_number(detail, "timestamp", received.began))
    lifetime = _number(detail, "lifetime", -1.0)
    message = _ends_of(_text(detail, "message"), MAX_TEXT_BYTES)
    traceback = _end_of(_text(detail, "traceback"), MAX_TEXT_BYTES)
    has_reply = detail.get("has_reply") is True and bool(message)
    data: dict[str, Any] = {"message": message} if has_reply else {}
    if has_reply and traceback:
        extra = {"py_callstack": traceback, "timestamp": str(int(timestamp))}
        data = {"message": {"message": message, "extraInfo": extra}}
    if has_reply and (traits := _traits(detail.get("traits"))):
        data["errorTraits"] = traits
    return ProcessFailure(
        _integer(detail, "local_rank", range(_MAX_RANK), -1),
        _integer(detail, "pid", range(_MAX_PID), 0),
        _integer(detail, "exit_code", _EXIT_CODES, 1),
        "",
        error_file_data=data,
        message="" if has_reply else message or printable(received.summary),
        timestamp=timestamp,
        global_rank=rank,
        host=host,
        oom_killed=detail.get("oom_killed") is True,
        lifetime=lifetime if 0 <= lifetime <= LONGEST else None,
        hung=detail.get("hung") is True,
        reason=_word(_text(detail, "reason"), MAX_NAME),
        last_lines=_last_lines(_lines(detail, "last_lines"), MAX_LINES, MAX_TEXT_BYTES),
        log_files=[
            f"{host}:{_word(path, _MAX_PATH_LENGTH)}"
            for path in _lines(detail, "log_files")[:MAX_LINES]
        ],
        known_place=_word(_text(detail, "place"), MAX_NAME),
        known_consequence=Consequence(
            _word(_text(detail, "consequence"), MAX_NAME), detail.get("is_peer_gone") is True
        ),
    )


def _traits(value: object) -> dict[str, str]:
    """The traits that a worker gave its failure, which restart policies use."""
    found = value if isinstance(value, dict) else {}
    return {name: _word(str(found[name]), _MAX_TRAIT_LENGTH) for name in _TRAITS if name in found}


def _end_of(text: str, limit: int) -> str:
    """Return the last `limit` bytes of `text`, which contain the last call and the error."""
    # The mark of an earlier cut does not count.
    raw = text.removeprefix(_CUT).encode("utf-8", "backslashreplace")
    if len(raw) > limit:
        return _CUT + raw[-limit:].decode("utf-8", "ignore")
    return (_CUT if text.startswith(_CUT) else "") + raw.decode()


def _ends_of(text: str, limit: int) -> str:
    """Cut `text` to its beginning and end, of `limit` bytes in all.

    A message begins with the type of the exception; an error's message may be a traceback, which
    ends with it.
    """
    raw = text.encode("utf-8", "backslashreplace")
    if len(raw) <= limit:
        return raw.decode()
    head = limit // 4
    kept = raw[:head], raw[head + len(_CUT_MIDDLE) - limit :]
    return _CUT_MIDDLE.decode().join(part.decode("utf-8", "ignore") for part in kept)


def _last_lines(lines: Sequence[str], count: int, limit: int) -> list[str]:
    kept = shorten([line.rstrip("\r\n") for line in lines], count, limit)
    text = _end_of("\n".join(kept), limit)
    return text.split("\n") if text else []


def _text(detail: Mapping[str, object], name: str) -> str:
    value = detail.get(name)
    return value if isinstance(value, str) else ""


def _lines(detail: Mapping[str, object], name: str) -> list[str]:
    value = detail.get(name)
    return [line for line in value if isinstance(line, str)] if isinstance(value, list) else []


def _word(text: str, most: int) -> str:
    """Return a name or path from another node, cut and on one line."""
    return printable(text, most)


def _integer(detail: Mapping[str, object], name: str, allowed: range, default: int) -> int:
    value = detail.get(name)
    return value if type(value) is int and value in allowed else default


def _number(detail: Mapping[str, object], name: str, default: float) -> float:
    value = detail.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return default
    try:
        number = float(value)
    except OverflowError:
        return default
    return number if math.isfinite(number) else default


def _describe_spans(spans: Sequence[tuple[int, int]]) -> str:
    """Describe ranges of ranks; cut after `_MAX_SPANS` ranges."""
    shown = ",".join(
        str(low) if low == high else f"{low}-{high}" for low, high in spans[:_MAX_SPANS]
    )
    return name_ranks(shown + (",..." if len(spans) > _MAX_SPANS else ""))
