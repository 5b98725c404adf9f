"""The server of a launcher's pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plaunch_network import ConnectionServer, join_host_port

from plaunch_status.address import LOOPBACK

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from plaunch_status.page import Page


class StatusServer(ConnectionServer):
    """Serves pages from `start` to `stop`; only GET requests.

    Args:
        listener: a listening socket, which the server closes.
        pages: functions that create the pages, by path; called in the thread of a connection.
        options: other arguments of `ConnectionServer`.
    """

    def __init__(
        self, listener: socket.socket, pages: Mapping[str, Callable[[], Page]], **options: Any
    ) -> None:
        super().__init__(listener, self._answer_page, name="plaunch-status", **options)
        self._pages = pages
        host, port = listener.getsockname()[:2]
        self.host: str = host
        self.port: int = port

    @property
    def url(self) -> str:
        """Its address, for messages."""
        return f"http://{join_host_port(self.host, self.port)}"

    def answers_loopback(self, port: int) -> bool:
        """Whether this server answers requests of this host to loopback at `port`."""
        return port == self.port and self.host in (*LOOPBACK, "0.0.0.0", "::")  # noqa: S104

    def _answer_page(self, connection: socket.socket) -> None:
        from plaunch_status.requests import answer  # first request

        answer(connection, self._pages)
