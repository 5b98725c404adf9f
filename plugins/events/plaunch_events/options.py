"""The option of event handlers."""

from __future__ import annotations

from plaunch.options import Option

# What a launch with readers of events calls.
EVENT_READERS = "plaunch_events:EventReaders"

OPTIONS = (
    Option(
        ("--event-conf",),
        "options of event handlers, as in jsonl.path=FILE; may be repeated",
        metavar="HANDLER.KEY=VALUE,...",
        is_repeated=True,
    ),
)
