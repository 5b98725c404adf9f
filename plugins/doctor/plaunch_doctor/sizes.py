"""Reads sizes such as 500M or 8GiB."""

from __future__ import annotations

import re

from plaunch.errors import UsageError
from plaunch.numbers import quote

MIB = 1 << 20
GIB = 1 << 30
_UNITS = {"": 1, "k": 1 << 10, "m": MIB, "g": GIB, "t": 1 << 40}
_MOST = 1 << 60
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,3})?)([kmgt]?)(?:i?b)?", re.IGNORECASE | re.ASCII)


def read_size(text: str, check: str) -> int:
    """Return the bytes of a size such as 100M, 8G or 1.5GiB. All units are powers of 1024.

    Raises:
        UsageError: `text` is not a size. The message names the `check` whose argument it is.
    """
    found = _SIZE.fullmatch(text)
    size = 0 if found is None else int(float(found[1]) * _UNITS[found[2].lower()])
    if not 0 < size <= _MOST:
        raise UsageError(
            f"the health check {check!r} cannot use {quote(text)} (--health-check={check}:SIZE); "
            "write a size such as 500M, 8G or 1.5T"
        )
    return size
