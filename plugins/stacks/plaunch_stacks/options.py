"""The options for stacks."""

from __future__ import annotations

from plaunch.options import Option

PLUGIN = "plaunch_stacks.plugin:Stacks"

OPTIONS = (
    Option(
        ("--stacks-on-failure",),
        "when a worker fails, report the stacks of the others before they are stopped, which may "
        "take up to a second (default: off)",
        read=None,
    ),
    Option(
        ("--flight-recorder",),
        "have torch keep the last collective operations of each worker, dump them into the folder "
        "of the run when NCCL times out, and show them beside stacks (default: off)",
        read=None,
    ),
)
