"""The network between simulated hosts: latency, cables that are cut, and hosts that are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plaunch_testing.simulation.hub import Hub, SimulatedHost, SimulatedTask

__all__ = ["SimulatedNetwork", "UnreachableError"]


class UnreachableError(Exception):
    """Nothing has arrived in time; the packets, or those of the answer, were lost."""


class SimulatedNetwork:
    """Carries messages between hosts.

    A message over a link that is cut is sent again until the link works, as TCP does, or until the
    caller gives up. Links have a direction.

    Args:
        hub: has the clock.
        latency: the mean time of one way, in seconds.
    """

    def __init__(self, hub: Hub, latency: float) -> None:
        self.latency = latency
        self._hub = hub
        self._cuts: dict[tuple[SimulatedHost, SimulatedHost], int] = {}  # how often each is cut
        self._stuck: dict[SimulatedTask, None] = {}  # tasks whose messages do not get through

    def cut(self, source: SimulatedHost, target: SimulatedHost) -> None:
        """Lose all messages from one host to another, until `repair`."""
        self._cuts[source, target] = self._cuts.get((source, target), 0) + 1

    def repair(self, source: SimulatedHost, target: SimulatedHost) -> None:
        """Undo one `cut`."""
        left = self._cuts[source, target] - 1
        self._cuts[source, target] = left
        if not left:
            del self._cuts[source, target]
            self._hub.wake_all(self._stuck)

    def wake(self) -> None:
        """Let senders see a change: a host has failed or come back, or a connection was closed."""
        self._hub.wake_all(self._stuck)

    def reaches(self, source: SimulatedHost, target: SimulatedHost) -> bool:
        """Whether messages get from one host to another."""
        return source.is_up and target.is_up and (source, target) not in self._cuts

    def carry(self, source: SimulatedHost, target: SimulatedHost, timeout: float) -> None:
        """Wait until a message has got from one host to another.

        Raises:
            UnreachableError: it has not within `timeout` seconds.
        """
        hub = self._hub
        if not self.reaches(source, target):
            until = hub.now + timeout
            while not self.reaches(source, target):
                left = until - hub.now
                if left <= 0 or not hub.wait(self._stuck, left):
                    raise UnreachableError
        hub.wait(None, hub.random.expovariate(1.0) * self.latency)
