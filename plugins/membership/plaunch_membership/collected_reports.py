"""The reports of failures of one round, as the leader collects them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.process import CONSEQUENCE_WINDOW

from plaunch_membership.failures import (
    NO_FAILURES,
    FailureSummary,
    early_ends_from_record,
    merge,
    with_early_ends,
)
from plaunch_membership.records import MAX_NAME, RecordError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from plaunch_membership.membership import Membership
    from plaunch_membership.node import Member
    from plaunch_membership.operations import Routine
    from plaunch_membership.records import StoreRecord

_BATCH = 8  # reports read in one operation; each has up to 700 kB
# Seconds by which the clocks of two hosts may differ. It is longer than the time in which all nodes
# report, and so short that a cause still comes before its consequences.
_CLOCK_TOLERANCE = CONSEQUENCE_WINDOW / 2


class CollectedReports:
    """Reads the reports as they are written, and merges them.

    All nodes report within moments of the first report, so the times at which they do show how
    their wall clocks differ. If a clock differs by seconds from that of the first node, the times
    of its node's failures are corrected by that.

    Args:
        membership: the leader's membership.
        round_: the round whose workers have failed.

    Attributes:
        is_final: whether a node reports that no restart may follow.
    """

    def __init__(self, membership: Membership, round_: int) -> None:
        self.is_final = False
        self._membership = membership
        self._log = membership.log_reader(membership.keys.settled(round_))
        self._summary = NO_FAILURES
        self._reported: set[str] = set()
        self._unread = 0
        self._ended: dict[str, dict[int, float]] = {}
        self._first_at: float | None = None  # when the first node reported, by its clock

    def read(self) -> Routine[None]:
        """Read the reports that were written since the last call, or some of them."""
        for _, key, value in (yield from self._log.read(_BATCH)):
            try:
                self._take(self._membership.codec.decode(key, value))
            except RecordError as error:
                self._membership.rejections.note("a report of failures", error)
                self._unread += 1

    def wait(self, seconds: float) -> Routine[None]:
        """Return when there may be more to read, or after so many seconds."""
        yield from self._log.wait(seconds)

    @property
    def count(self) -> int:
        """How many reports have been read."""
        return len(self._reported) + self._unread

    def count_awaited(self, expected: Collection[str]) -> int:
        """Count those of these nodes that are still to report."""
        # A node whose report cannot be read will not repeat it.
        return max(sum(node not in self._reported for node in expected) - self._unread, 0)

    def summary(self, members: Mapping[str, Member]) -> FailureSummary:
        """Return the failures of all nodes, with the workers that had succeeded before."""
        return with_early_ends(self._summary, members, self._ended)

    def _take(self, record: StoreRecord) -> None:
        node = record.text("node", max_len=MAX_NAME)
        self.is_final = record.flag("is_final") or self.is_final
        if node not in self._reported:
            lead = self._find_lead(record.number("at", default=None))
            failures = FailureSummary.from_record(record).moved(-lead)
            self._summary = merge([self._summary, failures])
            ended = early_ends_from_record(record)
            self._ended[node] = {rank: at - lead for rank, at in ended.items()}
        self._reported.add(node)

    def _find_lead(self, at: float | None) -> float:
        """Return by how much the clock of a node is ahead of the first node's; 0 if by little."""
        if at is None:
            return 0.0
        if self._first_at is None:
            self._first_at = at
        lead = at - self._first_at
        return lead if abs(lead) > _CLOCK_TOLERANCE else 0.0
