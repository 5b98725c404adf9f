"""The nodes of a round that the store has lost, as they come back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch_membership.node import Member
from plaunch_membership.records import MAX_NAME, RecordError

if TYPE_CHECKING:
    from plaunch_membership.membership import Membership
    from plaunch_membership.operations import Routine
    from plaunch_membership.state import JobState


class ReturnedNodes:
    """Reads which members of the last round have returned, for a leader that forms the next one.

    Args:
        membership: the leader's membership.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._log = membership.log_reader(membership.keys.returned)
        self._returned: dict[int, dict[str, Member]] = {}  # by their round
        timing = membership.timing
        patience = timing.keep_alive_interval * timing.keep_alive_max_attempt
        self._until = membership.clock() + patience

    def read(self, forming: JobState) -> Routine[dict[str, Member]]:
        """Return the nodes of the last round that have returned; the leader watches them."""
        if not forming.former_nodes:
            return {}
        membership = self._membership
        for _, key, value in (yield from self._log.read()):
            try:
                record = membership.codec.decode(key, value)
                stop_timeout = record.number("stop_timeout")
                member = Member(record.text("host", max_len=MAX_NAME), stop_timeout)
                round_ = record.integer("round", low=0)
                node = record.text("node", max_len=MAX_NAME)
            except RecordError as error:
                membership.rejections.note("a node that has come back", error)
            else:
                self._returned.setdefault(round_, {})[node] = member
        found = self._returned.get(forming.round - 1, {})
        membership.peers.watch_also(found)
        return dict(found)

    def are_needed(self, forming: JobState) -> bool:
        """Whether a round waits for them even if it is full without them.

        Usually others have taken the places of lost nodes. But if only the store has failed, the
        others have waited for a place, and workers of a member that is still away may run.
        """
        return forming.former_nodes > 0 and self._membership.has_lost_data()

    def time_left(self, forming: JobState, returned: int) -> float:
        """Seconds to wait for others, which then count as lost; 0 if none is away.

        Before the first one has returned, their number is not known here.
        """
        if forming.former_nodes:
            is_one_away = returned < forming.former_nodes
        else:
            is_one_away = forming.world is None and self._membership.has_lost_data()
        return max(self._until - self._membership.clock(), 0.0) if is_one_away else 0.0
