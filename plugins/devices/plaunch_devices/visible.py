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
    chosen = select_visible(mask, total, uuids)
    return None if chosen is None else len(chosen)


def select_visible(mask: str | None, total: int, uuids: Sequence[str] = ()) -> list[int] | None:
    """Which of `total` devices a list leaves, in its order; the rules are `count_visible`'s."""
    if mask is None:
        return list(range(total))
    entries = mask.split(",")
    if entries[0].startswith("MIG-"):
        return None
    if entries[0].startswith("GPU-"):
        return _select_uuids(entries, uuids) if uuids else None
    chosen: list[int] = []
    for entry in entries:
        number = _NUMBER.match(entry)
        if number is None or int(number.group(1)) >= total:
            break
        chosen.append(int(number.group(1)))
    return _unless_repeated(chosen)


def entries_of(mask: str) -> list[str]:
    """The entries of a list up to the first that names no device."""
    entries: list[str] = []
    for entry in map(str.strip, mask.split(",")):
        if not entry or entry.startswith("-"):
            break
        entries.append(entry)
    return entries


def _select_uuids(entries: Sequence[str], uuids: Sequence[str]) -> list[int]:
    chosen: list[int] = []
    for entry in entries:
        matches = [n for n, uuid in enumerate(uuids) if uuid.startswith(entry.strip())]
        if len(matches) != 1 or not entry.strip():
            break
        chosen.append(matches[0])
    return _unless_repeated(chosen)


def _unless_repeated(chosen: list[int]) -> list[int]:
    return chosen if len(set(chosen)) == len(chosen) else []
