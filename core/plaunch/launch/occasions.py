"""What plugins do though none of their options is given: at a slow stop, after a failure.

A module that declares options names the class or function for an occasion, which is imported at
that occasion. So a launch without it pays nothing.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from plaunch.errors import PlaunchError
from plaunch.parts import load_object
from plaunch.plugin.extensions import AgentControl, ExtensionRunner

if TYPE_CHECKING:
    from plaunch.agent.local import LocalElasticAgent
    from plaunch.agent.notifications import Notification, Notify
    from plaunch.agent.notifier import EventLog
    from plaunch.agent.worker import RunResult
    from plaunch.launch.prepare import LaunchComponents
    from plaunch.plugin.context import PluginContext
    from plaunch.plugin.guard import CallGuard
    from plaunch.plugin.manager import PluginManager

logger = logging.getLogger("plaunch")


def run_after_failure(
    manager: PluginManager,
    components: LaunchComponents,
    agent: LocalElasticAgent,
    result: RunResult | None,
    log: EventLog,
) -> None:
    """Run the extensions that plugins with options name with `AFTER_FAILURE`.

    Those of plugins that have an option set are left out: they run from the start. An extension
    that fails is logged: the failure of the launch matters more.
    """
    guard = manager.guard
    for plugin in manager.plugin_options():
        path = plugin.declared("AFTER_FAILURE")
        if not path or plugin.name in components.used_plugins:
            continue
        create = partial(_create, path, components.context)
        try:
            extension = guard.call(plugin.who, "AFTER_FAILURE", create, guard.limits.after_failure)
            item = ExtensionRunner(
                plugin.who, extension, guard, is_first_party=plugin.is_first_party
            )
            item.start(AgentControl(agent, item.who, agent.snapshot, log=log))
        except PlaunchError as error:
            logger.warning("%s", error)
            continue
        if result is not None:
            item.note_result(result)
        item.end(guard.limits.after_failure)


def create_listeners(manager: PluginManager, context: PluginContext) -> list[Notify]:
    """Create the listeners that plugins with options name with `ON_SLOW_STOP`.

    One that cannot be created, or fails, is logged and not called again.
    """
    return [
        _SlowStopListener(manager.guard, plugin.who, partial(_create, path, context))
        for plugin in manager.plugin_options()
        if (path := plugin.declared("ON_SLOW_STOP"))
    ]


class _SlowStopListener:
    """Passes notifications to a listener of a plugin, which is created at the first one."""

    def __init__(self, guard: CallGuard, who: str, create: partial[Any]) -> None:
        self._guard = guard
        self._who = who
        self._create = create
        self._listen: Notify | None = None
        self._is_off = False

    def __call__(self, notification: Notification) -> None:
        if self._is_off:
            return
        call = partial(self._call, notification)
        try:
            self._guard.call(
                self._who, "ON_SLOW_STOP", call, self._guard.limits.stop, is_repeated=True
            )
        except (PlaunchError, RuntimeError) as error:  # the latter if there are no more threads
            self._is_off = True
            logger.warning("%s; it is not called again", error)

    def _call(self, notification: Notification) -> None:
        if self._listen is None:
            self._listen = self._create()
        self._listen(notification)


def _create(path: str, context: PluginContext) -> Any:
    return load_object(path)(context)
