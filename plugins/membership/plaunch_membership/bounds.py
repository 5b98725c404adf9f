"""Bounds for what other nodes write: names, dates, and texts that are printed on a terminal."""

from __future__ import annotations

MAX_NAME = 400  # characters of a host's, a node's or a role's name
MAX_REFUSAL = 1000  # characters of why a node was refused, shown by waiting nodes
MAX_EXCLUDED = 64  # excluded hosts
MAX_SECONDS = 253_402_128_000.0  # since the epoch: the latest date in any time zone (9999-12-30)


def nearest_date(seconds: float) -> float:
    """Clamp seconds since the epoch to valid dates in all time zones."""
    return min(max(seconds, 0.0), MAX_SECONDS)


def printable(text: str) -> str:
    """Return `text` on one line, with control characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )
