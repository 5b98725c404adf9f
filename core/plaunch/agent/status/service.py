"""The pages of one launch, and what they are made of: its events, its loop, its output."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from plaunch.agent.health import TORCHELASTIC_HEALTH_CHECK_PORT, HealthCheckServer
from plaunch.agent.status.address import listen, parse_address
from plaunch.agent.status.alive import TURN_BOUND, Alive
from plaunch.agent.status.figures import Figures
from plaunch.agent.status.picture import Picture
from plaunch.agent.status.server import Page, StatusServer, health_page
from plaunch.agent.wait_reporter import describe_wait
from plaunch.errors import UsageError
from plaunch.process.streams.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plaunch.events import Event
    from plaunch.rendezvous.api import RendezvousHandler

logger = logging.getLogger("plaunch")

_INDEX = """\
/metrics  numbers for Prometheus
/healthz  200 while the agent's loop is alive, else 503
/status   what the launcher does, as JSON
"""


class _ServedAlready(HealthCheckServer):
    """Has nothing to do: the pages of the launch are the health check too."""

    def start(self) -> None:
        """Do nothing."""


class Service:
    """Serves the pages of one launch.

    `handle` takes the events, on the agent's loop; `alive` and `traffic` are for the agent.

    Args:
        run_id: the id of the job.
        role: the name of the workers.
        grace: seconds that workers may take to stop.
    """

    def __init__(self, run_id: str, role: str, grace: float) -> None:
        self.traffic = Traffic()
        self.alive = Alive(grace + TURN_BOUND, progress=self._shown)
        self.health_check: HealthCheckServer | None = None
        # How many events each handler was too slow for, or failed with.
        self.dropped: Callable[[], Mapping[str, int]] = dict
        self._picture = Picture(run_id, role)
        self._figures = Figures()
        self._lock = threading.Lock()
        self._handler: RendezvousHandler | None = None
        self._started = time.time()
        self._servers: list[StatusServer] = []
        self._pages: dict[str, Callable[[], Page]] = {
            "/": lambda: Page(_INDEX),
            "/healthz": lambda: health_page(self.alive.overdue(), self.alive.patience()),
            "/metrics": self._metrics,
            "/status": self._status,
        }

    def serve(self, metrics_port: str | int | None, health_port: int | None) -> None:
        """Begin to serve at one address, or at two.

        Args:
            metrics_port: what `--metrics-port` says.
            health_port: what `TORCHELASTIC_HEALTH_CHECK_PORT` says. If it is taken, that is logged
                and the launch goes on: under torchrun the variable never made a launch fail.

        Raises:
            UsageError: `metrics_port` cannot be used; nothing is left open.
        """
        with ExitStack() as undo:
            undo.callback(self.stop)
            if metrics_port is not None:
                host, port = parse_address(metrics_port, "--metrics-port")
                self._serve_at(host, port, "--metrics-port")
            if health_port is not None:
                self.health_check = _ServedAlready(
                    lambda: int(self.alive.last_progress()), health_port, int(TURN_BOUND)
                )
                if not any(server.answers_loopback(health_port) for server in self._servers):
                    try:
                        self._serve_at("", health_port, TORCHELASTIC_HEALTH_CHECK_PORT)
                    except UsageError as error:
                        logger.warning("there is no health check: %s", error)
            undo.pop_all()

    def _serve_at(self, host: str, port: int, source: str) -> None:
        server = StatusServer(listen(host, port, source), self._pages)
        self._servers.append(server)
        server.start()
        logger.info("status at %s/status, metrics at %s/metrics", server.url, server.url)

    def watch(self, handler: RendezvousHandler) -> None:
        """From now on `/status` says what this rendezvous waits for."""
        self._handler = handler

    def handle(self, event: Event) -> None:
        """Take the next event."""
        with self._lock:
            self._picture.note(event)
            self._figures.note(event, self._picture.phase)

    def rest(self) -> None:
        """Have no thread until `release`, for the process to fork."""
        for server in self._servers:
            server.rest()

    def release(self) -> None:
        """Serve again after `rest`."""
        for server in self._servers:
            server.start()

    def stop(self) -> None:
        """End serving; may be called more than once."""
        while self._servers:
            self._servers.pop().stop()

    def _shown(self) -> float:
        # A slow console may take long to show the last of the output. Only then is it a sign of
        # life: while workers run, others than the agent's loop look after their output.
        workers = list(self._picture.workers.values())
        if any(worker["state"] == "running" for worker in workers):
            return -math.inf
        return self.traffic.last_shown()

    def _waiting_for(self) -> str | None:
        handler = self._handler
        if handler is None or self._picture.phase != "rendezvous":
            return None
        try:
            return describe_wait(handler)
        except Exception as error:  # noqa: BLE001 - a backend's; the rest of the page is of use
            logger.debug("the rendezvous cannot say what it waits for: %r", error)
            return None

    def _status(self) -> Page:
        waiting_for = self._waiting_for()
        with self._lock:
            told = self._picture.describe(waiting_for, self.alive.overdue())
        return Page(json.dumps(told, indent=1) + "\n", kind="application/json")

    def _metrics(self) -> Page:
        try:
            from plaunch.agent.status import exposition  # noqa: PLC0415 - an extra, slow to import
        except ImportError as error:
            return Page(
                f"numbers need prometheus_client ({error}): pip install 'plaunch[prometheus]'\n",
                status=501,
            )
        with self._lock:
            families = exposition.find_families(
                self._picture,
                self._figures,
                self.traffic,
                dict(self.dropped()),
                is_alive=not self.alive.overdue(),
                started=self._started,
            )
        return exposition.metrics_page(families)
