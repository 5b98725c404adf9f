"""Which nodes have arrived for a round that is incomplete, for wait messages and timeout errors."""

from __future__ import annotations

import itertools
import math
import threading
import time
from typing import TYPE_CHECKING

from plaunch.durations import LONGEST
from plaunch.errors import RendezvousStateError, RendezvousTimeoutError
from plaunch.texts import printable

from plaunch_membership.operations import MultiGet
from plaunch_membership.options import WAIT_BOUNDS
from plaunch_membership.records import MAX_NAME, MAX_REFUSAL
from plaunch_membership.state import JobPhase, host_of
from plaunch_membership.stopping import StoppingNodes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from plaunch_membership.membership import Membership
    from plaunch_membership.node import NodeRecord
    from plaunch_membership.operations import Routine
    from plaunch_membership.options import WaitBounds
    from plaunch_membership.state import JobState

_FIRST_QUERY_TIMEOUT = 0.1  # seconds that the first query may delay the caller
_QUERY_TIMEOUT = 2.0  # seconds for the query after a timeout
_INTERVAL_PER_NODE = 0.02  # seconds, so that a thousand waiting nodes do not overload the store
_MAX_NAMED = 16  # nodes, and indices
_MAX_REASON_LENGTH = 200  # characters of the reason for the round


class Arrivals:
    """Finds out which nodes have arrived.

    Args:
        membership: this node's membership.
        endpoint: the endpoint of the store, for messages; empty if it has none.
        bounds: the interval of queries.

    Attributes:
        restart_delay: the delay before the round.
    """

    def __init__(
        self,
        membership: Membership,
        endpoint: str = "",
        bounds: WaitBounds = WAIT_BOUNDS,
    ) -> None:
        self.restart_delay = RestartDelay(membership.clock)
        self._membership = membership
        self._wait_until = math.inf  # on the membership's clock
        self._patience = membership.timing.join_timeout
        self._finished: list[str] = []
        self._endpoint = endpoint
        self._query_interval = bounds.query_interval
        self._present: list[NodeRecord] | None = None
        self._refusal = ""  # the host of the last refused node, and why
        self._stopping: dict[str, float] = {}  # nodes that leave, and until when they are awaited
        self._query_at = 0.0

    def note_wait(self, began: float, patience: float) -> float:
        """Note that this node waits for a round for `patience` seconds; return those left."""
        timing = self._membership.timing
        # A start timeout of the launch ends the wait before `patience`.
        self._patience = min(patience, timing.join_timeout)
        self._finished = self._find_finished()
        if self._finished:  # as for nodes that are lost
            silence = timing.keep_alive_interval * timing.keep_alive_max_attempt
            patience = self._patience = min(self._patience, silence)
        self._wait_until = began + self._patience
        return began + patience - self._membership.clock()

    def _find_finished(self) -> list[str]:
        """Return the hosts of nodes that do not return, if a round needs them.

        Their workers have succeeded, and they have left; then another node has failed, or the store
        has lost the job.
        """
        membership, memory = self._membership, self._membership.memory
        if memory.nodes - len(memory.finished) >= membership.identity.min_nodes:
            return []
        return sorted(map(host_of, memory.finished))[:_MAX_NAMED]

    def wanted(self) -> str:
        """The number of nodes of a round: "2", or "2 to 4"."""
        least, most = self._membership.identity.min_nodes, self._membership.identity.max_nodes
        return str(least) if least == most else f"{least} to {most}"

    def describe(self) -> str:
        """Describe the nodes that have arrived and where the store is, as far as known.

        The nodes are queried again from time to time. During the delay before a restart, it
        describes that delay and its reason instead.
        """
        state = self._membership.state
        if state is not None and (left := self.restart_delay.left(state)):
            why = f": {printable(state.why)}" if state.why else ""
            return (
                f"the next round of job {self._membership.identity.run_id!r}, in at most "
                f"{math.ceil(left)} s{why}"
            )
        now = time.monotonic()
        if now >= self._query_at:
            self._query_at = now + max(
                self._query_interval, _INTERVAL_PER_NODE * self._membership.identity.max_nodes
            )
            done = threading.Event()
            self._query(done)
            if self._present is None:
                done.wait(_FIRST_QUERY_TIMEOUT)
        if self._present is None:
            return f"{self.wanted()} nodes{self._until()}{self._absent()}{self._where()}"
        who = self.describe_nodes(self._present)
        round_ = ""
        if state is not None and (why := self._why(state)):
            round_ = (
                f"the next round of job {self._membership.identity.run_id!r}: {why}; it waits for "
            )
        came = f"{len(self._present)} came{': ' if who else ''}{who}"
        absent = self._absent() + self._describe_stopping()
        return f"{round_}{self.wanted()} nodes{self._until()}; {came}{absent}{self._where()}"

    def _until(self) -> str:
        """When this node ends its wait, on the wall clock; empty if it does not."""
        left = self._wait_until - self._membership.clock()
        if left > LONGEST / 2:
            return ""
        at = time.localtime(self._membership.wall_clock() + max(left, 0.0))
        return f" until {time.strftime('%H:%M:%S', at)}"

    def _why(self, state: JobState) -> str:
        """The reason for the next round; empty for the first one."""
        return "" if state.world is None else printable(state.why, _MAX_REASON_LENGTH)

    def _where(self) -> str:
        """Describe where the store is, and which node hosts it, if one does."""
        if not self._endpoint:
            return ""
        hosts = (node.host for node in self._present or () if node.is_host)
        host = "this node" if self._membership.is_host else next(hosts, "")
        hosted = f", hosted by {host}" if host else ""
        return f"; the store is at {printable(self._endpoint + hosted)}"

    def _absent(self) -> str:
        """Describe the hosts that cannot join: the excluded ones, and the last one refused."""
        state = self._membership.state
        hosts = sorted(state.excluded)[:_MAX_NAMED] if state is not None else []
        text = f"; excluded: {printable(', '.join(hosts))}" if hosts else ""
        if self._finished:
            text += f"; had ended with success and left: {printable(', '.join(self._finished))}"
        return f"{text}; refused: {printable(self._refusal)}" if self._refusal else text

    def _describe_stopping(self) -> str:
        """Describe the nodes that leave and whose workers the round waits for."""
        now = self._membership.clock()
        waits = [
            f"{name} is still stopping its workers, for at most {math.ceil(until - now)} s"
            for name, until in [*self._stopping.items()][:_MAX_NAMED]
            if until > now
        ]
        return f"; {printable('; '.join(waits))}" if waits else ""

    def find(self) -> list[NodeRecord]:
        """Return the nodes that have arrived, by index, then by ticket; takes up to two seconds."""
        done = threading.Event()
        self._query(done)
        return list(self._present or ()) if done.wait(_QUERY_TIMEOUT) else []

    def describe_nodes(self, nodes: Sequence[NodeRecord]) -> str:
        """List the hosts of nodes, and the missing indices, if any were given."""
        here = ", ".join(node.describe() for node in nodes[:_MAX_NAMED])
        if len(nodes) > _MAX_NAMED:
            here += f" and {len(nodes) - _MAX_NAMED} more"
        least = self._membership.identity.min_nodes
        given = {node.index for node in nodes if node.index is not None}
        count = least - sum(index < least for index in given)
        if not given or not count:
            return here
        absent = (index for index in range(least) if index not in given)
        missing = ", ".join(map(str, itertools.islice(absent, _MAX_NAMED)))
        if count > _MAX_NAMED:
            missing += f" and {count - _MAX_NAMED} more"
        return f"{here}; missing: index {missing}"

    def explain_timeout(self) -> RendezvousTimeoutError:
        """Return the error for a round that was not formed in time."""
        identity, timing = self._membership.identity, self._membership.timing
        present = self.find()
        here = self.describe_nodes(present)
        job = f"job {identity.run_id!r} needs {self.wanted()} nodes"
        within = f"within {timing.join_timeout:g} s (--rdzv-conf join_timeout)"
        if self._finished:
            within = f"within {self._patience:g} s"
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
        # This node has arrived itself, so an empty result means that the store is gone.
        who = f"{len(present)} came" if present else "how many came is no longer known"
        where = f" and --rdzv-endpoint ({self._endpoint})" if self._endpoint else ""
        return RendezvousTimeoutError(
            f"{job}, and {who} {within}. Check whether the others were started, with the same "
            f"--rdzv-id{where}"
        )

    def _query(self, done: threading.Event) -> None:
        membership = self._membership

        def query() -> Routine[None]:
            state = membership.state
            if state is not None:
                refusal, self._stopping = "", {}
                try:
                    nodes = yield from membership.joined_nodes(state.next_round)
                    if state.phase is JobPhase.FORMING:
                        self._stopping = yield from self._find_stopping(state, nodes)
                    refusal = yield from self._find_refusal(state.next_round, nodes.values())
                except RendezvousStateError as error:
                    # This is only for a message; routines that need the records raise the error
                    # themselves.
                    membership.rejections.note("the list of arrivals", error)
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
            done.set()

        membership.request(query)

    def _find_stopping(self, state: JobState, nodes: Collection[str]) -> Routine[dict[str, float]]:
        """Return the nodes that leave and whose workers may still run, and until when."""
        if not (self._membership.peers.gone or state.excluded):
            return {}
        members = yield from self._membership.members(state)
        index = {name: rank for rank, name in enumerate(members)}
        return {
            f"{host_of(name)} (index {index[name]})": until
            for name, until in StoppingNodes(self._membership).find(members, nodes).items()
        }

    def _find_refusal(self, round_: int, nodes: Iterable[NodeRecord]) -> Routine[str]:
        """Return the last refused host and the reason; empty if it has joined since."""
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


class RestartDelay:
    """Measures the delay from when this node first read its state, so it ends no later than here.

    The leader measures it in the same way, and a new leader starts it again. Thread-safe.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: tuple[int, int, float] | None = None
        self._end = 0.0

    def left(self, state: JobState | None) -> float:
        """Seconds of the delay that are left in this state of the job; 0 without a delay."""
        with self._lock:
            if state is None or state.phase is not JobPhase.FORMING or not state.pause:
                self._seen = None
                return 0.0
            seen = (state.round, state.term, state.pause)
            if seen != self._seen:
                self._seen, self._end = seen, self._clock() + state.pause
            return max(self._end - self._clock(), 0.0)
