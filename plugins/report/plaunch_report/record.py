"""One event, as a file has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

Plain = str | int | float | bool | None

MOST = 1 << 40  # of whole numbers: there are not as many workers, rounds or processes
ENDLESS = 1e12  # seconds that nothing has lasted


@dataclass(frozen=True)
class Record:
    """One event, as read; `plaunch.events.Event` says what the fields are."""

    name: str
    timestamp: float
    monotonic: float
    metadata: Mapping[str, Plain]

    def text(self, key: str) -> str:
        """The value of `key` for people; empty if there is none."""
        value = self.metadata.get(key)
        return "" if value is None else str(value)

    def number(self, key: str, default: int = -1, most: int = MOST) -> int:
        """The whole number under `key`; `default` if there is none, or one beyond `most`."""
        value = self.metadata.get(key)
        return value if type(value) is int and -most <= value <= most else default

    def seconds(self, key: str) -> float:
        """The seconds under `key`; 0 if there are none, or so many that it cannot be."""
        value = self.metadata.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return 0.0
        return float(value) if abs(value) < ENDLESS else 0.0

    @property
    def code(self) -> int | None:
        """The exit code, if there is one."""
        value = self.metadata.get("exit_code")
        return value if type(value) is int and abs(value) <= MOST else None
