"""The extension that serves the status pages of one launch."""

from __future__ import annotations

import json
import logging
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from plaunch import hookimpl
from plaunch.agent import Extension
from plaunch.errors import UsageError
from plaunch.numbers import digits
from plaunch_events import LauncherStatus

from plaunch_status.address import listen, parse_address
from plaunch_status.counters import Counters
from plaunch_status.page import Page, health_page
from plaunch_status.server import StatusServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.agent import Control, RunResult
    from plaunch.events import Event
    from plaunch.plugin import PluginContext

logger = logging.getLogger("plaunch")

_HEALTH_SOURCE = "--health-port (TORCHELASTIC_HEALTH_CHECK_PORT)"

_INDEX = """\
/metrics  metrics for Prometheus
/healthz  200 while the agent's loop is alive, else 503
/status   the state of the launcher, as JSON
"""


@hookimpl
def plaunch_extensions(context: PluginContext) -> list[StatusExtension]:
    """Serve the pages of the launch."""
    return [StatusExtension(context)]


class StatusExtension(Extension):
    """Serves the pages of one launch.

    Args:
        context: the launch; its options are those of `plaunch_status.options`.

    Raises:
        UsageError: `--metrics-port` is not a valid address.
    """

    def __init__(self, context: PluginContext) -> None:
        given = context.options.get("metrics_port")
        self._address = None if given is None else parse_address(given, "--metrics-port")
        self._health_port = _port(context.options.get("health_port"))
        self._status = LauncherStatus(context.run_id, context.role)
        self._counters = Counters()
        self._lock = threading.Lock()
        self._started = time.time()
        self._servers: list[StatusServer] = []

    @property
    def urls(self) -> list[str]:
        """The addresses at which it serves."""
        return [server.url for server in self._servers]

    def start(self, control: Control) -> None:
        """Start to serve at one or two addresses.

        If the health port is taken, a warning is logged and the launch continues, because torchrun
        does not fail because of this variable.

        Raises:
            UsageError: the address of `--metrics-port` cannot be used; nothing is left open.
        """
        pages: dict[str, Callable[[], Page]] = {
            "/": lambda: Page(_INDEX),
            "/healthz": lambda: _health(control),
            "/metrics": lambda: self._show_metrics(control),
            "/status": lambda: self._show_status(control),
        }
        with ExitStack() as undo:
            undo.callback(self._close)
            if self._address is not None:
                self._serve(*self._address, "--metrics-port", pages)
            port = self._health_port
            if port is not None and not any(s.answers_loopback(port) for s in self._servers):
                try:
                    self._serve("", port, _HEALTH_SOURCE, pages)
                except UsageError as error:
                    logger.warning("no health check is served: %s", error)
            undo.pop_all()

    def handle(self, event: Event) -> None:
        """Count the next event."""
        with self._lock:
            self._status.note(event)
            self._counters.note(event, self._status.history.phase)

    def stop(self, result: RunResult | None) -> None:
        """Stop serving."""
        del result
        self._close()

    def rest(self) -> None:
        """Stop all threads until `release`, so that the process can fork."""
        for server in self._servers:
            server.rest()

    def release(self) -> None:
        """Serve again after `rest`."""
        for server in self._servers:
            server.start()

    def _serve(
        self, host: str, port: int, source: str, pages: dict[str, Callable[[], Page]]
    ) -> None:
        server = StatusServer(listen(host, port, source), pages)
        self._servers.append(server)
        server.start()
        logger.info("status at %s/status, metrics at %s/metrics", server.url, server.url)

    def _close(self) -> None:
        while self._servers:
            self._servers.pop().stop()

    def _show_status(self, control: Control) -> Page:
        now = control.snapshot()
        with self._lock:
            status = self._status.describe(
                now.waits_for or None, now.overdue, now.progress, control.held(), now.notes
            )
        return Page(json.dumps(status, indent=1) + "\n", kind="application/json")

    def _show_metrics(self, control: Control) -> Page:
        try:
            from plaunch_status import prometheus  # an extra, slow to import
        except ImportError as error:
            return Page(
                f"metrics need prometheus_client ({error}): pip install 'plaunch[prometheus]'\n",
                status=501,
            )
        now = control.snapshot()
        with self._lock:
            families = prometheus.find_families(
                self._status, self._counters, now, started=self._started
            )
        return prometheus.metrics_page(families)


def _health(control: Control) -> Page:
    now = control.snapshot()
    return health_page(now.overdue, now.patience)


def _port(text: object) -> int | None:
    """The port of the health check; None for no health check."""
    if text is None:
        return None
    if number := digits(str(text), 65535):
        return number
    logger.warning(
        "%s is %r, which is not a port number; no health check is served",
        _HEALTH_SOURCE,
        text,
    )
    return None
