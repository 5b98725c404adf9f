"""The option of shell completion."""

from __future__ import annotations

from plaunch.options import Option

OPTIONS = (
    Option(
        ("--print-completion",),
        "print what makes a shell complete options and names: bash, zsh, tcsh or fish",
        metavar="SHELL",
        choices=("bash", "zsh", "tcsh", "fish"),
        command="plaunch_completion.script:run_completion",
    ),
)
