"""The output streams of a worker, as a flag."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from plaunch.errors import UsageError
from plaunch.numbers import MOST_WORKERS, digits, quote

if TYPE_CHECKING:
    from collections.abc import Mapping


_VALUES = ("0", "1", "2", "3")


class Std(enum.IntFlag):
    """Output streams of a worker; names and values are torchrun's."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = OUT | ERR

    @classmethod
    def from_str(cls, vm: str) -> Std | dict[int, Std]:
        """Parse `"3"` (all workers) or `"0:3,10-12:1"` (by local rank).

        torchrun accepts single local ranks of one digit; here a rank has any number of digits, and
        may be a range that includes both ends.

        Raises:
            UsageError: `vm` has another form, a value above 3, or names a local rank twice.
        """
        if vm in _VALUES:
            return cls(int(vm))
        streams: dict[int, Std] = {}
        for item in vm.split(","):
            ranks, _, value = item.partition(":")
            low, dash, high = ranks.partition("-")
            first = digits(low, MOST_WORKERS)
            last = digits(high, MOST_WORKERS) if dash else first
            if value not in _VALUES or first is None or last is None or last < first:
                raise UsageError(
                    f"{quote(vm)} does not name streams: write 0 (none), 1 (stdout), 2 (stderr) "
                    "or 3 (both), or a value per local rank as in '0:3,1:0' or '0-7:1'"
                )
            for rank in range(first, last + 1):
                if rank in streams:
                    raise UsageError(f"{vm!r} names local rank {rank} more than once")
                streams[rank] = cls(int(value))
        return streams


def to_map(val_or_map: Std | Mapping[int, Std], local_world_size: int) -> dict[int, Std]:
    """Expand a setting to all local ranks; ranks that are missing in a map get `NONE`."""
    ranks = range(local_world_size)
    if isinstance(val_or_map, int):  # torch's Std is one as well
        return dict.fromkeys(ranks, Std(int(val_or_map)))
    return {rank: Std(int(val_or_map.get(rank, 0))) for rank in ranks}
