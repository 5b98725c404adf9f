"""Notifying plugins of what happens, so that none of them can harm or hold the job."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from plaunch.agent import notifications
from plaunch.errors import PluginError
from plaunch.plugin.calls import NotReturnedError, bounded_call, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch.agent.notifications import Notification
    from plaunch.plugin.calls import Implementation
    from plaunch.plugin.loaded import Registration
    from plaunch.threads import BoundedCall

logger = logging.getLogger("plaunch")

# How long one implementation is waited for by the agent's loop, in seconds.
TIME_BOUND = 1.0

# The arguments of these hooks are fields of the notifications.
HOOKS: dict[type[Notification], str] = {
    notifications.BeforeRendezvous: "plaunch_before_rendezvous",
    notifications.AfterRendezvous: "plaunch_after_rendezvous",
    notifications.WorkersStarted: "plaunch_workers_started",
    notifications.BeforeStop: "plaunch_before_stop",
    notifications.WorkerExited: "plaunch_worker_exited",
    notifications.StateChanged: "plaunch_state_changed",
    notifications.AgentFinished: "plaunch_agent_finished",
}


class Notifier:
    """Calls the implementations of the hooks that tell, one after the other.

    They run on a separate thread that ends with each call, so that the process can be
    forked. One that raises, or does not return within `TIME_BOUND`, is reported
    with its plugin's name and not called again; other hooks of the same plugin stay. While a call
    has not returned, no other hook of its plugin is called.
    If the system gives no thread, no plugin is notified, because nothing would limit the call.

    Args:
        implementations: the implementations of a hook, in the order in which they are called.
        with_traceback: whether a failure is logged with its traceback.
    """

    def __init__(
        self,
        implementations: Callable[[str], Sequence[Implementation]],
        *,
        with_traceback: bool = False,
    ) -> None:
        self._implementations = implementations
        self._with_traceback = with_traceback
        self._switched_off: set[tuple[Registration, str]] = set()
        self._out: dict[Registration, BoundedCall] = {}  # calls that were left behind, by plugin
        self._lacks_threads = False

    def notify(self, notification: Notification) -> None:
        """Tell all plugins of `notification`, if it has a hook; nothing that they do is raised."""
        hook = HOOKS.get(type(notification))
        if hook is None:
            return
        for item in self._implementations(hook):
            out = self._out.get(item.plugin)
            is_off = (item.plugin, hook) in self._switched_off
            if not is_off and (out is None or not out.is_out()):
                self._call(item, notification)

    def left_behind(self) -> list[str]:
        """The plugins with a call that has not returned and is not waited for."""
        return [plugin.who for plugin, call in self._out.items() if call.is_out()]

    def _call(self, item: Implementation, notification: Notification) -> None:
        who, hook = item.who, item.hook
        arguments = {name: getattr(notification, name) for name in item.argnames}
        try:
            bounded_call(who, hook, partial(item.call, arguments), TIME_BOUND)
            return
        except NotReturnedError as error:
            self._out[item.plugin] = error.call
            logger.warning(
                "%s; plaunch does not wait for it, calls none of its hooks until it returns, and "
                "does not call this hook again; the job goes on",
                error,
            )
        except PluginError as error:
            cause = error.__cause__ or error
            logger.warning(
                "%s failed in %s and is not called for it again; the job goes on: %s",
                who,
                hook,
                one_line(cause),
                exc_info=cause if self._with_traceback else None,
            )
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            if not self._lacks_threads:
                self._lacks_threads = True
                logger.warning(
                    "%s was not notified (%s), and neither was any other plugin: %s",
                    who,
                    hook,
                    error,
                )
            return
        self._switched_off.add((item.plugin, hook))
