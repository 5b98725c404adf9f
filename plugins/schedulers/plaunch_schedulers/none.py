"""No scheduler: all values come from options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.scheduling import Allocation

if TYPE_CHECKING:
    from collections.abc import Mapping


def find_no_allocation(environ: Mapping[str, str]) -> Allocation:
    """Return an empty allocation for any environment."""
    return Allocation()
