"""The lists in `CUDA_VISIBLE_DEVICES` and its relatives."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_NUMBER = re.compile(r"\s*(\+?\d+)")


def count_visible(mask: str | None, total: int, uuids: Sequence[str] = ()) -> int | None:
    """How many of `total` devices a list leaves; None if that cannot be told from here.

    The rules are the driver's: counting stops at the first entry that names no device (as -1 and
    the empty string do), and a list that repeats an entry leaves none. An entry is an index, or
    the start of a UUID (`GPU-5f2a`), which is checked against `uuids`, if these are known. Slices
    of a GPU (`MIG-...`) are left to the driver.
    """
    if mask is None:
        return total
    entries = mask.split(",")
    if entries[0].startswith("MIG-"):
        return None
    if entries[0].startswith("GPU-"):
        return _count_uuids(entries, uuids) if uuids else None
    seen: set[int] = set()
    for entry in entries:
        number = _NUMBER.match(entry)
        if number is None or int(number.group(1)) >= total:
            break
        index = int(number.group(1))
        if index in seen:
            return 0
        seen.add(index)
    return len(seen)


def _count_uuids(entries: Sequence[str], uuids: Sequence[str]) -> int:
    seen: set[str] = set()
    for entry in entries:
        matches = [uuid for uuid in uuids if uuid.startswith(entry.strip())]
        if len(matches) != 1 or not entry.strip():
            break
        if matches[0] in seen:
            return 0
        seen.add(matches[0])
    return len(seen)
