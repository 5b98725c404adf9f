"""Whole numbers that a user gives, ranks, and sizes: parses and formats them."""

from __future__ import annotations

from plaunch.lazy import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "digits",
    "format_bytes",
    "format_ranks",
    "name_ranks",
    "parse_ranks",
    "quote",
]

MOST = 2**63 - 1  # what other programs and the records of a job can hold
MOST_WORKERS = 1 << 16  # of one node; the largest machines have some thousand processors
MOST_NODES = 1 << 20

_MOST_TEXT = 60  # characters of a value that is quoted
_MOST_DIGITS = 19
_MOST_RANK = 1 << 20  # a greater rank is a typing error


def whole(text: str, least: int = -MOST, most: int = MOST) -> int:
    """Parse a whole number in any form that Python accepts.

    Raises:
        ValueError: it is not one, or not from `least` to `most`; the message quotes it.
    """
    try:
        number = int(text)
    except ValueError:  # among them those of thousands of digits, which Python does not read
        raise ValueError(f"{quote(text)} is not a whole number") from None
    if not least <= number <= most:
        raise ValueError(f"{quote(text)} is not a whole number from {least} to {most}")
    return number


def digits(text: str, most: int = MOST) -> int | None:
    """Parse a number of ASCII digits only; None if it is not one, or above `most`."""
    if not (text.isascii() and text.isdecimal()):
        return None
    text = text.lstrip("0") or "0"
    return int(text) if len(text) <= _MOST_DIGITS and int(text) <= most else None


def quote(value: object) -> str:
    """Quote a value for a message; a long one is truncated."""
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python writes
        text = "a number of thousands of digits"
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 3]}..."


def format_ranks(ranks: Iterable[int]) -> str:
    """Format ranks, sorted, with ranges: `"1-3,7"`."""
    spans: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def parse_ranks(text: object) -> frozenset[int]:
    """Parse ranks such as `3` or `0-3,8`, the result of `format_ranks`.

    Raises:
        ValueError: the text has another form.
    """
    ranks: set[int] = set()
    count = 0  # with those that are given twice
    for part in str(text).split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        low, high = digits(first, _MOST_RANK), digits(last if dash else first, _MOST_RANK)
        if low is None or high is None or low > high:
            raise ValueError(f"{quote(str(text))} is not a list of ranks; write 3, or 0-3,8")
        count += high - low + 1
        if count > _MOST_RANK + 1:
            raise ValueError(f"{quote(str(text))} is a list of more than {_MOST_RANK + 1} ranks")
        ranks.update(range(low, high + 1))
    return frozenset(ranks)


def name_ranks(ranks: Iterable[int] | str, noun: str = "rank") -> str:
    """Format ranks after their noun: `"rank 3"`, or `"ranks 1-3,7"`.

    Args:
        ranks: the ranks, or the result of `format_ranks`.
        noun: the noun in the singular, such as `"local rank"` or `"node"`.
    """
    text = ranks if isinstance(ranks, str) else format_ranks(ranks)
    return f"{noun}{'' if text.isdecimal() else 's'} {text}"


def format_bytes(size: int) -> str:
    """Format a size with its unit: `64 MiB`, `1.5 GiB`."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}" if size < 1000 * unit else f"{size // unit} {name}"
    return f"{size} bytes"
