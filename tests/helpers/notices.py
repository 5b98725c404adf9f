"""Warnings that are kept for a test to look at."""

from __future__ import annotations

from plaunch_logs_default.streams.notices import Notices


class Recorded(Notices):
    """Keeps what it is told, and logs nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def warn(self, message: str, *args: object) -> None:
        self.messages.append(message % args)
