"""One event, as read from a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

Plain = str | int | float | bool | None

MOST = 1 << 40  # larger whole numbers are invalid
ENDLESS = 1e12  # seconds; longer durations are invalid


@dataclass(frozen=True)
class EventRecord:
    """One event, as read; see `plaunch.events.Event` for its fields."""

    name: str
    timestamp: float
    monotonic: float
    metadata: Mapping[str, Plain]

    def text(self, key: str) -> str:
        """The value of `key` as text; empty if there is none."""
        value = self.metadata.get(key)
        return "" if value is None else str(value)

    def number(self, key: str, default: int = -1, most: int = MOST) -> int:
        """The whole number under `key`; `default` if it is missing or beyond `most`."""
        value = self.metadata.get(key)
        return value if type(value) is int and -most <= value <= most else default

    def seconds(self, key: str) -> float:
        """The seconds under `key`; 0 if they are missing or beyond `ENDLESS`."""
        value = self.metadata.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return 0.0
        return float(value) if abs(value) < ENDLESS else 0.0

    @property
    def code(self) -> int | None:
        """The exit code, if there is one."""
        value = self.metadata.get("exit_code")
        return value if type(value) is int and abs(value) <= MOST else None
