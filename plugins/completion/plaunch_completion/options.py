"""The option of shell completion."""

from __future__ import annotations

from plaunch.options import Option

OPTIONS = (
    Option(
        ("--print-completion",),
        "print the completion script for a shell: bash, zsh, tcsh or fish",
        metavar="SHELL",
        choices=("bash", "zsh", "tcsh", "fish"),
        command="plaunch_completion.script:run_completion",
    ),
)
