"""Failures as records hold them, bounded for jobs of any size.

The first failure is stored in full and the next ones in brief, as many as a report lists. All
others are counted by how they ended. A record of failures takes about 700 kB at most, less than the
size limit of a record.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from plaunch.process import CONSEQUENCE_WINDOW, describe_early_ends
from plaunch.texts import printable

from plaunch_membership.records import MAX_REASON, nearest_date

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from plaunch_membership.node import Member
    from plaunch_membership.records import StoreRecord

MAX_LISTED = 33  # failures that are listed individually
MAX_GROUPS = 16
MAX_SPANS = 64  # ranges of ranks in one group
MAX_WORDS = 100  # characters of how failures ended

_MAX_FIRST_BYTES = 160 << 10  # of the first failure's details, as JSON
_MAX_OTHER_BYTES = 8 << 10  # of each other failure's details
_MAX_SUMMARY = 300  # of the summary of a failure that is not the first
_MAX_LINES = 16  # about workers that had succeeded
_MAX_EARLY_ENDS = 1024  # of one node
_MAX_DEPTH = 6  # of nested lists and objects
# The limits for characters of a text and items of a list, tried in this order.
_CUTS = ((64 << 10, 40), (8192, 40), (2048, 20), (512, 5), (128, 2), (32, 1))
_MAX_NUMBER = 1 << 53  # the limit for the absolute value of numbers
_ANY_OTHER = "in other ways"
_ELLIPSIS = "... "


@dataclass(frozen=True)
class JobFailure:
    """One worker's failure, as nodes report it to each other.

    Args:
        rank: the worker's global rank; -1 for a failure of the node itself.
        began: when it began, in seconds since the epoch on the node's clock. The earliest is the
            job's first failure, unless it is a consequence.
        summary: what happened, in one sentence.
        detail: details for the report, as JSON values. Other nodes receive up to 160 KiB of the
            job's first failure and 8 KiB of others; texts are cut.
        how: how it ended, in a few words such as "exit code 1". Failures beyond the limit are
            grouped and counted by it.
        is_consequence: whether it only reports that a peer is gone. It is then not the first
            failure if another one began shortly after.
    """

    rank: int
    began: float
    summary: str
    detail: Mapping[str, object] = field(default_factory=dict)
    how: str = ""
    is_consequence: bool = False


@dataclass(frozen=True)
class FailureGroup:
    """Failures beyond the limit that ended in the same way.

    Args:
        how: how they ended (`JobFailure.how`).
        count: how many there are.
        ranks: their global ranks, as ranges of first and last rank, up to `MAX_SPANS` ranges.
            Failures of nodes have none.
    """

    how: str
    count: int
    ranks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class FailureSummary:
    """The failures in a report.

    Args:
        failures: those that are listed individually, the first one first.
        groups: all others, counted.
        early_ends: the workers that had succeeded before, one line for each node.
    """

    failures: tuple[JobFailure, ...] = ()
    groups: tuple[FailureGroup, ...] = ()
    early_ends: tuple[str, ...] = ()

    @property
    def cause(self) -> str:
        """The first failure in one sentence, with the early ends if it is a consequence."""
        first = self.failures[0]
        early_ends = self.early_ends if first.is_consequence else ()
        return "; ".join((first.summary, *early_ends))

    def moved(self, seconds: float) -> FailureSummary:
        """Return it with other times; they decide the order only, and reports show the details."""
        if not seconds:
            return self
        failures = [
            replace(failure, began=nearest_date(failure.began + seconds))
            for failure in self.failures
        ]
        return replace(self, failures=tuple(failures))

    def to_record(self) -> dict[str, object]:
        """Return the fields of its record."""
        return {
            "failures": [
                {
                    "rank": failure.rank,
                    "began": failure.began,
                    "summary": failure.summary,
                    "how": failure.how,
                    "is_consequence": failure.is_consequence,
                    "detail": failure.detail,
                }
                for failure in self.failures
            ],
            "others": [
                {"how": group.how, "count": group.count, "ranks": [list(s) for s in group.ranks]}
                for group in self.groups
            ],
            "early_ends": list(self.early_ends),
        }

    @classmethod
    def from_record(cls, record: StoreRecord) -> FailureSummary:
        """Read the failures of a record, bounded.

        Raises:
            RecordError: a field is invalid.
        """
        failures = [
            JobFailure(
                rank=found.integer("rank", low=-1),
                began=found.date("began"),
                summary=found.text("summary", max_len=MAX_REASON),
                detail=found.record("detail").raw,
                how=found.text("how", max_len=MAX_WORDS, default=""),
                is_consequence=found.flag("is_consequence", default=False),
            )
            for found in record.records("failures")
        ]
        groups = [
            FailureGroup(
                how=found.text("how", max_len=MAX_WORDS),
                count=found.integer("count", low=1),
                ranks=_spans_of(found),
            )
            for found in record.records("others", default=[])
        ]
        early_ends = bounded_lines(record.texts("early_ends", default=[]))
        return replace(summarize(failures, groups), early_ends=early_ends)


NO_FAILURES = FailureSummary()


def summarize(
    failures: Iterable[JobFailure], groups: Iterable[FailureGroup] = ()
) -> FailureSummary:
    """Summarize `failures`, in any order, and failures that are already grouped."""
    in_order = sorted(map(_checked, failures), key=_order)
    listed = [
        _cut_failure(failure, is_first=not i) for i, failure in enumerate(in_order[:MAX_LISTED])
    ]
    return FailureSummary(tuple(listed), _grouped(in_order[MAX_LISTED:], groups))


def merge(summaries: Sequence[FailureSummary]) -> FailureSummary:
    """Merge summaries; the earliest failures come first."""
    firsts = {id(one.failures[0]) for one in summaries if one.failures}
    in_order = sorted((failure for one in summaries for failure in one.failures), key=_order)
    failures = [
        _cut_failure(failure, is_first=False) if i and id(failure) in firsts else failure
        for i, failure in enumerate(in_order[:MAX_LISTED])
    ]
    groups = (group for one in summaries for group in one.groups)
    return FailureSummary(tuple(failures), _grouped(in_order[MAX_LISTED:], groups))


def bounded_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Bound the lines of a record for a report."""
    return tuple(printable(line, _MAX_SUMMARY) for line in lines[:_MAX_LINES])


def _order(failure: JobFailure) -> float:
    return failure.began + (CONSEQUENCE_WINDOW if failure.is_consequence else 0.0)


def _checked(failure: JobFailure) -> JobFailure:
    """Replace a rank or date that a record cannot hold."""
    rank = failure.rank if -1 <= failure.rank < _MAX_NUMBER else -1
    # A failure of unknown time is never the first.
    began = nearest_date(failure.began if math.isfinite(failure.began) else math.inf)
    if (rank, began) == (failure.rank, failure.began):
        return failure
    return replace(failure, rank=rank, began=began)


def _cut_failure(failure: JobFailure, *, is_first: bool) -> JobFailure:
    return JobFailure(
        rank=failure.rank,
        began=failure.began,
        summary=cut(failure.summary, MAX_REASON if is_first else _MAX_SUMMARY),
        detail=_fitting(failure.detail, _MAX_FIRST_BYTES if is_first else _MAX_OTHER_BYTES),
        how=cut(failure.how, MAX_WORDS),
        is_consequence=failure.is_consequence,
    )


def cut(text: str, most: int) -> str:
    """Return the first `most` characters of `text`, on one line, without control characters."""
    return printable(text, most)


# --- workers that had succeeded before others failed --------------------------------------------


def early_ends_to_records(ended: Mapping[int, float]) -> list[dict[str, object]]:
    """Convert the times at which workers ended, by global rank; the earliest `_MAX_EARLY_ENDS`."""
    ranks = sorted(ended, key=lambda rank: ended[rank])[:_MAX_EARLY_ENDS]
    return [{"rank": rank, "at": nearest_date(ended[rank])} for rank in ranks]


def early_ends_from_record(record: StoreRecord) -> dict[int, float]:
    """Read the output of `early_ends_to_records` from the field `succeeded`.

    Raises:
        RecordError: the field is invalid.
    """
    found = record.records("succeeded", default=[])[:_MAX_EARLY_ENDS]
    return {one.integer("rank", low=0): one.date("at") for one in found}


def with_early_ends(
    summary: FailureSummary,
    members: Mapping[str, Member],
    ended: Mapping[str, Mapping[int, float]],
) -> FailureSummary:
    """Add one line for each node on which workers had succeeded before the first failure.

    Args:
        summary: the failures of all nodes.
        members: the nodes of the round.
        ended: the times at which workers succeeded, by node and global rank.
    """
    if not summary.failures:
        return summary
    until = summary.failures[0].began
    lines = [
        describe_early_ends(times, until, members[node].host)
        for node, times in ended.items()
        if node in members
    ]
    return replace(summary, early_ends=bounded_lines([line for line in lines if line]))


# --- details --------------------------------------------------------------------------------------


def _fitting(detail: Mapping[str, object], most: int) -> dict[str, object]:
    """Convert `detail` to JSON values of at most `most` bytes by cutting texts; else empty."""
    for chars, items in _CUTS:
        plain = {
            _end_of(str(key), chars): _plain(value, chars, items) for key, value in detail.items()
        }
        if len(json.dumps(plain, allow_nan=False)) <= most:
            return plain
    return {}


def _plain(value: object, chars: int, items: int, depth: int = 1) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _end_of(value, chars)
    if isinstance(value, (int, float)):
        return value if abs(value) < _MAX_NUMBER else None
    if depth < _MAX_DEPTH and isinstance(value, Mapping):
        return {
            _end_of(str(key), chars): _plain(item, chars, items, depth + 1)
            for key, item in value.items()
        }
    if depth < _MAX_DEPTH and isinstance(value, (list, tuple)):
        return [_plain(item, chars, items, depth + 1) for item in value[-items:]]
    return None


def _end_of(text: str, chars: int) -> str:
    """Return the end of `text`, where a traceback has the error."""
    return text if len(text) <= chars else _ELLIPSIS + text[-chars:]


# --- groups ---------------------------------------------------------------------------------------


def _grouped(
    failures: Iterable[JobFailure], groups: Iterable[FailureGroup]
) -> tuple[FailureGroup, ...]:
    """Add failures to the groups; the largest group first."""
    counts: dict[str, int] = {}
    ranks: dict[str, list[tuple[int, int]]] = {}

    def add(how: str, count: int, spans: Iterable[tuple[int, int]]) -> None:
        counts[how] = counts.get(how, 0) + count
        ranks.setdefault(how, []).extend(spans)

    for failure in failures:
        span = [(failure.rank, failure.rank)] if failure.rank >= 0 else []
        add(cut(failure.how, MAX_WORDS), 1, span)
    for group in groups:
        add(cut(group.how, MAX_WORDS), group.count, group.ranks)
    by_size = sorted(counts, key=lambda how: (how == _ANY_OTHER, -counts[how], how))
    for how in by_size[MAX_GROUPS - 1 :] if len(by_size) > MAX_GROUPS else ():
        if how != _ANY_OTHER:
            add(_ANY_OTHER, counts.pop(how), ranks.pop(how))
    return tuple(
        FailureGroup(how, min(counts[how], _MAX_NUMBER - 1), _joined(ranks[how]))
        for how in sorted(counts, key=lambda how: (how == _ANY_OTHER, -counts[how], how))
    )


def _joined(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Sort spans, join adjacent ones, and keep the first `MAX_SPANS`."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    return tuple(found[:MAX_SPANS])


def _spans_of(group: StoreRecord) -> tuple[tuple[int, int], ...]:
    spans = group.get("ranks")
    if not isinstance(spans, list):
        group.refuse("the ranks are not a list")
    found = []
    for span in spans[:MAX_SPANS]:
        if not (isinstance(span, list) and len(span) == 2 and all(type(n) is int for n in span)):
            group.refuse("the ranks are not pairs of whole numbers")
        low, high = span
        if not 0 <= low <= high < _MAX_NUMBER:
            group.refuse("the ranks are not in order")
        found.append((low, high))
    return tuple(found)
