"""The option of preloaded modules."""

from __future__ import annotations

from plaunch.options import Option

PLUGIN = "plaunch_preload.plugin"

OPTIONS = (
    Option(
        ("--preload",),
        "import these modules once per node, and fork the workers from the process that has done "
        "so; if that is not safe, workers are started afresh and plaunch says why (default: none)",
        metavar="MODULE,...",
        is_shared=True,
    ),
)
