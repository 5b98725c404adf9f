"""The parts of a bundle, made side by side: none that fails or hangs spoils the others."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch.errors import ThreadStartError
from plaunch.plugin import one_line
from plaunch.threads import BoundedCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Part = Callable[[], Iterable["File"]]


@dataclass(frozen=True)
class File:
    """One file of a bundle; `note` says what is to be known of it, such as that it is cut."""

    name: str
    data: bytes
    note: str = ""


class MissingError(Exception):
    """There is nothing to put into the bundle; the message says why."""


def gather(parts: Mapping[str, Part], until: float) -> tuple[list[File], dict[str, str]]:
    """Make all parts at the same time.

    Args:
        parts: what makes each of them, by what it is called.
        until: when those that are not done are given up, on the monotonic clock.

    Returns:
        The files, in the order of the parts; and why there are none of a part, by its name.
    """
    began = time.monotonic()
    files: list[File] = []
    missing: dict[str, str] = {}
    calls: dict[str, BoundedCall] = {}
    for name, part in parts.items():
        try:
            # The files of a generator are made on the thread.
            calls[name] = BoundedCall(f"bundle-{name}", lambda part=part: list(part()))  # type: ignore[misc]
        except (ThreadStartError, RuntimeError) as error:
            missing[name] = str(error)
    for name, call in calls.items():
        if not call.wait(until - time.monotonic()):
            missing[name] = f"not done within {max(until - began, 0.0):.1f} s, and given up"
        elif isinstance(call.error, MissingError):
            missing[name] = str(call.error)
        elif call.error is not None:
            missing[name] = one_line(call.error)
        else:
            files += call.result  # type: ignore[arg-type]
    return files, missing
