"""The default logs spec: torchrun's folders, without its removals."""

from __future__ import annotations

from plaunch_logs_default.specs import RunLayout

__all__ = ["DefaultLogsSpecs"]


class DefaultLogsSpecs(RunLayout):
    """`RunLayout` under torchrun's name for the default logs spec."""
