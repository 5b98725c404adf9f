"""Waiting for what happens soon, but not for ever."""

from __future__ import annotations

from time import monotonic, sleep  # as they were before a test replaced them
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")

BOUND = 60.0  # seconds within which everything has long happened, however busy the machine
_LONGEST_PAUSE = 0.02  # seconds between two looks; the first ones are closer together


def wait_until(condition: Callable[[], T], what: str | Callable[[], object]) -> T:
    """Wait until `condition` is true, and return it; `what` says at a failure what never came."""
    deadline = monotonic() + BOUND
    pause = 0.001
    while not (found := condition()):
        if monotonic() > deadline:
            raise AssertionError(f"not within {BOUND:g} s: {what() if callable(what) else what}")
        sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    return found


def wait_for_files(*paths: Path) -> None:
    """Wait until all these files are there."""

    def missing() -> list[str]:
        return [str(path) for path in paths if not path.exists()]

    wait_until(lambda: not missing(), lambda: f"files {missing()}")
