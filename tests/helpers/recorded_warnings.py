"""Recorded warnings."""

from __future__ import annotations

from plaunch_logs_default.streams.writer import WarningLog


class RecordedWarnings(WarningLog):
    """Records warnings, and logs nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def warn(self, message: str, *args: object) -> None:
        self.messages.append(message % args)
