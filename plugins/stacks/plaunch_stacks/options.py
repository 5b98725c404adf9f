"""The options of stacks."""

from __future__ import annotations

from plaunch.options import Option

PLUGIN = "plaunch_stacks.plugin:Stacks"

OPTIONS = (
    Option(
        ("--stacks-on-failure",),
        "when a worker fails, look at where the others are before they are stopped, which may take "
        "most of a second (default: off)",
        read=None,
    ),
)
