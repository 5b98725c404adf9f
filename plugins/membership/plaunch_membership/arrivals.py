"""The nodes that came to an incomplete round, for nodes that wait and nodes that gave up."""

from __future__ import annotations

import itertools
import math
import threading
import time
from typing import TYPE_CHECKING

from plaunch.errors import RendezvousStateError, RendezvousTimeoutError

from plaunch_membership.bounds import MAX_NAME, MAX_REFUSAL, printable
from plaunch_membership.operations import MultiGet
from plaunch_membership.pauses import Pause

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from plaunch_membership.membership import Membership
    from plaunch_membership.node import NodeRecord
    from plaunch_membership.operations import Routine
    from plaunch_membership.state import JobState

_GLANCE = 0.1  # seconds for the first look, which is all that a wait may cost the caller
_LOOK_AROUND = 2.0  # seconds to find out who has come, when it took too long
_LEAST_REST = 2.0  # seconds between two looks
_REST_PER_NODE = 0.02  # seconds, so that a thousand nodes that wait do not keep the store busy
_MOST_NAMED = 16  # nodes, and indices
_MOST_REASON = 200  # characters of why there is another round


class Arrivals:
    """Finds out who is there.

    Args:
        membership: this node's part in the job.
        endpoint: what messages call the store; empty if it has no name.

    Attributes:
        pause: how long the round may not begin yet.
    """

    def __init__(self, membership: Membership, endpoint: str = "") -> None:
        self.pause = Pause(membership.clock)
        self._membership = membership
        self._endpoint = endpoint
        self._present: list[NodeRecord] | None = None
        self._refusal = ""  # the host of the last refused node, and why
        self._look_at = 0.0

    def wanted(self) -> str:
        """How many nodes a round has: "2", or "2 to 4"."""
        least, most = self._membership.identity.min_nodes, self._membership.identity.max_nodes
        return str(least) if least == most else f"{least} to {most}"

    def describe(self) -> str:
        """The nodes that came and where the store is, as far as this node knows.

        Looks again from time to time.
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
            return f"{self.wanted()} nodes{self._absent()}{self._where()}"
        who = self.describe_nodes(self._present)
        round_ = ""
        if state is not None and (why := self._why(state)):
            round_ = f"the next round of job {self._membership.identity.run_id!r}: {why}; it needs "
        came = f"{len(self._present)} came{': ' if who else ''}{who}"
        return f"{round_}{self.wanted()} nodes; {came}{self._absent()}{self._where()}"

    def _why(self, state: JobState) -> str:
        """Why there is another round; empty for the first one."""
        return "" if state.world is None else printable(state.reason[:_MOST_REASON])

    def _where(self) -> str:
        """Where the store is, and which node hosts it, if one does."""
        if not self._endpoint:
            return ""
        hosts = (node.host for node in self._present or () if node.is_host)
        host = "this node" if self._membership.identity.is_host else next(hosts, "")
        hosted = f", hosted by {host}" if host else ""
        return f"; the store is at {printable(self._endpoint + hosted)}"

    def _absent(self) -> str:
        """The hosts that cannot come: those that are excluded, and the last one refused."""
        state = self._membership.state
        hosts = sorted(state.excluded)[:_MOST_NAMED] if state is not None else []
        text = f"; excluded: {printable(', '.join(hosts))}" if hosts else ""
        return f"{text}; refused: {printable(self._refusal)}" if self._refusal else text

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

    def explain_timeout(self) -> RendezvousTimeoutError:
        """Why no round came about in time, as far as this node can find out."""
        identity, timing = self._membership.identity, self._membership.timing
        present = self.look()
        here = self.describe_nodes(present)
        job = f"job {identity.run_id!r} needs {self.wanted()} nodes"
        within = f"within {timing.join_timeout:g} s (--rdzv-conf join_timeout)"
        within += (f": {here}" if here else "") + self._absent()
        state = self._membership.state
        if state is not None and (why := self._why(state)):
            within += f"; {why}"
        if len(present) >= identity.min_nodes:
            return RendezvousTimeoutError(
                f"{job}, and {len(present)} have come, but no round was formed {within}. Check "
                "whether the first of them hangs, and whether last_call_timeout "
                f"({timing.last_call_timeout:g} s) is longer"
            )
        # This node came itself, so nobody at all means that the store, and its host, have gone.
        who = f"{len(present)} came" if present else "it is not known any more how many came"
        where = f" and --rdzv-endpoint ({self._endpoint})" if self._endpoint else ""
        return RendezvousTimeoutError(
            f"{job}, and {who} {within}. Check whether the others were started, with the same "
            f"--rdzv-id{where}"
        )

    def _look(self, looked: threading.Event) -> None:
        membership = self._membership

        def look() -> Routine[None]:
            state = membership.state
            if state is not None:
                refusal = ""
                try:
                    nodes = yield from membership.joined_nodes(state.next_round)
                    refusal = yield from self._find_refusal(state.next_round, nodes.values())
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
                self._present, self._refusal = present, refusal
            looked.set()

        membership.request(look)

    def _find_refusal(self, round_: int, nodes: Iterable[NodeRecord]) -> Routine[str]:
        """The host of the node that was refused last, and why; empty if it has joined since."""
        membership = self._membership
        key = membership.keys.refusal
        (value,) = yield MultiGet([key])
        if value is None:
            return ""
        record = membership.codec.decode(key, value)
        host, before = record.text("host", max_len=MAX_NAME), record.integer("joined", low=0)
        has_joined = any(node.host == host and node.ticket > before for node in nodes)
        if has_joined or record.integer("round", low=0) != round_:
            return ""
        return f"{host} ({record.text('reason', max_len=MAX_REFUSAL)})"
