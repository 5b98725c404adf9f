"""A server that tells an outside watcher that the agent is alive; names are torchrun's.

`HealthCheckServer` serves nothing, as in torchrun: it is a place for a site's own, which either is
given to `elastic_launch`, or replaces `create_healthcheck_server` in this module. Without either,
`TORCHELASTIC_HEALTH_CHECK_PORT` has plaunch's own pages served there; see `plaunch_status`.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

from plaunch.numbers import digits
from plaunch.process.kernel.uninterruptible import TIMEOUT_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch_status.server import Page, StatusServer
    from plaunch_status.extension import Service

logger = logging.getLogger("plaunch")

TORCHELASTIC_HEALTH_CHECK_PORT = "TORCHELASTIC_HEALTH_CHECK_PORT"
TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT = TIMEOUT_VARIABLE
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


class HttpHealthCheckServer(HealthCheckServer):
    """Answers `/healthz` on loop-back: 200 while the callback's time is recent, else 503.

    It is for agents that are made in code; a launch serves more, and from its beginning.
    """

    _server: StatusServer | None = None

    def start(self) -> None:
        """Begin to serve; if that is not possible, it is logged and the job goes on."""
        from plaunch_status.address import listen  # noqa: PLC0415 - when asked for
        from plaunch_status.server import StatusServer  # noqa: PLC0415 - as above
        from plaunch.errors import UsageError  # noqa: PLC0415 - as above

        try:
            listener = listen("", self._port, TORCHELASTIC_HEALTH_CHECK_PORT)
        except UsageError as error:
            logger.warning("there is no health check: %s", error)
            return
        self._server = StatusServer(listener, {"/healthz": self._page})
        self._server.start()
        logger.info("health check on port %s: %s/healthz", self._port, self._server.url)

    def _page(self) -> Page:
        from plaunch_status.server import health_page  # noqa: PLC0415 - as above

        silent = time.time() - self.alive_callback()
        return health_page(silent if silent > self._timeout else 0.0, self._timeout)

    def stop(self) -> None:
        """End serving."""
        if self._server is not None:
            self._server.stop()


def create_healthcheck_server(
    alive_callback: Callable[[], int], port: int, timeout: int
) -> HealthCheckServer:
    """Make the server of an agent that was given none; see `HealthCheckServer`."""
    return HttpHealthCheckServer(alive_callback, port, timeout)


_OURS = create_healthcheck_server


def find_server(alive_callback: Callable[[], int]) -> HealthCheckServer | None:
    """The server that `TORCHELASTIC_HEALTH_CHECK_PORT` asks for; None without the variable."""
    port = _port()
    return (
        None if port is None else create_healthcheck_server(alive_callback, port, DEFAULT_TIMEOUT)
    )


def find_service(
    metrics_port: str | int | None,
    server: HealthCheckServer | None,
    *,
    run_id: str,
    role: str,
    grace: float,
) -> Service | None:
    """The pages of a launch, being served, if it is to have any.

    Args:
        metrics_port: what `--metrics-port` says, or None.
        server: a health check of the caller's own, or None. With one, or with another
            `create_healthcheck_server`, the variable is not ours.
        run_id: the id of the job.
        role: the name of the workers.
        grace: seconds that workers may take to stop.

    Raises:
        UsageError: `metrics_port` cannot be used.
    """
    is_ours = server is None and create_healthcheck_server is _OURS
    health_port = _port() if is_ours else None
    if metrics_port is None and health_port is None:
        return None
    from plaunch_status.extension import Service  # noqa: PLC0415 - when asked for

    service = Service(run_id, role, grace)
    service.serve(metrics_port, health_port)
    return service


def _port() -> int | None:
    """The port that the variable names, if it does."""
    text = os.environ.get(TORCHELASTIC_HEALTH_CHECK_PORT)
    if text is None:
        return None
    if number := digits(text, 65535):
        return number
    logger.warning(
        "%s is %r, which is not the number of a port; there is no health check",
        TORCHELASTIC_HEALTH_CHECK_PORT,
        text,
    )
    return None
