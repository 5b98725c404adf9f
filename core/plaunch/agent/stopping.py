"""Stops of workers, as the agent's loop drives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.agent.states import Event, StopFailed, StopSucceeded
from plaunch.errors import UnkillableWorkerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.agent.workers import WorkersStop


class Stopping:
    """The stop in progress, if there is one."""

    def __init__(self) -> None:
        self._stop: WorkersStop | None = None
        self.delay = 0.0  # seconds until it has something to do
        self.error: BaseException | None = None  # why the last one failed

    def begin(self, begin: Callable[[], WorkersStop | None]) -> Event | None:
        """Begin one; its end, if that was all."""
        try:
            self._stop = begin()
        except UnkillableWorkerError as error:
            self.error = error
            return StopFailed()
        return self.step()

    def step(self) -> Event | None:
        """Take the next step; an event if it was the last one."""
        try:
            delay = None if self._stop is None else self._stop.step()
        except UnkillableWorkerError as error:
            self._stop, self.error = None, error
            return StopFailed()
        if delay is None:
            self._stop = None
            return StopSucceeded()
        self.delay = delay
        return None

    def is_in_progress(self) -> bool:
        """Whether there is one."""
        return self._stop is not None

    def escalate(self) -> None:
        """Skip the grace."""
        if self._stop is not None:
            self._stop.escalate()
