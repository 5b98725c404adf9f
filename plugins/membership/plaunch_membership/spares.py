"""The nodes that wait for a place in the job, as the leader knows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plaunch_membership.membership import Membership
    from plaunch_membership.operations import Routine


class Spares:
    """Has them watched, so that no place is given to a dead one.

    Args:
        ours: the leader's membership.
    """

    def __init__(self, ours: Membership) -> None:
        self._ours = ours
        self.hosts: dict[str, str] = {}  # by node, also of those that have gone since
        self.begin(0)

    def begin(self, round_: int) -> None:
        """Look for those that want to be in this round."""
        self._log = self._ours.log_reader(self._ours.keys.joined(round_))
        self.hosts = {}

    def look(self) -> Routine[None]:
        """Read who has come."""
        ours = self._ours
        for ticket, key, value in (yield from self._log.read()):
            node = ours.read_node(ticket, key, value)
            if node is not None:
                ours.peers.watched |= {node.node}
                self.hosts[node.node] = node.host
