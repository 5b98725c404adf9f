"""Telling plugins what happens, so that none of them can harm or hold the job."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from plaunch.agent import notifications
from plaunch.plugin.calls import one_line
from plaunch.plugin.loading import keeping_signals
from plaunch.threads import BoundedCall

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pluggy

    from plaunch.agent.notifications import Notification

logger = logging.getLogger("plaunch")

# How long one implementation is waited for by the agent's loop, in seconds.
TIME_BOUND = 1.0

# The arguments of these hooks are fields of the notifications.
HOOKS: dict[type[Notification], str] = {
    notifications.BeforeRendezvous: "plaunch_before_rendezvous",
    notifications.AfterRendezvous: "plaunch_after_rendezvous",
    notifications.WorkersStarted: "plaunch_workers_started",
    notifications.WorkerExited: "plaunch_worker_exited",
    notifications.StateChanged: "plaunch_state_changed",
    notifications.AgentFinished: "plaunch_agent_finished",
}


class Notifier:
    """Calls the implementations of the hooks that tell, one after the other.

    They run on a thread that is neither the caller's nor there between two calls, so that the
    process can be forked. One that raises, or does not return within `TIME_BOUND`, is reported
    with its plugin's name and not called again; other hooks of the same plugin stay. While a call
    has not returned, its plugin is told of nothing else: no two of its hooks are called at once.
    Where the system gives no thread, nobody is told, as nothing would bound it.

    Args:
        implementations: the implementations of a hook, in the order in which they are called.
        who: says how messages call a plugin, by the name under which pluggy knows it.
        with_traceback: whether a failure is logged with its traceback.
    """

    def __init__(
        self,
        implementations: Callable[[str], Sequence[pluggy.HookImpl]],
        who: Callable[[str], str],
        *,
        with_traceback: bool = False,
    ) -> None:
        self._implementations = implementations
        self._who = who
        self._with_traceback = with_traceback
        self._switched_off: set[tuple[str, str]] = set()
        self._out: dict[str, BoundedCall] = {}  # calls that were left behind, by plugin
        self._lacks_threads = False

    def tell(self, notification: Notification) -> None:
        """Tell all plugins of `notification`, if it has a hook; nothing that they do is raised."""
        hook = HOOKS.get(type(notification))
        if hook is None:
            return
        for implementation in self._implementations(hook):
            name = implementation.plugin_name
            if (name, hook) not in self._switched_off and not self._is_out(name):
                self._call(hook, implementation, notification)

    def left_behind(self) -> list[str]:
        """The plugins of which a call has not returned that nobody waits for."""
        return [self._who(name) for name in self._out if self._is_out(name)]

    def _is_out(self, name: str) -> bool:
        return name in self._out and self._out[name].is_out()

    def _call(self, hook: str, implementation: pluggy.HookImpl, notification: Notification) -> None:
        who = self._who(implementation.plugin_name)
        arguments = [getattr(notification, name) for name in implementation.argnames]
        with keeping_signals(who, hook):
            try:
                call = BoundedCall(f"hook-{hook}", lambda: implementation.function(*arguments))
            except RuntimeError as error:  # no more threads, or the interpreter is ending
                if not self._lacks_threads:
                    self._lacks_threads = True
                    logger.warning("%s is not told (%s), nor is anybody else: %s", who, hook, error)
                return
            has_returned = call.wait(TIME_BOUND)
        if has_returned and call.error is None:
            return
        self._switched_off.add((implementation.plugin_name, hook))
        if not has_returned:
            self._out[implementation.plugin_name] = call
            logger.warning(
                "%s has not returned from %s within %g s; it is left to itself, not told of "
                "anything else until it has, and not called for that again; the job goes on",
                who,
                hook,
                TIME_BOUND,
            )
        elif call.error is not None:
            # Also SystemExit: a plugin's failure never harms the job.
            logger.warning(
                "%s failed in %s and is not called for it again; the job goes on: %s",
                who,
                hook,
                one_line(call.error),
                exc_info=call.error if self._with_traceback else None,
            )
