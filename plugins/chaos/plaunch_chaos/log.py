"""The log of faults: one JSON object per line, in the log folder if there is one."""

from __future__ import annotations

import json
import logging
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plaunch.plugin import PluginContext

logger = logging.getLogger("plaunch")


class FaultLog:
    """Appends lines to `chaos-<host>-<pid>.jsonl`; does nothing without a log folder.

    A log that cannot be written is warned of once, and harms no launch.
    """

    def __init__(self, context: PluginContext) -> None:
        self._common = {
            "run_id": context.run_id,
            "host": context.host,
            "agent_pid": os.getpid(),
        }
        self._path: str | None = None
        if context.log_dir is not None:
            name = f"chaos-{context.host}-{os.getpid()}.jsonl"
            self._path = os.path.join(os.path.abspath(context.log_dir), name)

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
