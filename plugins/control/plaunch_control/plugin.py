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
from plaunch.threads import start_thread

if TYPE_CHECKING:
    from plaunch.agent import Control, RunResult
    from plaunch.events import Event
    from plaunch.plugin import PluginContext
    from plaunch_network import ConnectionServer

    from plaunch_control.answers import Service
    from plaunch_control.door import Door

logger = logging.getLogger("plaunch")

DELAY = 0.05  # seconds; a launch that is over by then has done next to nothing for this
_MOST_CONNECTIONS = 32
_OPEN_BOUND = 1.0  # seconds that opening may take once it is not wanted any more


@hookimpl
def plaunch_extensions(context: PluginContext) -> list[ControlExtension]:
    """Let `plaunchctl` ask at the launch."""
    return [ControlExtension(context)]


class ControlExtension:
    """Listens at the socket of one launch, on a thread that sleeps until somebody asks.

    It is in every launch, and so does as little as possible before that: it begins to listen after
    a moment, in which a launch starts its workers, or is over. Without a folder for the socket, or
    without a thread, the launch goes on: nobody has asked for it.

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
        self._control: Control
        self._over = threading.Event()  # nothing is to be opened any more
        self._opening: threading.Thread | None = None
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
        self._control = control
        self.release()

    def handle(self, event: Event) -> None:
        """Take no event."""

    def stop(self, result: RunResult | None) -> None:
        """Tell of the end whoever waits for it, and listen no more."""
        del result
        self._end_opening()
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
        self._end_opening()
        if self._server is not None:
            self._server.rest()
        if self._service is not None:
            self._service.stacks.rest()

    def release(self) -> None:
        """Listen, also again after `rest`."""
        if self._server is not None:
            self._server.start()
        elif self._opening is None:
            self._begin_opening()

    # ----------------------------------------------------------------------------------------------

    def _begin_opening(self) -> None:
        self._over = threading.Event()
        thread = threading.Thread(
            target=self._open, args=(self._over,), name="plaunch-control", daemon=True
        )
        try:
            start_thread(thread, blocks_signals=True)
        except ThreadStartError as error:
            logger.debug("plaunchctl cannot ask this launch: %s", error)
            return
        self._opening = thread

    def _end_opening(self) -> None:
        opening, self._opening = self._opening, None
        self._over.set()
        if opening is not None:
            opening.join(_OPEN_BOUND)

    def _open(self, over: threading.Event) -> None:
        if over.wait(DELAY):
            return
        from plaunch_network import ConnectionServer  # launches that last

        from plaunch_control.door import open_door
        from plaunch_control.folder import FolderError

        try:
            door = open_door(self._context.run_id, os.environ, self._user)
        except FolderError as error:
            logger.debug("plaunchctl does not find this launch: %s", error)
            return
        try:
            server = ConnectionServer(
                door.listener, self._answer, name="plaunch-control", most=_MOST_CONNECTIONS
            )
        except OSError as error:  # too many open files
            logger.debug("plaunchctl cannot ask this launch: %s", error)
            door.remove()
            return
        try:
            if not over.is_set():
                server.start()
                self._door, self._server = door, server
                return
        except ThreadStartError as error:
            logger.debug("plaunchctl cannot ask this launch: %s", error)
        door.remove()
        server.stop()

    def _answer(self, connection: socket.socket) -> None:
        # Who only looks whether somebody listens asks nothing.
        if connection.recv(1, socket.MSG_PEEK):
            self._find_service(self._control).serve(connection)

    def _find_service(self, control: Control) -> Service:
        with self._lock:
            if self._service is None:
                from plaunch_control.answers import Service  # when it is needed

                self._service = Service(self._context, control, self._user, self._started)
            return self._service
