"""The nodes that wait for a place, as the leader knows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plaunch_membership.membership import Membership
    from plaunch_membership.operations import Routine


class Spares:
    """Watches the waiting nodes, so that no place is given to a dead one.

    Args:
        membership: the leader's membership.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self.hosts: dict[str, str] = {}  # by node; includes nodes that have left
        self.reset(0)

    def reset(self, round_: int) -> None:
        """Start over with the nodes that wait for this round."""
        self._log = self._membership.log_reader(self._membership.keys.joined(round_))
        self.hosts = {}

    def read_arrivals(self) -> Routine[None]:
        """Read new arrivals and watch their heartbeats."""
        membership = self._membership
        for ticket, key, value in (yield from self._log.read()):
            node = membership.read_node(ticket, key, value)
            if node is not None:
                membership.peers.watched |= {node.node}
                self.hosts[node.node] = node.host
