"""What travels between a client and plaunch's own server: calls, in two directions."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from plaunch_job_store.frames import Code
from plaunch_job_store.limits import SILENCE_TIMEOUT

from plaunch_testing.simulation.network import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch_job_store.frames import Operation, Result

    from plaunch_testing.simulation.hub import Hub, SimulatedHost, SimulatedTask
    from plaunch_testing.simulation.network import SimulatedNetwork

__all__ = ["LinkDirection", "StoreCall"]


class StoreCall:
    """A request without a reply."""

    def __init__(self, owner: object, number: int, operations: Sequence[Operation]) -> None:
        self.owner = owner
        self.number = number
        self.operations = operations
        self.results: list[Result] | None = None
        self.error = ""
        self.waiters: dict[SimulatedTask, None] = {}

    @property
    def is_over(self) -> bool:
        """Whether it has a result."""
        return self.results is not None or bool(self.error)

    @property
    def may_repeat(self) -> bool:
        """Whether it may be carried out twice."""
        return all(operation.code in (Code.GET, Code.WAIT) for operation in self.operations)


class LinkDirection:
    """What travels in one direction of a connection, and arrives in the order in which it was sent.

    Nothing arrives after it was closed, with its connection.

    Args:
        hub: has the clock.
        network: between the hosts.
        source: the host that sends.
        target: the host that receives.
    """

    def __init__(
        self, hub: Hub, network: SimulatedNetwork, source: SimulatedHost, target: SimulatedHost
    ) -> None:
        self.is_closed = False
        self._hub = hub
        self._network = network
        self._source = source
        self._target = target
        self._last = 0.0  # when the last message arrives
        self._stuck: deque[Callable[[], None]] = deque()  # not sent yet, as the link is cut

    def send(self, arrive: Callable[[], None], work: float = 0.0) -> None:
        """Call `arrive` when the message has come, and some more seconds have passed."""
        network, hub = self._network, self._hub
        if self._stuck or not network.reaches(self._source, self._target):
            self._stuck.append(arrive)
            if len(self._stuck) == 1:
                hub.spawn(self._send_stuck, f"link to {self._target.name}")
            return
        due = hub.now + hub.random.expovariate(1.0) * (network.latency + work)
        self._last = max(due, self._last)
        hub.call_later(self._last - hub.now, lambda: None if self.is_closed else arrive())

    def _send_stuck(self) -> None:
        try:
            self._network.carry(self._source, self._target, SILENCE_TIMEOUT)
        except UnreachableError:
            self._stuck.clear()  # the connection ends by itself
            return
        while self._stuck and not self.is_closed:
            self._stuck.popleft()()
