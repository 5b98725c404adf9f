"""Checks of an installed plugin, for `--check-plugin`; can be imported without pytest."""

from plaunch_testing.check.command import run_check as run_check
