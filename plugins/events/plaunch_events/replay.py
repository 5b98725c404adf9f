"""The events of a launch, made when it is over: for whoever wants them only then."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from plaunch_events.stream import EventStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from plaunch import LaunchConfig
    from plaunch.agent import Notification
    from plaunch.events import Event


class _Times:
    """Both clocks, as they were."""

    wall = monotonic = 0.0


def replay(
    config: LaunchConfig,
    entry_point: str,
    told: Iterable[tuple[float, float, Notification]],
    error: BaseException | None,
    listener: Callable[[Event], None],
) -> None:
    """Make the events of a launch that is over, as they would have been made meanwhile.

    Args:
        config: the launch.
        entry_point: what was run, as users call it.
        told: what its agent has told, each with when: in seconds since the epoch, and in those of
            the monotonic clock. The launch begins with the first one.
        error: what the launch has raised, if anything.
        listener: is called with every event.
    """
    now = _Times()
    stream: EventStream | None = None
    for now.wall, now.monotonic, notification in told:
        if stream is None:
            stream = EventStream(
                config,
                entry_point,
                [listener],
                clock=lambda: now.monotonic,
                wall_clock=lambda: now.wall,
                say=lambda text: None,  # it was said in time, if anybody listened
            )
            stream.begin()
        stream(notification)
    if stream is not None:
        now.wall, now.monotonic = time.time(), time.monotonic()
        stream.finish(error)
