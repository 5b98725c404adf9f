"""The option of the engine `ssh`."""

from __future__ import annotations

from plaunch.options import Option

OPTIONS = (
    Option(
        ("--ssh-command",),
        "with --on=ssh: the program that connects, with its options; those have priority over "
        "plaunch's (default: ssh)",
        default="ssh",
        metavar="COMMAND",
    ),
)
