"""The option of preloaded modules."""

from __future__ import annotations

from plaunch.options import Option

PLUGIN = "plaunch_preload.plugin"
KNOWN_AS = "preloading"

OPTIONS = (
    Option(
        ("--preload",),
        "import these modules once per node, and fork the workers from that process; if that is not"
        " safe, workers are started without it and plaunch logs why (default: none)",
        metavar="MODULE,...",
        is_shared=True,
    ),
)
