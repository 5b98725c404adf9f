"""Waiting with a time limit."""

from __future__ import annotations

from time import monotonic, sleep  # the originals, because tests replace them
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")

BOUND = 60.0  # seconds for anything, even on a busy machine
_LONGEST_PAUSE = 0.02  # seconds between two polls; the first ones are shorter


def wait_until(condition: Callable[[], T], what: str | Callable[[], object]) -> T:
    """Wait until `condition` is true, and return it; `what` describes it in the error."""
    deadline = monotonic() + BOUND
    pause = 0.001
    while not (found := condition()):
        if monotonic() > deadline:
            raise AssertionError(f"not within {BOUND:g} s: {what() if callable(what) else what}")
        sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    return found


def wait_for_files(*paths: Path) -> None:
    """Wait until all these files exist."""

    def missing() -> list[str]:
        return [str(path) for path in paths if not path.exists()]

    wait_until(lambda: not missing(), lambda: f"files {missing()}")
