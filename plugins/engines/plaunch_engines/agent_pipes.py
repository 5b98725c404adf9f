"""The streams of an agent, as pipes of this process."""

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

from plaunch.engines import SILENCE_LIMIT

_HEARTBEAT = 5.0  # seconds between two lines to an agent that expects them, at most
_HEARTBEATS = 8  # in the time after which such an agent ends: PLAUNCH_NODE_SILENCE


class AgentPipes:
    """The part of a `plaunch.engines.AgentHandle` that has the streams.

    Args:
        node: the name of the node, for messages.
        address: the address at which the other nodes reach the node; empty to let the agent find
            out.
    """

    def __init__(self, node: str, address: str = "") -> None:
        self.node = node
        self.address = address
        self._unwritten = b""
        self._written_at = 0.0
        stdin, self._stdin = os.pipe()
        self.stdout, stdout = os.pipe()
        self.stderr, stderr = os.pipe()
        self._of_agent = [stdin, stdout, stderr]
        for fd in (self._stdin, self.stdout, self.stderr):
            os.set_blocking(fd, False)

    def write(self, data: bytes) -> None:
        """Write to its standard input; what does not fit into the pipe is written by `poll`."""
        self._unwritten += data
        self._written_at = time.monotonic()
        self._flush()

    def close(self) -> None:
        """Close the descriptors, and so end an agent that is still connected."""
        self._close_ends_of_agent()
        self._close_stdin()
        for fd in (self.stdout, self.stderr):
            if fd >= 0:
                os.close(fd)
        self.stdout = self.stderr = -1

    def _flush(self) -> None:
        try:
            while self._unwritten and self._stdin >= 0:
                written = os.write(self._stdin, self._unwritten)
                self._unwritten = self._unwritten[written:]
        except BlockingIOError:
            pass
        except BrokenPipeError:  # it has ended, as `poll` reports
            self._unwritten = b""

    def send_heartbeat(self, silence_limit: float = SILENCE_LIMIT) -> None:
        """Show the agent now and then that its connection works; it ignores empty lines.

        Args:
            silence_limit: seconds without a line after which the agent ends its workers.
        """
        pause = min(_HEARTBEAT, silence_limit / _HEARTBEATS)
        if not self._unwritten and time.monotonic() - self._written_at >= pause:
            self.write(b"\n")

    def _close_ends_of_agent(self) -> None:
        while self._of_agent:
            os.close(self._of_agent.pop())

    def _close_stdin(self) -> None:
        if self._stdin >= 0:
            os.close(self._stdin)
        self._stdin = -1


def has_unread(fds: Iterable[int]) -> bool:
    """Whether there is something to read."""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return any(events & select.POLLIN for _, events in poller.poll(0))
