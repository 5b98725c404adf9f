"""Ranks as users write them: `3`, `0-3,8`."""

from __future__ import annotations

MOST = 1 << 20  # a rank above this is a slip of the hand


def parse_ranks(text: object) -> frozenset[int]:
    """Read ranks.

    Raises:
        ValueError: they are written in another way; the message says so.
    """
    ranks: set[int] = set()
    for part in str(text).split(","):
        low, dash, high = part.strip().partition("-")
        ends = (low, high) if dash else (low, low)
        if not all(end.isascii() and end.isdecimal() and len(end) < 8 for end in ends):
            raise ValueError(f"{str(text)[:60]!r} are no ranks; write 3, or 0-3,8")
        first, last = int(ends[0]), int(ends[1])
        if not first <= last <= MOST:
            raise ValueError(f"{str(text)[:60]!r} are no ranks; write 3, or 0-3,8")
        ranks.update(range(first, last + 1))
    return frozenset(ranks)
