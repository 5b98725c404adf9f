"""Records warnings for tests."""

from __future__ import annotations

from plaunch_logs_default.streams.warning_log import WarningLog


class RecordedWarnings(WarningLog):
    """Records warnings instead of logging them."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def warn(self, message: str, *args: object) -> None:
        self.messages.append(message % args)
