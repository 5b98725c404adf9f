"""The nodes that came to an incomplete round, for nodes that wait and nodes that gave up."""

from __future__ import annotations

import itertools
import math
import threading
import time
from typing import TYPE_CHECKING

from plaunch.errors import RendezvousStateError, RendezvousTimeoutError

from plaunch_membership.bounds import printable
from plaunch_membership.pauses import Pause

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plaunch_membership.membership import Membership
    from plaunch_membership.node import NodeRecord
    from plaunch_membership.operations import Routine

_GLANCE = 0.1  # seconds for the first look, which is all that a wait may cost the caller
_LOOK_AROUND = 2.0  # seconds to find out who has come, when it took too long
_LEAST_REST = 2.0  # seconds between two looks
_REST_PER_NODE = 0.02  # seconds, so that a thousand nodes that wait do not keep the store busy
_MOST_NAMED = 16  # nodes, and indices


class Arrivals:
    """Finds out who is there.

    Args:
        membership: this node's part in the job.

    Attributes:
        pause: how long the round may not begin yet.
    """

    def __init__(self, membership: Membership) -> None:
        self.pause = Pause(membership.clock)
        self._membership = membership
        self._present: list[NodeRecord] | None = None
        self._look_at = 0.0

    def wanted(self) -> str:
        """How many nodes a round has: "2", or "2 to 4"."""
        least, most = self._membership.identity.min_nodes, self._membership.identity.max_nodes
        return str(least) if least == most else f"{least} to {most}"

    def describe(self) -> str:
        """The nodes that came, as far as this node knows; looks again from time to time.

        During a pause before the round, when that begins, and why.
        """
        state = self._membership.state
        if state is not None and (left := self.pause.left(state)):
            why = f": {printable(state.reason)}" if state.reason else ""
            return (
                f"the next round of job {self._membership.identity.run_id!r}, in at most "
                f"{math.ceil(left)} s{why}"
            )
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + max(
                _LEAST_REST, _REST_PER_NODE * self._membership.identity.max_nodes
            )
            looked = threading.Event()
            self._look(looked)
            if self._present is None:
                looked.wait(_GLANCE)
        if self._present is None:
            return f"{self.wanted()} nodes{self._excluded()}"
        who = self.describe_nodes(self._present)
        came = f"{len(self._present)} came{': ' if who else ''}{who}"
        return f"{self.wanted()} nodes; {came}{self._excluded()}"

    def _excluded(self) -> str:
        """The hosts that the job goes on without, if there are any."""
        state = self._membership.state
        hosts = sorted(state.excluded)[:_MOST_NAMED] if state is not None else []
        return f"; excluded: {printable(', '.join(hosts))}" if hosts else ""

    def look(self) -> list[NodeRecord]:
        """The nodes that came, by index and in order; waits two seconds at most."""
        looked = threading.Event()
        self._look(looked)
        return list(self._present or ()) if looked.wait(_LOOK_AROUND) else []

    def describe_nodes(self, nodes: Sequence[NodeRecord]) -> str:
        """The hosts of nodes, and the indices that are missing, if any were given."""
        here = ", ".join(node.describe() for node in nodes[:_MOST_NAMED])
        if len(nodes) > _MOST_NAMED:
            here += f" and {len(nodes) - _MOST_NAMED} more"
        least = self._membership.identity.min_nodes
        given = {node.index for node in nodes if node.index is not None}
        count = least - sum(index < least for index in given)
        if not given or not count:
            return here
        absent = (index for index in range(least) if index not in given)
        missing = ", ".join(map(str, itertools.islice(absent, _MOST_NAMED)))
        if count > _MOST_NAMED:
            missing += f" and {count - _MOST_NAMED} more"
        return f"{here}; missing: index {missing}"

    def explain_timeout(self, endpoint: str) -> RendezvousTimeoutError:
        """Why no round came about in time, as far as this node can find out.

        Args:
            endpoint: what messages call the store; empty if it has no name.
        """
        identity, timing = self._membership.identity, self._membership.timing
        present = self.look()
        here = self.describe_nodes(present)
        job = f"job {identity.run_id!r} needs {self.wanted()} nodes"
        within = f"within {timing.join_timeout:g} s (--rdzv-conf join_timeout)"
        within += (f": {here}" if here else "") + self._excluded()
        if len(present) >= identity.min_nodes:
            return RendezvousTimeoutError(
                f"{job}, and {len(present)} have come, but no round was formed {within}. Check "
                "whether the first of them hangs, and whether last_call_timeout "
                f"({timing.last_call_timeout:g} s) is longer"
            )
        # This node came itself, so nobody at all means that the store, and its host, have gone.
        who = f"{len(present)} came" if present else "it is not known any more how many came"
        where = f" and --rdzv-endpoint ({endpoint})" if endpoint else ""
        return RendezvousTimeoutError(
            f"{job}, and {who} {within}. Check whether the others were started, with the same "
            f"--rdzv-id{where}"
        )

    def _look(self, looked: threading.Event) -> None:
        membership = self._membership

        def look() -> Routine[None]:
            state = membership.state
            if state is not None:
                try:
                    nodes = yield from membership.joined_nodes(state.next_round)
                except RendezvousStateError as error:
                    # It is only said who has come; whoever must know will fail by it.
                    membership.doubts.note("who has come", error)
                    nodes = {}
                present = [
                    node
                    for name, node in nodes.items()
                    if name not in membership.peers.lost
                    and name not in membership.peers.gone
                    and node.host not in state.excluded
                ]
                present.sort(key=lambda n: (n.index is None, n.index, n.ticket))
                self._present = present
            looked.set()

        membership.request(look)
