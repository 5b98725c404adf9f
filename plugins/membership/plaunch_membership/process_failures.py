"""Failures as the nodes of a job tell each other: from a `ProcessFailure` to JSON and back.

What comes from another node is not trusted: a field that is missing, or that nothing in plaunch
writes like this, is left out; a text is cut, and nothing in it reaches a terminal but characters.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from plaunch.durations import LONGEST
from plaunch.process import Consequence, ProcessFailure, shorten
from plaunch.rendezvous import Verdict

from plaunch_membership.bounds import MAX_NAME, nearest_date, printable
from plaunch_membership.failures import MAX_LISTED, JobFailure

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from plaunch.errors import ExitCode

    from plaunch_membership.failures import FailureGroup
    from plaunch_membership.state import RecordedVerdict

MAX_TEXT_BYTES = 8 << 10  # of a message, of a traceback, and of the last lines together
MAX_BRIEF_BYTES = 200  # of the message of a failure that was not the node's first
MAX_LINES = 20
MAX_DETAILED = 33  # failures of which a node tells more than one sentence

_NODE = -1
_NODES = "launchers"
_CUT = "... "  # stands for the beginning of a text
_CUT_MIDDLE = b" ... "
_MAX_PATH = 4096  # characters
_MAX_TRAIT = 40  # characters
_TRAITS = ("category", "retryability", "retry_after")
_MAX_RANK = 1 << 31
_MAX_PID = 1 << 31
_EXIT_CODES = range(-64, 256)
_MAX_SPANS = 16  # contiguous parts of ranks, in one line


def to_job_failures(failures: Mapping[int, ProcessFailure]) -> list[JobFailure]:
    """What a node tells of its failures (see `JobRendezvous.report_failure`), the first one first.

    Only the first one comes with its traceback and last lines: it alone can be the job's first.
    Of very many, the last ones come with one sentence each.
    """
    ranks = sorted(failures, key=lambda rank: failures[rank].order)
    return [_worker(rank, failures[rank], place) for place, rank in enumerate(ranks)]


def to_verdict(
    recorded: RecordedVerdict, own: Mapping[int, ProcessFailure], *, is_past: bool
) -> Verdict:
    """The verdict for the agent.

    Args:
        recorded: the verdict of the job.
        own: the failures that this node has reported in the last round; they are known in full.
        is_past: whether the job was over before this node came.
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


def failure_of_node(host: str, text: str, code: ExitCode, now: float) -> JobFailure:
    """What is told of a node that is not there any more.

    Args:
        host: its host's name.
        text: what has become of it, in one sentence.
        code: what its launcher exits with, as far as it can.
        now: seconds since the epoch.
    """
    detail = {"host": host, "exit_code": int(code), "message": text}
    return JobFailure(-1, now, text, detail, _NODES)


def from_job_failures(
    told: Sequence[JobFailure], own: Mapping[int, ProcessFailure]
) -> tuple[dict[int, ProcessFailure], int | None]:
    """All failures of a round by global rank, and the rank of the first one, if there is one.

    `told` is what the nodes agreed on, the first one first. `own` are this node's, which are known
    in full; those that the others were not told of are there as well. A launcher that failed has a
    negative number, from -1 on down, which need not be the one that it has in `own`.
    """
    failures: dict[int, ProcessFailure] = {}
    first: int | None = None
    launchers = 0
    for failure in told:
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
        elif (mine.host, mine.timestamp) not in known and len(told) < MAX_LISTED:  # else counted
            launchers += 1
            failures[-launchers] = mine
    return failures, first


def describe_groups(
    groups: Iterable[FailureGroup], known: Mapping[int, ProcessFailure]
) -> dict[str, int]:
    """The failures that nobody tells one by one, in words, and how many each of them stands for.

    `known` are those that a report has beside them: of these, none is counted here once more.
    """
    described: dict[str, int] = {}
    for group in groups:
        apart = {rank for rank in known if any(low <= rank <= high for low, high in group.ranks)}
        spans = _without(group.ranks, apart)
        words = how = printable(group.how)
        if spans:
            words = f"{_describe_spans(spans)} ({how})" if how else _describe_spans(spans)
        words = words or "workers"
        if group.count > len(apart):
            described[words] = described.get(words, 0) + group.count - len(apart)
    return described


def _without(spans: Sequence[tuple[int, int]], ranks: Collection[int]) -> list[tuple[int, int]]:
    """`spans` without some ranks in them."""
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


def _worker(rank: int, failure: ProcessFailure, place: int) -> JobFailure:
    """What is told of the failure that was its node's first, if `place` is 0, or a later one."""
    how = failure.text if failure.hung else failure.headline
    what = f"rank {rank} on {failure.host} (pid {failure.pid}) {failure.verb}: {how}"
    if rank < 0:
        what = f"the launcher on {failure.host} failed: {failure.text}"
    return JobFailure(
        rank=max(rank, _NODE),
        began=failure.began,
        summary=what.partition("\n")[0],
        # That of a launcher is told nowhere else, as that of a worker is on its console.
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


def _rebuild(rank: int, told: JobFailure) -> ProcessFailure:
    """The failure as it was, for the report; files that it names are on the other node."""
    detail = told.detail
    exitcode = _integer(detail, "exit_code", _EXIT_CODES, 1)
    failure = ProcessFailure(
        _integer(detail, "local_rank", range(_MAX_RANK), -1),
        _integer(detail, "pid", range(_MAX_PID), 0),
        exitcode,
        "",
    )
    failure.global_rank = rank
    failure.host = _word(_text(detail, "host"), MAX_NAME) or "an unknown host"
    failure.timestamp = nearest_date(_number(detail, "timestamp", told.began))
    failure.oom_killed = detail.get("oom_killed") is True
    lifetime = _number(detail, "lifetime", -1.0)
    failure.lifetime = lifetime if 0 <= lifetime <= LONGEST else None
    failure.hung = detail.get("hung") is True
    if place := _word(_text(detail, "place"), MAX_NAME):
        failure.place = place
    failure.reason = _word(_text(detail, "reason"), MAX_NAME)
    words = _word(_text(detail, "consequence"), MAX_NAME)
    is_gone = detail.get("is_peer_gone") is True
    failure.consequence = Consequence(words, is_gone) if words else None
    failure.last_lines = _last_lines(_lines(detail, "last_lines"), MAX_LINES, MAX_TEXT_BYTES)
    failure.log_files = [
        f"{failure.host}:{_word(path, _MAX_PATH)}"
        for path in _lines(detail, "log_files")[:MAX_LINES]
    ]
    message = _ends_of(_text(detail, "message"), MAX_TEXT_BYTES)
    traceback = _end_of(_text(detail, "traceback"), MAX_TEXT_BYTES)
    if detail.get("has_reply") is True and message:
        reply: str | dict[str, Any] = message
        if traceback:
            extra = {"py_callstack": traceback, "timestamp": str(int(failure.timestamp))}
            reply = {"message": message, "extraInfo": extra}
        failure.message = reply
        failure.error_file_data = {"message": reply}
        if traits := _traits(detail.get("traits")):
            failure.error_file_data["errorTraits"] = traits
    else:
        failure.message = message or printable(told.summary)
    return failure


def _traits(told: object) -> dict[str, str]:
    """What a worker has said of its own failure, of which restart policies make something."""
    found = told if isinstance(told, dict) else {}
    return {name: _word(str(found[name]), _MAX_TRAIT) for name in _TRAITS if name in found}


def _end_of(text: str, limit: int) -> str:
    """`text`, or its last `limit` bytes: the last call and the error are at the end."""
    # Of what was cut before, nothing is cut once more.
    raw = text.removeprefix(_CUT).encode("utf-8", "backslashreplace")
    if len(raw) > limit:
        return _CUT + raw[-limit:].decode("utf-8", "ignore")
    return (_CUT if text.startswith(_CUT) else "") + raw.decode()


def _ends_of(text: str, limit: int) -> str:
    """`text`, or its beginning and end, of `limit` bytes in all.

    A message begins with the type of the exception; the message of an error may be a traceback,
    which ends with it.
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
    """A name or a path from another node, on one line."""
    return printable(text[:most])


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
    """Ranks in short; of very many parts, the first ones."""
    shown = ",".join(
        str(low) if low == high else f"{low}-{high}" for low, high in spans[:_MAX_SPANS]
    )
    is_one = len(spans) == 1 and spans[0][0] == spans[0][1]
    more = ",..." if len(spans) > _MAX_SPANS else ""
    return f"{'rank' if is_one else 'ranks'} {shown}{more}"
