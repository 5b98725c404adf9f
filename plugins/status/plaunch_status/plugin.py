"""The pages of one launch, and their sources: its events, its loop, its output."""

from __future__ import annotations

import json
import logging
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from plaunch import hookimpl
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
/metrics  numbers for Prometheus
/healthz  200 while the agent's loop is alive, else 503
/status   what the launcher does, as JSON
"""


@hookimpl
def plaunch_extensions(context: PluginContext) -> list[StatusExtension]:
    """Serve the pages of the launch."""
    return [StatusExtension(context)]


class StatusExtension:
    """Serves the pages of one launch.

    Args:
        context: the launch; its options are those of `plaunch_status.options`.

    Raises:
        UsageError: `--metrics-port` is no address.
    """

    def __init__(self, context: PluginContext) -> None:
        asked = context.options.get("metrics_port")
        self._address = None if asked is None else parse_address(asked, "--metrics-port")
        self._health_port = _port(context.options.get("health_port"))
        self._status = LauncherStatus(context.run_id, context.role)
        self._counters = Counters()
        self._lock = threading.Lock()
        self._started = time.time()
        self._servers: list[StatusServer] = []

    def start(self, control: Control) -> None:
        """Begin to serve at one address, or at two.

        A health port that is taken is logged and the launch goes on: under torchrun its variable
        never made a launch fail.

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
        """Take the next event."""
        with self._lock:
            self._status.note(event)
            self._counters.note(event, self._status.phase)

    def stop(self, result: RunResult | None) -> None:
        """End serving."""
        del result
        self._close()

    def rest(self) -> None:
        """Have no thread until `release`, for the process to fork."""
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
            told = self._status.describe(
                now.waits_for or None, now.overdue, now.progress, control.held(), now.notes
            )
        return Page(json.dumps(told, indent=1) + "\n", kind="application/json")

    def _show_metrics(self, control: Control) -> Page:
        try:
            from plaunch_status import prometheus  # an extra, slow to import
        except ImportError as error:
            return Page(
                f"numbers need prometheus_client ({error}): pip install 'plaunch[prometheus]'\n",
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
    """The port of the health check, if there is to be one."""
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
