"""Messages of the launcher as JSON, for programs that collect logs."""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone

VERSION = 1  # of the schema, in docs/output.md; more keys do not change it


def json_line(text: str, level: str, created: float | None, run_id: str | None) -> str:
    """A message as one JSON object on one line.

    Args:
        text: the message; it may have several lines.
        level: its log level, as named by `logging`.
        created: when it was created, in seconds since the epoch; None for now.
        run_id: the run id of the launch, if it is known yet.
    """
    zone = timezone.utc
    time = datetime.now(zone) if created is None else datetime.fromtimestamp(created, zone)
    return json.dumps(
        {
            "time": time.isoformat(timespec="microseconds"),
            "version": VERSION,
            "level": level,
            "run_id": run_id,
            "host": os.uname().nodename,
            "message": text,
        }
    )


def template_of_lines(run_id: str) -> str:
    """The `log_line_prefix_template` that makes a JSON object of each teed line of workers."""
    known = json.dumps({"version": VERSION, "level": None, "run_id": run_id})[1:-1]
    return (
        '{"time": ${utc}, ' + known.replace("$", "$$") + ', "host": "${hostname}", '
        '"attempt": ${attempt}, "rank": ${rank}, "local_rank": ${local_rank}, '
        '"stream": ${stream}, "message": ${line}}'
    )
