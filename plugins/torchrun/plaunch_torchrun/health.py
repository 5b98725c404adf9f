"""The health check server of an agent; names are torchrun's.

`HealthCheckServer` serves nothing, as in torchrun. A site passes its own server to
`elastic_launch`, or replaces `create_healthcheck_server` in this module.
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
    """Started before the first round and stopped at the end of the run; subclasses serve.

    Args:
        alive_callback: returns when the agent last made progress, in seconds since the epoch.
        port: the port to serve on.
        timeout: seconds without progress after which the agent is considered dead.
    """

    def __init__(self, alive_callback: Callable[[], int], port: int, timeout: int) -> None:
        self._alive_callback = alive_callback
        self._port = port
        self._timeout = timeout

    @property
    def alive_callback(self) -> Callable[[], int]:
        """Returns when the agent last made progress, in seconds since the epoch."""
        return self._alive_callback

    def start(self) -> None:
        """Start serving; this class only logs that it does not."""
        logger.info("no health check is served on port %s: no server is installed", self._port)

    def stop(self) -> None:
        """Stop serving."""


def create_healthcheck_server(
    alive_callback: Callable[[], int], port: int, timeout: int
) -> HealthCheckServer:
    """Create the server of an agent without a given one; see `HealthCheckServer`."""
    return HealthCheckServer(alive_callback, port, timeout)


_DEFAULT_FUNCTION = create_healthcheck_server


def is_sites_own() -> bool:
    """Whether a site has replaced `create_healthcheck_server`."""
    return create_healthcheck_server is not _DEFAULT_FUNCTION


def find_server(alive_callback: Callable[[], int]) -> HealthCheckServer | None:
    """Create the site's server for the health check port; None without port or replacement."""
    port = digits(os.environ.get(TORCHELASTIC_HEALTH_CHECK_PORT, ""), 65535)
    if not port or not is_sites_own():
        return None
    return create_healthcheck_server(alive_callback, port, DEFAULT_TIMEOUT)
