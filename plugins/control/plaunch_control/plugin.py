"""The extension of a launch at which `plaunchctl` asks; what answers is imported when it does."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from typing import TYPE_CHECKING

from plaunch import hookimpl
from plaunch.errors import ThreadStartError
from plaunch_network import ConnectionServer

from plaunch_control.door import open_door
from plaunch_control.folder import FolderError

if TYPE_CHECKING:
    from plaunch.agent import Control, RunResult
    from plaunch.events import Event
    from plaunch.plugin import PluginContext

    from plaunch_control.answers import Service
    from plaunch_control.door import Door

logger = logging.getLogger("plaunch")

_MOST_CONNECTIONS = 32


@hookimpl
def plaunch_extensions(context: PluginContext) -> list[ControlExtension]:
    """Let `plaunchctl` ask at the launch."""
    return [ControlExtension(context)]


class ControlExtension:
    """Listens at the socket of one launch, on a thread that sleeps until somebody asks.

    It is in every launch, and so does as little as possible before that. Without a folder for the
    socket the launch goes on: nobody has asked for it.

    Args:
        context: the launch.
    """

    takes_events = False
    known_as = "plaunchctl"

    def __init__(self, context: PluginContext) -> None:
        self._context = context
        self._user = os.geteuid()
        self._started = time.time()
        self._lock = threading.Lock()
        self._door: Door | None = None
        self._server: ConnectionServer | None = None
        self._service: Service | None = None  # once somebody has asked

    def start(self, control: Control) -> None:
        """Begin to listen."""

        def look(call: str) -> None:
            self._find_service(control).stacks.hear(call)

        def tell(call: str) -> None:
            self._find_service(control).nodes.hear(call)

        # Both are of the whole job, whichever of its nodes is asked for them.
        control.listen("stacks", look)
        control.listen("status", tell)
        try:
            self._door = open_door(self._context.run_id, os.environ, self._user)
        except FolderError as error:
            logger.debug("plaunchctl does not find this launch: %s", error)
            return

        def answer(connection: socket.socket) -> None:
            # Who only looks whether somebody listens asks nothing.
            if connection.recv(1, socket.MSG_PEEK):
                self._find_service(control).serve(connection)

        self._server = ConnectionServer(
            self._door.listener, answer, name="plaunch-control", most=_MOST_CONNECTIONS
        )
        try:
            self._server.start()
        except ThreadStartError as error:
            logger.debug("plaunchctl cannot ask this launch: %s", error)
            self._server.stop()
            self._door.remove()

    def handle(self, event: Event) -> None:
        """Take no event."""

    def stop(self, result: RunResult | None) -> None:
        """Tell of the end whoever waits for it, and listen no more."""
        del result
        if self._door is not None:
            self._door.remove()
        try:
            if self._service is not None:
                self._service.end()
        finally:
            if self._server is not None:
                self._server.stop()

    def rest(self) -> None:
        """Have no thread until `release`, for the process to fork; requests wait meanwhile."""
        if self._server is not None:
            self._server.rest()
        if self._service is not None:
            self._service.stacks.rest()

    def release(self) -> None:
        """Listen again after `rest`."""
        if self._server is not None:
            self._server.start()

    def _find_service(self, control: Control) -> Service:
        with self._lock:
            if self._service is None:
                from plaunch_control.answers import Service  # noqa: PLC0415 - when it is needed

                self._service = Service(self._context, control, self._user, self._started)
            return self._service
