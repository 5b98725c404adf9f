"""The default logs spec: torchrun's folders, without its removals."""

from __future__ import annotations

from plaunch_logs_default.specs import DefaultLogsSpecs as DefaultLogsSpecs

__all__ = ["DefaultLogsSpecs"]
