"""A server that tells an outside watcher that the agent is alive; names are torchrun's.

`HealthCheckServer` serves nothing, as in torchrun: it is a place for a site's own, which either is
given to `elastic_launch`, or replaces `create_healthcheck_server` in this module.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from plaunch.numbers import digits

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("plaunch")

TORCHELASTIC_HEALTH_CHECK_PORT = "TORCHELASTIC_HEALTH_CHECK_PORT"
DEFAULT_TIMEOUT = 60  # seconds


class HealthCheckServer:
    """Is started before the first round and stopped at the end of the run; a subclass serves.

    Args:
        alive_callback: tells when the agent was last seen at work, in seconds since the epoch.
        port: where to serve.
        timeout: seconds without progress after which the agent counts as dead.
    """

    def __init__(self, alive_callback: Callable[[], int], port: int, timeout: int) -> None:
        self._alive_callback = alive_callback
        self._port = port
        self._timeout = timeout

    @property
    def alive_callback(self) -> Callable[[], int]:
        """Tells when the agent was last seen at work, in seconds since the epoch."""
        return self._alive_callback

    def start(self) -> None:
        """Begin to serve; this class only says that it does not."""
        logger.info("no health check is served on port %s: no server is installed", self._port)

    def stop(self) -> None:
        """End serving."""


def create_healthcheck_server(
    alive_callback: Callable[[], int], port: int, timeout: int
) -> HealthCheckServer:
    """Make the server of an agent that was given none; see `HealthCheckServer`."""
    return HealthCheckServer(alive_callback, port, timeout)


_OURS = create_healthcheck_server


def is_sites_own() -> bool:
    """Whether a site has put a server of its own in the place of torchrun's."""
    return create_healthcheck_server is not _OURS


def find_server(alive_callback: Callable[[], int]) -> HealthCheckServer | None:
    """The server that `TORCHELASTIC_HEALTH_CHECK_PORT` asks for, if a site makes its own."""
    port = digits(os.environ.get(TORCHELASTIC_HEALTH_CHECK_PORT, ""), 65535)
    if not port or not is_sites_own():
        return None
    return create_healthcheck_server(alive_callback, port, DEFAULT_TIMEOUT)
