"""What comes before a round: a pause, and whether this node is healthy enough for it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from plaunch.agent.messages import format_delay
from plaunch.agent.notifications import RestartDelayed
from plaunch.agent.peers import QUIET_INTERVAL
from plaunch.agent.states import CheckHealth, NodeHealthy, NodeUnhealthy, Pause, PauseEnded, Phase
from plaunch.errors import NodeExcludedError

if TYPE_CHECKING:
    from plaunch.agent.notifications import Notifier
    from plaunch.agent.peers import Peers
    from plaunch.agent.poller import Poller
    from plaunch.agent.states import Action, Event, State
    from plaunch.health import HealthChecks


class BeforeRound:
    """Waits before a node joins a round, and hears of the other nodes meanwhile.

    Args:
        checks: what must be well on this node, or None.
        peers: the other nodes.
        poller: waits, and is woken.
        notifier: is told of pauses.
    """

    def __init__(
        self, checks: HealthChecks | None, peers: Peers, poller: Poller, notifier: Notifier
    ) -> None:
        self._checks = checks
        self._notifier = notifier
        self._peers = peers
        self._poller = poller
        self._paused_until = 0.0  # on the monotonic clock
        self.waits_for = ""  # in the present pause, or the last one
        self.error: NodeExcludedError | None = None  # why this node cannot go on

    @property
    def has_checks(self) -> bool:
        """Whether anything must be well."""
        return self._checks is not None

    def begin(self, action: Action, state: State) -> None:
        """Begin a pause, or ask all checks."""
        if isinstance(action, Pause):
            self._paused_until = time.monotonic() + action.seconds
            self.waits_for = format_delay(action.seconds, time.time())
            self._notifier.notify(RestartDelayed, action.seconds)
        elif isinstance(action, CheckHealth) and self._checks is not None:
            self._checks.begin(self._poller.wake_up.wake, is_restart=state.round >= 0)

    def watch(self, state: State) -> list[Event]:
        """Wait until that is over, or something else happens."""
        if state.phase is Phase.CHECKING and self._checks is not None:
            return self._watch_checks(self._checks, is_member=state.round >= 0)
        remaining = self._paused_until - time.monotonic()
        if remaining <= 0:
            return [PauseEnded()]
        self._poller.poll([], min(remaining, QUIET_INTERVAL))
        return []

    def _watch_checks(self, checks: HealthChecks, *, is_member: bool) -> list[Event]:
        """The same for checks; before its first round, this node knows nothing of others."""
        remaining = checks.remaining()
        if remaining > 0:
            fds = self._peers.fds() if is_member else ()
            self._poller.poll(fds, min(remaining, QUIET_INTERVAL))
            return self._peers.look_while_stopping(is_clearing=False) if is_member else []
        verdict = checks.verdict()
        if not verdict:
            return [NodeHealthy()]
        self.error = NodeExcludedError(verdict)
        if is_member:
            self._peers.exclude(verdict)
        return [NodeUnhealthy()]
