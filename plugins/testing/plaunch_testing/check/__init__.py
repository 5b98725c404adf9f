"""Checking a plugin by its name, as `--check-plugin` does; importing this needs no pytest."""

from plaunch_testing.check.command import run_check as run_check
