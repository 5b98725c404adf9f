"""The options of the settings file, of shell completion and of the dry run."""

from __future__ import annotations

import os

from plaunch.lazy import TYPE_CHECKING
from plaunch.options import Option

if TYPE_CHECKING:
    from plaunch.cli import Arguments

FILE = "plaunch.toml"
PROJECT = "pyproject.toml"
_TABLE = b"[tool.plaunch"


class SettingsFile:
    """The option that names the settings file."""

    OPTIONS = (
        Option(
            ("--config",),
            "settings file with options by name; the command line and variables override it; an "
            "empty name means no file (default: plaunch.toml, or [tool.plaunch] in pyproject.toml)",
            metavar="FILE",
            path="file",
            is_shared=True,
            source="plaunch_command_line.options:apply_settings",
        ),
    )


class Completion:
    """The option of shell completion."""

    OPTIONS = (
        Option(
            ("--print-completion",),
            "print the completion script for a shell: bash, zsh, tcsh or fish",
            metavar="SHELL",
            choices=("bash", "zsh", "tcsh", "fish"),
            command="plaunch_command_line.completion:run_completion",
        ),
    )


class DryRun:
    """The option that prints what would run."""

    OPTIONS = (
        Option(
            ("--dry-run",),
            "print what would run and where each setting comes from, without starting anything; "
            "--dry-run=json prints JSON",
            metavar="FORM",
            choices=("text", "json"),
            bare="text",
            is_shared=True,
            command="plaunch_command_line.plan:show_plan",
        ),
    )


def apply_settings(args: Arguments) -> str:
    """Set options that are not given to the values in the settings file; changes `args`.

    The file is that of `--config`, else `plaunch.toml` or the table `[tool.plaunch]` of
    `pyproject.toml` in the working folder. `--config=` stands for no file.

    Returns:
        The path of the file; empty without a file.

    Raises:
        UsageError: the file of `--config` does not exist, or the file cannot be read, or it has an
            unknown option or an invalid value.
    """
    path: str = _find() if args.config is None else args.config
    if path:
        from plaunch_command_line.settings_file import apply_file  # only with a file

        apply_file(args, path, is_project=os.path.basename(path) == PROJECT)
    return path


def _find() -> str:
    if os.path.exists(FILE):
        return FILE
    try:
        with open(PROJECT, "rb") as file:
            return PROJECT if _TABLE in file.read() else ""
    except OSError:
        return ""
