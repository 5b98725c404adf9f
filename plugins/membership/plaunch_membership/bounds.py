"""What another node tells is bounded: names, dates, and texts that a terminal shows."""

from __future__ import annotations

MAX_NAME = 400  # characters of a host's, a node's or a role's name
MAX_REFUSAL = 1000  # characters of what a refused node leaves for those that wait
MAX_EXCLUDED = 64  # hosts that a job goes on without
MOST_SECONDS = 253_402_128_000.0  # since the epoch: no date is later, wherever one is (9999-12-30)


def nearest_date(seconds: float) -> float:
    """The nearest to `seconds` since the epoch that is a date, in all time zones."""
    return min(max(seconds, 0.0), MOST_SECONDS)


def printable(text: str) -> str:
    """`text` on one line, with escape sequences for what could disturb a terminal."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )
