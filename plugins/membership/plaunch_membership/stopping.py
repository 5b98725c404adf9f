"""Nodes that leave the job or are excluded from it, and whose workers may still run.

Workers that stop may save a checkpoint, so the next round waits for them.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from plaunch_membership.membership import Membership
    from plaunch_membership.node import Member

_log = logging.getLogger("plaunch")


class StoppingNodes:
    """Finds the nodes that the next round waits for although they do not rejoin.

    Such a node writes a record on the join log when its workers have ended. It has a limited time
    for that, on the clock of this node, from when this node knew that it does not rejoin.

    Args:
        membership: this node's membership.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    def find(self, members: Mapping[str, Member], joined: Collection[str]) -> dict[str, float]:
        """Return these nodes, and until when they are awaited; that time may have passed.

        Args:
            members: the nodes of the last round.
            joined: the nodes that have joined the next one; their workers have ended.
        """
        membership, peers = self._membership, self._membership.peers
        now, state = membership.clock(), membership.state
        excluded = () if state is None else state.excluded
        found = {}
        for name, member in members.items():
            if name in joined or name in peers.stopped or name in peers.lost:
                continue
            if name in peers.gone or member.host in excluded:
                began = peers.left_at.setdefault(name, now)
                found[name] = began + membership.timing.stop_patience(member.stop_timeout)
        peers.stopping = found
        return found

    def time_left(self, members: Mapping[str, Member], joined: Collection[str]) -> float:
        """Return the seconds that the next round still waits for them; negative without any."""
        until = self.find(members, joined).values()
        return max(until, default=-math.inf) - self._membership.clock()

    def give_up(self, members: Mapping[str, Member], round_: int) -> None:
        """Log which nodes a round no longer waits for."""
        for name in self._membership.peers.stopping.keys() & members.keys():
            _log.warning(
                "node %s leaves job %r and has not reported within %g s that its workers have "
                "ended; round %d begins nevertheless",
                members[name].host,
                self._membership.identity.run_id,
                self._membership.timing.stop_patience(members[name].stop_timeout),
                round_,
            )
