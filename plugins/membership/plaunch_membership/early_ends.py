"""Workers that had succeeded before others failed, in records and in reports."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from plaunch.process import describe_early_ends

from plaunch_membership.bounds import nearest_date
from plaunch_membership.failures import bounded_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch_membership.failures import FailureSummary
    from plaunch_membership.node import Member
    from plaunch_membership.records import StoreRecord

_MAX_WORKERS = 1024  # of one node


def to_records(ended: Mapping[int, float]) -> list[dict[str, object]]:
    """Convert the times at which workers ended, by global rank; the earliest `_MAX_WORKERS`."""
    ranks = sorted(ended, key=lambda rank: ended[rank])[:_MAX_WORKERS]
    return [{"rank": rank, "at": nearest_date(ended[rank])} for rank in ranks]


def from_record(record: StoreRecord) -> dict[int, float]:
    """Read the output of `to_records` from the field `succeeded`.

    Raises:
        RecordError: the field is invalid.
    """
    found = record.records("succeeded", default=[])[:_MAX_WORKERS]
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
