"""The state of an agent, for all of its objects."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from plaunch.agent.states import Phase, State

if TYPE_CHECKING:
    from plaunch.agent.extensions import Requests
    from plaunch.agent.signals import SignalInbox


class AgentStatus:
    """The state of an agent, and whether its end is requested; any thread may read it.

    It is created before all other objects of the agent. `Loop` sets the state.
    """

    def __init__(self) -> None:
        self.state = State()
        self._inbox: SignalInbox | None = None
        self._requests: Requests | None = None

    def begin_run(self, state: State, inbox: SignalInbox, requests: Requests) -> None:
        """Set the first state of a run, and what receives its signals and requests."""
        self.state, self._inbox, self._requests = state, inbox, requests

    @property
    def soft_signal(self) -> signal.Signals:
        """The signal that the workers are stopped with: the one that requested the stop.

        It is SIGTERM if no policy lists that one, which workers may handle as a notice.
        """
        asked_by, inbox = self.state.asked_by, self._inbox
        if asked_by is None or inbox is None or not inbox.is_listed(asked_by):
            return signal.SIGTERM
        return asked_by

    def is_running(self) -> bool:
        """Whether the agent's workers run and none has failed."""
        return self.state.phase is Phase.RUNNING

    def is_asked_to_end(self) -> bool:
        """Whether the end of the run is requested, also while the loop is busy."""
        return (
            (self._inbox is not None and self._inbox.has_stop())
            or (self._requests is not None and self._requests.has_end())
            or self.state.is_asked_to_end
        )
