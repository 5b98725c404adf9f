"""The output of one agent, as text and records."""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING

from plaunch_engines.agent_pipes import has_unread
from plaunch_engines.records import Records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from plaunch.engines import AgentHandle

    from plaunch_engines.records import Piece

_BLOCK = 64 << 10  # bytes that are read at once: what a pipe holds
_MAX_EARLY = 16  # blocks of output before the settings that are discarded


class AgentStreams:
    """Reads the two streams of an agent.

    Args:
        handle: of the agent.
        clock: a monotonic clock, in seconds.

    Attributes:
        nonce: the nonce of the agent's records.
        active_at: when something was read, on the clock.
    """

    def __init__(self, handle: AgentHandle, clock: Callable[[], float]) -> None:
        self.nonce = secrets.token_hex(16)
        self.active_at = clock()
        self._handle = handle
        self._clock = clock
        self._open = {handle.stdout: Records(), handle.stderr: Records()}
        self._begun_at: dict[int, float] = {}  # by descriptor: when an incomplete line began

    def fds(self) -> list[int]:
        """Return the descriptors to read."""
        return list(self._open)

    def is_error(self, fd: int) -> bool:
        """Whether a descriptor is that of stderr."""
        return fd == self._handle.stderr

    @property
    def have_ended(self) -> bool:
        """Whether both have ended."""
        return not self._open

    def read(self, fd: int) -> list[Piece] | None:
        """Read a descriptor; None at its end, whose last pieces `end` returns."""
        try:
            data = os.read(fd, _BLOCK)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        self.active_at = self._clock()
        if not data:
            return None
        found = self._open[fd]
        pieces = found.feed(data)
        if not found.has_begun_line():
            self._begun_at.pop(fd, None)
        elif pieces or fd not in self._begun_at:
            self._begun_at[fd] = self.active_at
        return pieces

    def end(self, fd: int) -> list[Piece]:
        """Return what was not complete, and read the descriptor no more."""
        return self._open.pop(fd).feed(b"")

    def take_prompts(self, hold: Callable[[bool], float]) -> Iterator[tuple[int, bytes]]:
        r"""Yield lines that have no end for so long that they may be prompts, by descriptor.

        What follows continues them. States of a progress bar, next to a `\r`, are no prompts.

        Args:
            hold: seconds to wait for the end of a line, for stderr or not.
        """
        now = self._clock()
        for fd, at in [*self._begun_at.items()]:
            if fd in self._open and now - at < hold(self.is_error(fd)):
                continue
            del self._begun_at[fd]
            if fd in self._open and (text := self._open[fd].take_begun_line()):
                yield fd, text

    def expect(self, *, is_error: bool | None = None) -> None:
        """Expect the nonce in all further records, of one stream or of both."""
        for fd, found in self._open.items():
            if is_error is None or self.is_error(fd) is is_error:
                found.expect(self.nonce)

    def discard_stdout(self) -> None:
        """Discard what was written to stdout, also a last line without an end."""
        stdout = self._handle.stdout
        if stdout not in self._open:
            return
        with contextlib.suppress(OSError):
            for _ in range(_MAX_EARLY):
                if not os.read(stdout, _BLOCK):
                    break
        self._open[stdout] = Records()
        self._begun_at.pop(stdout, None)

    def has_unread(self) -> bool:
        """Whether there is something to read."""
        return has_unread(self._open)
