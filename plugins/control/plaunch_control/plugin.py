"""The extension that serves `plaunchctl`; it imports the service at the first request."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from typing import TYPE_CHECKING

from plaunch import hookimpl
from plaunch.agent import Extension
from plaunch.errors import ThreadStartError
from plaunch.threads import start_thread

if TYPE_CHECKING:
    from plaunch.agent import Control, RunResult
    from plaunch.plugin import PluginContext
    from plaunch_network import ConnectionServer

    from plaunch_control.answers import ControlService
    from plaunch_control.folder import LaunchSocket

logger = logging.getLogger("plaunch")

KNOWN_AS = "plaunchctl"
DELAY = 0.05  # seconds before it listens; a shorter launch does not pay for it
_MOST_CONNECTIONS = 32
_OPEN_TIMEOUT = 1.0  # seconds to wait for a thread that is opening the socket


@hookimpl
def plaunch_extensions(context: PluginContext) -> list[ControlExtension]:
    """Serve `plaunchctl` in every launch."""
    return [ControlExtension(context)]


class ControlExtension(Extension):
    """Listens on the socket of one launch, on a thread that blocks until a request arrives.

    It is part of every launch, so it does little before the first request: it starts to listen
    after `DELAY` seconds, when the workers are started or the launch is over. If no folder for the
    socket is usable, or no thread can be started, the launch continues without it.

    Args:
        context: the launch.
    """

    takes_events = False
    known_as = KNOWN_AS

    def __init__(self, context: PluginContext) -> None:
        self._context = context
        self._user = os.geteuid()
        self._started = time.time()
        self._lock = threading.Lock()
        self._control: Control
        self._over = threading.Event()  # cancels the opening of the socket
        self._opening: threading.Thread | None = None
        self._socket: LaunchSocket | None = None
        self._server: ConnectionServer | None = None
        self._service: ControlService | None = None  # from the first request on

    def start(self, control: Control) -> None:
        """Start to listen."""

        def answer_stacks(call: str) -> None:
            page = self._find_service(control).stacks_page
            if page is not None:
                page.stacks.answer_call(call)

        def answer_status(call: str) -> None:
            self._find_service(control).nodes.answer_call(call)

        # Calls of other nodes, for a request that one of them got.
        control.listen("stacks", answer_stacks)
        control.listen("status", answer_status)
        self._control = control
        self.release()

    def stop(self, result: RunResult | None) -> None:
        """Answer requests that wait for the end, and stop listening."""
        del result
        self._end_opening()
        if self._socket is not None:
            self._socket.remove()
        try:
            if self._service is not None:
                self._service.end()
        finally:
            if self._server is not None:
                self._server.stop()

    def rest(self) -> None:
        """Stop all threads until `release`, for a fork; requests wait meanwhile."""
        self._end_opening()
        if self._server is not None:
            self._server.rest()
        if self._service is not None and self._service.stacks_page is not None:
            self._service.stacks_page.stacks.rest()

    def release(self) -> None:
        """Start to listen; also after `rest`."""
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
            logger.debug("plaunchctl cannot reach this launch: %s", error)
            return
        self._opening = thread

    def _end_opening(self) -> None:
        opening, self._opening = self._opening, None
        self._over.set()
        if opening is not None:
            opening.join(_OPEN_TIMEOUT)

    def _open(self, over: threading.Event) -> None:
        if over.wait(DELAY):
            return
        try:
            from plaunch_network import ConnectionServer  # launches that last

            from plaunch_control.folder import FolderError, open_socket
        except OSError as error:  # too many open files
            logger.debug("plaunchctl cannot reach this launch: %s", error)
            return
        try:
            launch_socket = open_socket(self._context.run_id, os.environ, self._user)
        except FolderError as error:
            logger.debug("plaunchctl cannot find this launch: %s", error)
            return
        try:
            server = ConnectionServer(
                launch_socket.listener, self._answer, name="plaunch-control", most=_MOST_CONNECTIONS
            )
        except OSError as error:  # too many open files
            logger.debug("plaunchctl cannot reach this launch: %s", error)
            launch_socket.remove()
            return
        try:
            if not over.is_set():
                server.start()
                self._socket, self._server = launch_socket, server
                return
        except ThreadStartError as error:
            logger.debug("plaunchctl cannot reach this launch: %s", error)
        launch_socket.remove()
        server.stop()

    def _answer(self, connection: socket.socket) -> None:
        # A client that only checks for a listener sends nothing.
        if connection.recv(1, socket.MSG_PEEK):
            self._find_service(self._control).serve(connection)

    def _find_service(self, control: Control) -> ControlService:
        with self._lock:
            if self._service is None:
                from plaunch_control.answers import ControlService  # first request

                self._service = ControlService(self._context, control, self._user, self._started)
            return self._service
