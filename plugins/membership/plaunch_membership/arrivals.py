"""Which nodes have arrived for a round that is incomplete, for wait messages and timeout errors."""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING

from plaunch.durations import LONGEST
from plaunch.errors import RendezvousTimeoutError
from plaunch.texts import printable

from plaunch_membership.arrival_summary import MAX_NAMED, ArrivalSummary
from plaunch_membership.operations import MultiGet
from plaunch_membership.options import WAIT_BOUNDS
from plaunch_membership.records import RecordError
from plaunch_membership.state import JobPhase, host_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch_membership.membership import Membership
    from plaunch_membership.operations import Routine
    from plaunch_membership.options import WaitBounds
    from plaunch_membership.state import JobState

_FIRST_QUERY_TIMEOUT = 0.1  # seconds that the first query may delay the caller
_QUERY_TIMEOUT = 2.0  # seconds for the query after a timeout
_INTERVAL_PER_NODE = 0.02  # seconds, so that a thousand waiting nodes do not overload the store
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
        self._present: ArrivalSummary | None = None
        self._stopping: dict[str, float] = {}  # nodes that leave, and until when they are awaited
        self._query_at = -math.inf  # on the membership's clock

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
        return sorted(map(host_of, memory.finished))[:MAX_NAMED]

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
        now = self._membership.clock()
        if now >= self._query_at:
            self._query_at = now + max(
                self._query_interval, _INTERVAL_PER_NODE * self._membership.identity.max_nodes
            )
            done = self.query()
            if self._present is None:
                done.wait(_FIRST_QUERY_TIMEOUT)
        if self._present is None:
            return f"{self.wanted()} nodes{self._until()}{self._absent()}{self._where()}"
        who = self._present.describe_nodes()
        round_ = ""
        if state is not None and (why := self._why(state)):
            round_ = (
                f"the next round of job {self._membership.identity.run_id!r}: {why}; it waits for "
            )
        came = f"{self._present.count} came{': ' if who else ''}{who}"
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
        found = "" if self._present is None else self._present.store_host
        host = "this node" if self._membership.is_host else found
        hosted = f", hosted by {host}" if host else ""
        return f"; the store is at {printable(self._endpoint + hosted)}"

    def _absent(self) -> str:
        """Describe the hosts that cannot join: the excluded ones, and the last one refused."""
        state = self._membership.state
        hosts = sorted(state.excluded)[:MAX_NAMED] if state is not None else []
        text = f"; excluded: {printable(', '.join(hosts))}" if hosts else ""
        if self._finished:
            text += f"; had ended with success and left: {printable(', '.join(self._finished))}"
        refusal = "" if self._present is None else self._present.refusal
        return f"{text}; refused: {printable(refusal)}" if refusal else text

    def _describe_stopping(self) -> str:
        """Describe the nodes that leave and whose workers the round waits for."""
        now = self._membership.clock()
        waits = [
            f"{name} is still stopping its workers, for at most {math.ceil(until - now)} s"
            for name, until in [*self._stopping.items()][:MAX_NAMED]
            if until > now
        ]
        return f"; {printable('; '.join(waits))}" if waits else ""

    def find(self) -> ArrivalSummary | None:
        """Return the summary of the nodes that have arrived; takes up to two seconds."""
        done = self.query()
        return self._present if done.wait(_QUERY_TIMEOUT) else None

    def explain_timeout(self) -> RendezvousTimeoutError:
        """Return the error for a round that was not formed in time."""
        identity, timing = self._membership.identity, self._membership.timing
        present = self.find()
        here = "" if present is None else present.describe_nodes()
        job = f"job {identity.run_id!r} needs {self.wanted()} nodes"
        within = f"within {timing.join_timeout:g} s (--rdzv-conf join_timeout)"
        if self._finished:
            within = f"within {self._patience:g} s"
        within += (f": {here}" if here else "") + self._absent()
        state = self._membership.state
        if state is not None and (why := self._why(state)):
            within += f"; {why}"
        if present is not None and present.count >= identity.min_nodes:
            return RendezvousTimeoutError(
                f"{job}, and {present.count} have come, but no round was formed {within}. Check "
                "whether the first of them hangs, and whether last_call_timeout "
                f"({timing.last_call_timeout:g} s) is longer"
            )
        # This node has arrived itself, so an empty result means that the store is gone.
        who = f"{present.count} came" if present else "how many came is no longer known"
        where = f" and --rdzv-endpoint ({self._endpoint})" if self._endpoint else ""
        return RendezvousTimeoutError(
            f"{job}, and {who} {within}. Check whether the others were started, with the same "
            f"--rdzv-id{where}"
        )

    def query(self) -> threading.Event:
        """Let the writer read the summary; the event is set once it has."""
        membership, done = self._membership, threading.Event()

        def query() -> Routine[None]:
            state, keys = membership.state, membership.keys
            if state is not None:
                key = keys.arrivals(state.next_round)
                (value,) = yield MultiGet([key])
                try:
                    if value is None:
                        present = None
                    else:
                        present = ArrivalSummary.from_record(membership.codec.decode(key, value))
                except RecordError as error:
                    # This is only for a message.
                    membership.rejections.note("the summary of arrivals", error)
                    present = None
                with membership.lock:
                    now = membership.clock()
                    self._stopping = {
                        name: now + left
                        for name, left in (present.stopping if present is not None else {}).items()
                    }
                    if membership.state is state and state.phase is JobPhase.FORMING:
                        membership.peers.stopping = dict(self._stopping)
                    self._present = present
            done.set()

        membership.request(query)
        return done


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
