"""The end of a launch: what it raises, and what it cleans up."""

from __future__ import annotations

import importlib
import logging
import os
import time
from functools import partial
from typing import TYPE_CHECKING

from plaunch.errors import PlaunchError
from plaunch.plugin.extensions import START_BOUND, AgentControl, ExtensionRunner
from plaunch.plugin.guard import bounded_call
from plaunch.process.failure import NOT_AVAILABLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.agent.extensions import Extension
    from plaunch.agent.local import LocalElasticAgent
    from plaunch.agent.notifier import EventLog
    from plaunch.agent.worker import RunResult
    from plaunch.launch.prepare import LaunchComponents
    from plaunch.plugin.context import PluginContext
    from plaunch.plugin.manager import PluginManager
    from plaunch.process.child_failed import ChildFailedError
    from plaunch.process.logs import LogsSpecs

logger = logging.getLogger("plaunch")

CLOSE_TIMEOUT = 60.0  # seconds to wait for the logs spec to clean up
HURRIED_CLOSE = 10.0  # seconds for the same when a signal has ended the job


def failure_of_job(name: str, result: RunResult, logs_specs: LogsSpecs) -> ChildFailedError:
    """The error of a launch of `name` whose workers have failed.

    It does not name error files that are gone when the report is read; their content is in it.
    """
    folder = getattr(logs_specs, "temporary_dir", None)
    for failure in result.failures.values():
        if folder and failure.error_file.startswith(os.path.join(folder, "")):
            failure.error_file = NOT_AVAILABLE
    return result.error(name)


def run_after_failure(
    manager: PluginManager,
    components: LaunchComponents,
    agent: LocalElasticAgent,
    result: RunResult | None,
    log: EventLog,
) -> None:
    """Run the extensions that plugins with options name with `AFTER_FAILURE`.

    They are imported only now, so that they cost a launch without failures nothing. Those of
    plugins that have an option set are left out: they run from the start. An extension that fails
    is logged: the failure of the launch matters more.
    """
    for plugin in manager.plugin_options():
        if not plugin.after_failure or plugin.name in components.used_plugins:
            continue
        who = f"plugin {plugin.name!r} ({plugin.owner})"
        create = partial(_create_after_failure, plugin.after_failure, components.context)
        try:
            item = ExtensionRunner(who, bounded_call(who, "AFTER_FAILURE", create, START_BOUND))
            item.start(AgentControl(agent, item.who, agent.snapshot, log=log))
        except PlaunchError as error:
            logger.warning("%s", error)
            continue
        if result is not None:
            item.note_result(result)
        item.end()


def _create_after_failure(path: str, context: PluginContext) -> Extension:
    module, _, name = path.partition(":")
    extension: Extension = getattr(importlib.import_module(module), name)(context)
    return extension


def close_logs(
    logs_specs: LogsSpecs,
    manager: PluginManager,
    is_asked_to_end: Callable[[], bool],
    *,
    succeeded: bool,
) -> None:
    """Let the logs spec delete what it does not keep; its errors do not change the outcome.

    Args:
        logs_specs: the logs spec.
        manager: knows which plugin has created it.
        is_asked_to_end: returns whether a signal has ended the job.
        succeeded: whether the job has succeeded.
    """
    hurried = time.monotonic() + HURRIED_CLOSE
    try:
        bounded_call(
            manager.who_made(logs_specs),
            "close",
            partial(logs_specs.close, succeeded),
            CLOSE_TIMEOUT,
            lambda: time.monotonic() > hurried and is_asked_to_end(),
            advice="; plaunch does not wait for it any longer",
            warns=False,
        )
    except (PlaunchError, RuntimeError) as error:  # the latter if there are no more threads
        logger.warning("the logs spec could not clean up: %s", error)
