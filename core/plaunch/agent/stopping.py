"""A stop of workers as the agent's loop drives it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from plaunch.errors import UnkillableWorkerError

if TYPE_CHECKING:
    from collections.abc import Callable


class WorkersStop(Protocol):
    """A stop in progress; see `plaunch.process.stopping.stop.Stop`."""

    def step(self) -> float | None:
        """Do what is due and return the seconds until more is; None when all is over.

        Raises:
            UnkillableWorkerError: all is over, but something outlives even SIGKILL.
        """

    def escalate(self) -> None:
        """Skip the grace."""


class ContextStop:
    """The stop of a context's workers.

    Args:
        stop: the context's.
        at_end: called when it is over, also if something outlives SIGKILL; what this raises comes
            in the place of that. A step that is interrupted is not the end: another one follows.
    """

    def __init__(self, stop: WorkersStop, at_end: Callable[[], None]) -> None:
        self._stop = stop
        self._at_end = at_end
        self.escalate = stop.escalate

    def step(self) -> float | None:
        """Do what is due; see `WorkersStop`."""
        try:
            delay = self._stop.step()
        except UnkillableWorkerError:
            self._at_end()
            raise
        if delay is None:
            self._at_end()
        return delay
