"""The health checks of this node before it joins a round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.agent.poller import QUIET_INTERVAL
from plaunch.agent.states import NodeHealthy, NodeUnhealthy
from plaunch.errors import NodeExcludedError

if TYPE_CHECKING:
    from plaunch.agent.peers import Peers
    from plaunch.agent.poller import Poller
    from plaunch.agent.states import AgentEvent
    from plaunch.health import HealthChecks


class Preconditions:
    """Runs the health checks of a node, and follows the other nodes meanwhile.

    Args:
        checks: the health checks, or None.
        peers: the other nodes.
        poller: waits, and is woken.
    """

    def __init__(self, checks: HealthChecks | None, peers: Peers, poller: Poller) -> None:
        self._checks = checks
        self._peers = peers
        self._poller = poller
        self._is_member = False  # whether this node has been in a round
        self.error: NodeExcludedError | None = None  # which check has failed

    @property
    def exist(self) -> bool:
        """Whether there are health checks."""
        return self._checks is not None

    def begin(self, *, is_member: bool) -> None:
        """Begin all checks; `is_member` is whether this node has been in a round."""
        self._is_member = is_member
        if self._checks is not None:
            self._checks.begin(self._poller.wake_up.wake, is_restart=is_member)

    def watch(self) -> list[AgentEvent]:
        """Wait until they have ended, or something else happens."""
        remaining = 0.0 if self._checks is None else self._checks.remaining()
        if remaining > 0:
            fds = self._peers.fds() if self._is_member else ()
            self._poller.poll(fds, min(remaining, QUIET_INTERVAL))
            # Before its first round, this node knows nothing of others.
            return self._peers.look_while_stopping(is_clearing=False) if self._is_member else []
        verdict = "" if self._checks is None else self._checks.verdict()
        if not verdict:
            return [NodeHealthy()]
        self.error = NodeExcludedError(verdict)
        if self._is_member:
            self._peers.exclude(verdict)
        return [NodeUnhealthy()]
