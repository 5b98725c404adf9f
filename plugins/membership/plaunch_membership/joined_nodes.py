"""The nodes that have joined a round, as its leader reads their records."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plaunch_membership.membership import Membership
    from plaunch_membership.node import NodeRecord
    from plaunch_membership.operations import Routine


_MOST = 256  # records that the leader waits for before it reads them


class JoinedNodes:
    """Reads the join log of a round as it grows.

    Args:
        membership: the leader's membership.
        round_: the round.

    Attributes:
        nodes: the last record of each node, by its name.
    """

    def __init__(self, membership: Membership, round_: int) -> None:
        self._membership = membership
        self._log = membership.log_reader(membership.keys.joined(round_))
        self.nodes: dict[str, NodeRecord] = {}

    @property
    def has_shrunk(self) -> bool:
        """Whether the store has lost records."""
        return self._log.has_shrunk

    def read(self) -> Routine[None]:
        """Read the records written since the last call, and let the leader watch their nodes."""
        found = self._membership.read_nodes((yield from self._log.read()))
        fresh = {
            name: node
            for name, node in found.items()
            if name not in self.nodes or self.nodes[name].ticket < node.ticket
        }
        if fresh:
            self.nodes |= fresh
            self._membership.peers.watch_also(fresh)

    def wait(self, seconds: float, needed: int) -> Routine[None]:
        """Return when there may be more to read, or after so many seconds.

        Args:
            seconds: the time, in seconds.
            needed: how many further nodes the round needs at least. Without it, the leader would
                read the records one by one.
        """
        yield from self._log.wait(seconds, min(max(needed, 1), _MOST))
