"""A descriptor that becomes readable to wake its poller."""

from __future__ import annotations

import contextlib
import os


class WakePipe:
    """A pipe within this process. The caller prevents concurrent calls of `close`."""

    def __init__(self) -> None:
        self._ends: tuple[int, int] | None = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """The descriptor to poll; -1 after `close`."""
        return -1 if self._ends is None else self._ends[0]

    def wake(self) -> None:
        """Make it readable."""
        if self._ends is not None:
            with contextlib.suppress(BlockingIOError):
                os.write(self._ends[1], b"\0")

    def clear(self) -> None:
        """Read everything from it."""
        if self._ends is not None:
            with contextlib.suppress(BlockingIOError):
                os.read(self._ends[0], 4096)

    def close(self) -> None:
        """Close both ends; may be called twice."""
        ends, self._ends = self._ends, None
        for end in ends or ():
            os.close(end)
