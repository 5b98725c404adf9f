"""Collecting the parts of a bundle in parallel; a part that fails or hangs affects no other."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from plaunch.errors import ThreadStartError
from plaunch.plugin import one_line
from plaunch.threads import BoundedCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Part = Callable[[], Iterable["File"]]


@dataclass(frozen=True)
class File:
    """One file of a bundle; `note` is a remark, for example that it is truncated."""

    name: str
    data: bytes
    note: str = ""


class MissingError(Exception):
    """A part cannot be collected; the message says why."""


class LateError(MissingError):
    """There was not enough time to collect a part."""


class Gathered(NamedTuple):
    """What was collected.

    Args:
        files: in the order of the parts.
        missing: why a part is missing, by name.
        late: the missing parts for which there was not enough time.
    """

    files: list[File]
    missing: dict[str, str]
    late: list[str]


def gather(parts: Mapping[str, Part], until: float) -> Gathered:
    """Collect all parts at the same time.

    Args:
        parts: the functions that collect them, by name.
        until: when unfinished parts are abandoned, on the monotonic clock.
    """
    began = time.monotonic()
    files: list[File] = []
    missing: dict[str, str] = {}
    late: list[str] = []
    calls: dict[str, BoundedCall] = {}
    for name, part in parts.items():
        try:
            # `list` runs a generator on the thread.
            calls[name] = BoundedCall(f"bundle-{name}", lambda part=part: list(part()))  # type: ignore[misc]
        except (ThreadStartError, RuntimeError) as error:
            missing[name] = str(error)
    for name, call in calls.items():
        if not call.wait(until - time.monotonic()):
            missing[name] = f"not finished within {max(until - began, 0.0):.1f} s"
            late.append(name)
        elif isinstance(call.error, MissingError):
            missing[name] = str(call.error)
            if isinstance(call.error, LateError):
                late.append(name)
        elif call.error is not None:
            missing[name] = one_line(call.error)
        else:
            files += call.result  # type: ignore[arg-type]
    return Gathered(files, missing, late)
