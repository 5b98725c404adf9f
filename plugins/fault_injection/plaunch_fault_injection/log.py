"""The log of injected faults, one JSON object per line."""

from __future__ import annotations

import json
import logging
import os
import time
from typing import TYPE_CHECKING

from plaunch.errors import PlaunchError
from plaunch.process import find_run_dir

if TYPE_CHECKING:
    from plaunch.plugin import PluginContext

logger = logging.getLogger("plaunch")


class FaultLog:
    """Appends lines to `chaos-<host>-<pid>.jsonl`; does nothing before `open`, or without a folder.

    If the log cannot be written, a warning is logged once, and the launch continues.

    Args:
        context: the launch.
    """

    def __init__(self, context: PluginContext) -> None:
        self._common = {
            "run_id": context.run_id,
            "host": context.host,
            "agent_pid": os.getpid(),
        }
        self._context = context
        self._path: str | None = None

    def open(self) -> str | None:
        """Choose the file; returns its path, or None without a log folder.

        The file is in the folder of the run if the logs spec has one, else in the log folder.
        """
        context = self._context
        if context.log_dir is None:
            return None
        try:
            run_dir = find_run_dir(context.settings.get("logs_specs"), context.run_id)
            folder = os.path.abspath(run_dir or context.log_dir)
        except (OSError, PlaunchError) as error:
            logger.warning("no log of injected faults is written: %s", error)
            return None
        self._path = os.path.join(folder, f"chaos-{context.host}-{os.getpid()}.jsonl")
        return self._path

    def write(self, **fields: object) -> None:
        """Append one line."""
        if self._path is None:
            return
        line = json.dumps({"timestamp": time.time(), **self._common, **fields})
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            logger.warning("no log of injected faults is written: %s", error)
            self._path = None
