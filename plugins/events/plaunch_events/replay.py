"""The events of a launch, made from recorded notifications."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch_events.stream import EventStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch import LaunchConfig
    from plaunch.agent import Notification
    from plaunch.events import Event


class Replay:
    """Makes the same events from recorded notifications as an `EventStream` makes during a launch.

    The launch begins with the first notification. Each call gives the time on both clocks: `wall`
    in seconds since the epoch, `monotonic` in seconds of the monotonic clock.

    Args:
        config: the launch.
        entry_point: what was run, as users call it.
        listener: called with every event.
    """

    def __init__(
        self, config: LaunchConfig, entry_point: str, listener: Callable[[Event], None]
    ) -> None:
        self._wall = self._monotonic = 0.0
        self._config = config
        self._entry_point = entry_point
        self._listener = listener
        self._stream: EventStream | None = None

    def note(self, wall: float, monotonic: float, notification: Notification) -> None:
        """Make the events of a notification."""
        self._stream_at(wall, monotonic)(notification)

    def finish(self, wall: float, monotonic: float, error: BaseException | None) -> None:
        """Make the last event; `error` is the exception that ended the launch, if any."""
        self._stream_at(wall, monotonic).finish(error)

    def _stream_at(self, wall: float, monotonic: float) -> EventStream:
        self._wall, self._monotonic = wall, monotonic
        if self._stream is None:
            self._stream = EventStream(
                self._config,
                self._entry_point,
                [self._listener],
                clock=lambda: self._monotonic,
                wall_clock=lambda: self._wall,
                log=lambda text: None,  # logged during the launch, if events were read
            )
            self._stream.begin()
        return self._stream
