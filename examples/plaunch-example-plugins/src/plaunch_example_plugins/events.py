"""An event handler: `--event-log-handler=append` adds every event to the file EVENTS_FILE names.

Each line is a JSON object, for `jq` and log shippers. Several agents may share the file.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plaunch.errors import UsageError

if TYPE_CHECKING:
    from plaunch.events import Event
    from plaunch.plugin import PluginContext

FILE_VARIABLE = "EVENTS_FILE"


class AppendEventHandler:
    """Appends events to a file.

    Raises:
        UsageError: the variable EVENTS_FILE is not set, or its file cannot be written.
    """

    def __init__(self, context: PluginContext) -> None:
        del context  # each event has its run id
        path = os.environ.get(FILE_VARIABLE)
        if not path:
            raise UsageError(
                "event handler 'append' does not know where to write; set the variable "
                f"{FILE_VARIABLE} to the path of a file"
            )
        try:
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed in close()
        except OSError as error:
            raise UsageError(
                f"{FILE_VARIABLE} is {path!r}, which cannot be written: {error.strerror}"
            ) from error

    def handle(self, event: Event) -> None:
        """Append one event in a single write, so that lines of several agents do not mix."""
        self._file.write(event.serialize().encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
