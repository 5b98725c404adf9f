"""What the leader does when nodes report that their workers have succeeded."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from plaunch.errors import RendezvousStateError
from plaunch.rendezvous import ENDING_DELAY

from plaunch_membership import transitions

if TYPE_CHECKING:
    from collections.abc import Collection

    from plaunch_membership.membership import Membership
    from plaunch_membership.operations import Routine
    from plaunch_membership.state import JobState


class SuccessReports:
    """Reads which nodes have succeeded; the job ends with the last one.

    If the others do not follow soon, all nodes are notified: those with workers that still run can
    then report where these are.

    Args:
        membership: of the leader.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._incarnation = membership.job.incarnation
        self._round = -1
        self._notify_at = math.inf  # in that round, once half of the nodes have succeeded

    def read(self, running: JobState, members: Collection[str]) -> Routine[set[str]]:
        """Return the nodes that have succeeded in a running round.

        Args:
            running: the state of the job.
            members: the nodes of the round.
        """
        membership, round_ = self._membership, running.round
        try:
            done = yield from membership.done_nodes(round_)
        except RendezvousStateError as error:
            # Lost nodes must be detected nevertheless; the next round has its own counter.
            membership.rejections.note("a report of success", error)
            return set()
        # What is read after the store has lost its data does not change what was read before.
        membership.memory.finished |= done & membership.peers.gone.keys() & {*members}
        succeeded = len(done.intersection(members))
        if succeeded and succeeded == len(members):
            yield from membership.end_succeeded(round_, self._incarnation)
        elif succeeded and 2 * succeeded >= len(members):
            yield from self._notify(round_)
        return done

    def _notify(self, round_: int) -> Routine[None]:
        """Notify all nodes if half of them have succeeded for some time; once in a round."""
        membership, now = self._membership, self._membership.clock()
        if self._round != round_:
            self._round, self._notify_at = round_, now + ENDING_DELAY
        if now >= self._notify_at:
            self._notify_at = math.inf
            notify = partial(transitions.note_ending, node=membership.me, from_round=round_)
            yield from membership.change(notify, self._incarnation)
