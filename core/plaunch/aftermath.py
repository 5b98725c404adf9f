"""What looks at a launch only once it has failed, and is not imported before that.

A launch that succeeds pays for it with a list of what its agent has told. After a failure, the
events are made of that list, and handed to the extension of the plugin as if it had been there.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from plaunch import defaults
from plaunch.errors import PlaunchError
from plaunch.plugin import extensions
from plaunch.plugin.calls import bounded_call
from plaunch.plugin.registry import WITH_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch.agent.extensions import Control
    from plaunch.agent.worker import RunResult
    from plaunch.plugin.context import PluginContext
    from plaunch.plugin.extensions import Extending
    from plaunch.plugin.manager import PluginManager
    from plaunch.process.streams.logs import LogsSpecs

logger = logging.getLogger("plaunch")

_BOUND = 3.0  # seconds


def keeps_files(logs_specs: LogsSpecs) -> bool:
    """Whether a launch that has ended leaves a folder with its files."""
    root = logs_specs.root_log_dir
    return bool(root) and root != getattr(logs_specs, "temporary_dir", None)


def look_back(
    context: PluginContext,
    manager: PluginManager,
    control: Control,
    result: RunResult | None,
) -> None:
    """Let the extension of `defaults.AFTER_FAILURE` follow a launch that has failed.

    What goes wrong is logged: the failure itself is what matters.

    Args:
        context: what plugins are told of the launch.
        manager: its plugins.
        control: of the agent, which has ended.
        result: how the run has ended, if it has.
    """

    def follow() -> None:
        for item in _create(manager, context):
            item.result = result
            item.start(control)
            for event in control.take_events():
                item.handle(event)
            item.close()

    who = f"plugin {defaults.AFTER_FAILURE!r}"
    try:
        bounded_call(who, "looking at a failure", follow, _BOUND, passing=(PlaunchError,))
    except PlaunchError as problem:
        logger.warning("%s", problem)


def _create(manager: PluginManager, context: PluginContext) -> Iterator[Extending]:
    """The extensions of the plugin, none of whose options is given; none if it is blocked."""
    declared = [one for one in manager.plugin_options() if one.name == defaults.AFTER_FAILURE]
    plugin = manager.load_named(WITH_OPTIONS, defaults.AFTER_FAILURE) if declared else None
    if plugin is not None:
        plugin.options.update({option.dest: option.default for option in declared[0].options})
        for item in manager.implementations(extensions.HOOK):
            if item.plugin is plugin:
                yield from extensions.create(item, plugin.context(context))
