"""The summary of the nodes that have arrived for a round, which its leader writes for the others.

Only the leader reads the records of all nodes. A node that waits reads this summary, whose size
does not depend on their number.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from plaunch_membership.operations import MultiGet, Set
from plaunch_membership.records import MAX_NAME, MAX_REFUSAL, RecordError
from plaunch_membership.state import host_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from plaunch_membership.membership import Membership
    from plaunch_membership.node import Member, NodeRecord
    from plaunch_membership.operations import Routine
    from plaunch_membership.records import StoreRecord
    from plaunch_membership.state import JobState

MAX_NAMED = 16  # nodes, and indices

_FIRST_PAUSE = 0.1  # seconds from the beginning of a round to its first summary
_PAUSE_PER_NODE = 0.0005  # seconds between two summaries, as one takes longer with more nodes
_INTERVAL = 2.0  # seconds between two checks for refused nodes
_MAX_TEXT = 4 * MAX_NAME


@dataclass(frozen=True)
class ArrivalSummary:
    """The nodes that have arrived for a round.

    Args:
        count: their number.
        nodes: those with the lowest indices, as messages describe them.
        missing: the lowest indices that no node has, if nodes were given any.
        missing_count: how many indices are missing.
        store_host: the one of the nodes that hosts the store; empty if none does.
        stopping: the nodes that leave and whose workers the round waits for, and the seconds that
            it still waits.
        refusal: the host of the last refused node, and why.
    """

    count: int
    nodes: tuple[str, ...] = ()
    missing: tuple[int, ...] = ()
    missing_count: int = 0
    store_host: str = ""
    stopping: Mapping[str, float] = field(default_factory=dict)
    refusal: str = ""

    def describe_nodes(self) -> str:
        """List the nodes, and the missing indices, if any were given."""
        here = _list(self.nodes, self.count)
        if not self.missing:
            return here
        return f"{here}; missing: index {_list(map(str, self.missing), self.missing_count)}"

    def to_record(self) -> dict[str, object]:
        """Return the fields of its record."""
        return {
            "count": self.count,
            "nodes": list(self.nodes),
            "missing": list(map(str, self.missing)),
            "missing_count": self.missing_count,
            "store_host": self.store_host,
            "stopping": dict(self.stopping),
            "refusal": self.refusal,
        }

    @classmethod
    def from_record(cls, record: StoreRecord) -> ArrivalSummary:
        """Read a summary.

        Raises:
            RecordError: a field is invalid.
        """
        stopping = record.record("stopping")
        missing = record.texts("missing")[:MAX_NAMED]
        if not all(index.isdecimal() for index in missing):
            record.refuse("an index is not a number")
        return cls(
            count=record.integer("count", low=0),
            nodes=tuple(node[:_MAX_TEXT] for node in record.texts("nodes")[:MAX_NAMED]),
            missing=tuple(map(int, missing)),
            missing_count=record.integer("missing_count", low=0),
            store_host=record.text("store_host", max_len=MAX_NAME),
            stopping={name: stopping.number(name) for name in [*stopping][:MAX_NAMED]},
            refusal=record.text("refusal", max_len=MAX_NAME + MAX_REFUSAL + 3),
        )


def summarize(nodes: Collection[NodeRecord], min_nodes: int) -> ArrivalSummary:
    """Return the summary of these nodes, of at least `min_nodes` that a round needs."""
    named = heapq.nsmallest(
        MAX_NAMED, nodes, key=lambda node: (node.index is None, node.index or 0, node.ticket)
    )
    given = {node.index for node in nodes if node.index is not None}
    absent = (index for index in range(min_nodes) if index not in given)
    missing = tuple(itertools.islice(absent, MAX_NAMED)) if given else ()
    return ArrivalSummary(
        len(nodes),
        tuple(node.describe() for node in named),
        missing,
        min_nodes - sum(index < min_nodes for index in given) if missing else 0,
        next((node.host for node in nodes if node.is_host), ""),
    )


class ArrivalReporter:
    """Writes the summary of one round while the leader waits for it, if it has changed.

    Args:
        membership: the leader's membership.
        round_: the round that is formed.
    """

    def __init__(self, membership: Membership, round_: int) -> None:
        self._membership = membership
        self._round = round_
        self._seen: object = None  # what the last summary was made of
        self._written: ArrivalSummary | None = None
        self._earliest = self._next = membership.clock() + _FIRST_PAUSE

    @property
    def pause(self) -> float:
        """Seconds until `write` is to be called again, if nothing changes before."""
        return max(self._next - self._membership.clock(), 0.0)

    def write(
        self,
        forming: JobState,
        present: Mapping[str, NodeRecord],
        members: Mapping[str, Member],
        stopping: Mapping[str, float],
    ) -> Routine[None]:
        """Write the summary, if it is time and something has changed.

        Args:
            forming: the state of the job.
            present: the nodes that have arrived, without those that are gone, by name.
            members: the nodes of the last round, in order of their ranks.
            stopping: those of them that leave, and until when their workers are awaited.
        """
        membership, now = self._membership, self._membership.clock()
        if now < self._earliest:
            self._next = self._earliest
            return
        stops = _describe_stopping(members, stopping, now)
        seen = frozenset(present), stops
        if seen == self._seen and now < self._next:
            return
        self._seen = seen
        self._earliest = now + max(_FIRST_PAUSE, _PAUSE_PER_NODE * len(present))
        self._next = max(now + _INTERVAL, self._earliest)
        nodes = present.values()
        refusal = yield from self._find_refusal(forming, nodes)
        found = summarize(nodes, membership.identity.min_nodes)
        summary = replace(found, stopping=stops, refusal=refusal)
        if summary != self._written:
            self._written = summary
            key = membership.keys.arrivals(self._round)
            yield Set(key, membership.codec.encode(key, summary.to_record()))

    def _find_refusal(self, forming: JobState, nodes: Collection[NodeRecord]) -> Routine[str]:
        """Return the last refused host and the reason; empty if it has joined since."""
        membership = self._membership
        key = membership.keys.refusal
        (value,) = yield MultiGet([key])
        if value is None:
            return ""
        try:
            record = membership.codec.decode(key, value)
            host, before = record.text("host", max_len=MAX_NAME), record.integer("joined", low=0)
            reason = record.text("reason", max_len=MAX_REFUSAL)
            round_ = record.integer("round", low=0)
        except RecordError as error:
            membership.rejections.note("why a node was refused", error)
            return ""
        has_joined = any(node.host == host and node.ticket > before for node in nodes)
        return "" if has_joined or round_ != forming.round else f"{host} ({reason})"


def _describe_stopping(
    members: Mapping[str, Member], stopping: Mapping[str, float], now: float
) -> dict[str, float]:
    if not stopping:
        return {}
    index = {name: rank for rank, name in enumerate(members)}
    left = {
        f"{host_of(name)} (index {index[name]})": float(math.ceil(until - now))
        for name, until in stopping.items()
        if until > now and name in index
    }
    return dict(itertools.islice(left.items(), MAX_NAMED))


def _list(named: Collection[str] | map[str], count: int) -> str:
    names = list(named)
    more = count - len(names)
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")
