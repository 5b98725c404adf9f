"""Telling plugins what happens, so that none of them can harm the job."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from plaunch.agent import moments
from plaunch.errors import SignalException
from plaunch.plugin.loading import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pluggy

    from plaunch.agent.moments import Moment

logger = logging.getLogger("plaunch")

# How long one implementation may keep the agent's loop from its work, in seconds.
TIME_BOUND = 1.0

# The arguments of these hooks are fields of the moments.
HOOKS: dict[type[Moment], str] = {
    moments.BeforeRendezvous: "plaunch_before_rendezvous",
    moments.AfterRendezvous: "plaunch_after_rendezvous",
    moments.WorkersStarted: "plaunch_workers_started",
    moments.WorkerExited: "plaunch_worker_exited",
    moments.StateChanged: "plaunch_state_changed",
    moments.AgentFinished: "plaunch_agent_finished",
}


class Teller:
    """Calls the implementations of the hooks that tell, each on its own.

    One that raises, or takes longer than `TIME_BOUND`, is reported with its plugin's name and not
    called again; other hooks of the same plugin stay.

    Args:
        implementations: the implementations of a hook, in the order in which they are called.
        clock: tells seconds, monotonically.
        with_traceback: whether a failure is logged with its traceback.
    """

    def __init__(
        self,
        implementations: Callable[[str], Sequence[pluggy.HookImpl]],
        clock: Callable[[], float],
        *,
        with_traceback: bool = False,
    ) -> None:
        self._implementations = implementations
        self._clock = clock
        self._with_traceback = with_traceback
        self._switched_off: set[tuple[str, str]] = set()

    def tell(self, moment: Moment) -> None:
        """Tell all plugins of `moment`, if it has a hook; nothing that they do is raised."""
        hook = HOOKS.get(type(moment))
        if hook is None:
            return
        for implementation in self._implementations(hook):
            if (implementation.plugin_name, hook) not in self._switched_off:
                self._call(hook, implementation, moment)

    def _call(self, hook: str, implementation: pluggy.HookImpl, moment: Moment) -> None:
        plugin = implementation.plugin_name
        began = self._clock()
        try:
            implementation.function(*(getattr(moment, name) for name in implementation.argnames))
        except (KeyboardInterrupt, SignalException):
            raise
        except BaseException as error:
            # Also SystemExit: a plugin's failure never harms the job.
            self._switched_off.add((plugin, hook))
            logger.warning(
                "plugin %s failed in %s and is not called for it again; the job goes on: %s",
                plugin,
                hook,
                one_line(error),
                exc_info=error if self._with_traceback else None,
            )
            return
        duration = self._clock() - began
        if duration > TIME_BOUND:
            self._switched_off.add((plugin, hook))
            logger.warning(
                "plugin %s kept the agent waiting for %.1f s in %s and is not called for it again "
                "(it may take %.0f s)",
                plugin,
                duration,
                hook,
                TIME_BOUND,
            )
