"""Log files that rotate: `--log-rotate`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from plaunch import hookimpl
from plaunch.errors import UsageError

from plaunch_logs_default.specs import DefaultLogsSpecs

if TYPE_CHECKING:
    from plaunch.plugin import PluginContext

logger = logging.getLogger("plaunch")


@hookimpl
def plaunch_extensions(context: PluginContext) -> None:
    """Enable rotation in the logs spec of this launch, if the option is given.

    Raises:
        UsageError: the logs spec cannot rotate files, or the workers write the files themselves.
    """
    rotation: tuple[int, int] | None = context.options.get("log_rotate")
    if rotation is None:
        return
    specs = context.settings.get("logs_specs")
    if specs is not None and not isinstance(specs, DefaultLogsSpecs):
        raise UsageError(
            f"--log-rotate is for the files of the default logs spec; {type(specs).__name__} "
            "(--logs-specs) has its own: leave out one of the two"
        )
    if context.settings.get("keep_daemons"):
        raise UsageError(
            "--log-rotate and --keep-daemons exclude each other: processes that may outlive the "
            "launcher write their log file themselves; leave out one of the two"
        )
    if specs is None or not specs.rotate(*rotation):
        logger.warning(
            "--log-rotate has no effect: no stream of a worker goes to a file (--redirects, "
            "--tee, --log-dir)"
        )
