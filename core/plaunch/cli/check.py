"""`--check-plugin`: the conformance suites of `plaunch_testing`, run over an installed plugin."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def run_check(args: argparse.Namespace, plugins: Sequence[object] = ()) -> int:
    """Check the plugin that `--check-plugin` names."""
    command = importlib.import_module("plaunch_testing.check.command")
    return int(command.run_check(args, plugins))
