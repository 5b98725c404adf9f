"""Answering requests for pages, with the standard library's HTTP server."""

from __future__ import annotations

import http.server
import logging
from typing import TYPE_CHECKING, Any

from plaunch_status.page import Page

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

logger = logging.getLogger("plaunch")


def answer(connection: socket.socket, pages: Mapping[str, Callable[[], Page]]) -> None:
    """Read one request and answer it.

    Raises:
        OSError: the connection is broken.
    """
    _PageRequestHandler(connection, pages)


class _PageRequestHandler(http.server.BaseHTTPRequestHandler):
    server_version = "plaunch"
    sys_version = ""
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(code)d %(message)s\n"

    def __init__(self, request: socket.socket, pages: Mapping[str, Callable[[], Page]]) -> None:
        self._pages = pages
        super().__init__(request, request.getpeername(), None)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Answer with a page."""
        path = self.path.partition("?")[0]
        make = self._pages.get(path)
        if make is None:
            known = " ".join(sorted(self._pages))
            self._send(Page(f"no such page; pages: {known}\n", status=404))
            return
        try:
            page = make()
        except Exception:
            logger.exception("the page %s cannot be created", path)
            page = Page("this page cannot be created; see the launcher's log\n", status=500)
        self._send(page)

    def _refuse(self) -> None:
        self._send(Page("only GET is supported\n", status=405), ("Allow", "GET"))

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse  # noqa: N815

    def _send(self, page: Page, *headers: tuple[str, str]) -> None:
        body = page.text if isinstance(page.text, bytes) else page.text.encode()
        self.send_response(page.status)
        self.send_header("Content-Type", page.kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log requests at debug level only."""
        logger.debug("status: %r", format % args)
