"""What is left to do when an agent is through; none of it may hide how the job has ended."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from plaunch.errors import PlaunchError
from plaunch.process.failures.error_file import text_of_error
from plaunch.process.failures.failure import NOT_AVAILABLE
from plaunch.process.launcher_variables import owns_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.agent.worker import RunResult
    from plaunch.process.streams.logs import LogsSpecs

logger = logging.getLogger("plaunch")


def close_logs(logs_specs: LogsSpecs, *, succeeded: bool) -> None:
    """Let the logs spec drop what it does not keep; called once for each."""
    try:
        logs_specs.close(succeeded)
    except Exception as error:  # noqa: BLE001 - as above
        logger.warning("the logs spec could not clean up: %s", _text(error))


def forget_temporary_files(result: RunResult, logs_specs: LogsSpecs) -> None:
    """Name no error file that is gone when the report is read; it has been read itself."""
    folder = getattr(logs_specs, "temporary_dir", None)
    for failure in result.failures.values():
        if folder and failure.error_file.startswith(os.path.join(folder, "")):
            failure.error_file = NOT_AVAILABLE


def release_rendezvous(release: Callable[[], bool]) -> None:
    """Call what shuts the rendezvous down, or leaves it.

    Raises:
        SystemExit: it has been raised in another program's process, as that may wish.
    """
    try:
        if release():
            return
        why = ""
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and not owns_process():
            raise
        why = f": {_text(error)}"
    logger.warning("the rendezvous could not be shut down cleanly%s", why)


def _text(error: BaseException) -> str:
    text = text_of_error(error)
    return text if isinstance(error, (OSError, PlaunchError)) else f"{type(error).__name__}: {text}"
