"""Parsing ranks such as `3` or `0-3,8`."""

from __future__ import annotations

MOST = 1 << 20  # a greater rank is a typing error


def parse_ranks(text: object) -> frozenset[int]:
    """Parse ranks.

    Raises:
        ValueError: the text has another form.
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
