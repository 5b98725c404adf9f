"""Requests and responses: JSON over HTTP, with the standard library's server."""

from __future__ import annotations

import http
import http.server
import json
import logging
import socket
import struct
import urllib.parse
from typing import TYPE_CHECKING, Any, NamedTuple

from plaunch.numbers import digits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = logging.getLogger("plaunch")

MOST_BODY = 64 * 1024  # bytes
_CREDENTIALS = struct.Struct("3i")  # pid, uid and gid of the peer, from SO_PEERCRED


class HttpRequest(NamedTuple):
    """A request.

    Args:
        method: GET or POST.
        path: the path, with a leading slash.
        given: its arguments: the query of a GET, the JSON object of a POST.
    """

    method: str
    path: str
    given: Mapping[str, Any]


class HttpResponse(NamedTuple):
    """A response.

    Args:
        data: the JSON object to send.
        status: the HTTP status.
        carry_out: called after the response is sent. It is not called if the client has closed the
            connection, because the client has then reported that the request is withdrawn.
    """

    data: Mapping[str, Any]
    status: int = 200
    carry_out: Callable[[], None] | None = None


def refusal(status: int, text: str, **more: Any) -> HttpResponse:
    """A response that says in one line why the request is refused."""
    return HttpResponse({"error": text, **more}, status)


def peer_user(connection: socket.socket) -> int:
    """The user id of the connected process, from when it connected."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(raw)[1]
    return user


def serve(connection: socket.socket, answer: Callable[[HttpRequest], HttpResponse]) -> None:
    """Read one request and send the response.

    Raises:
        OSError: the connection is broken.
    """
    _RequestHandler(connection, answer)


class _RequestHandler(http.server.BaseHTTPRequestHandler):
    server_version = "plaunch"
    sys_version = ""

    def __init__(
        self, connection: socket.socket, answer: Callable[[HttpRequest], HttpResponse]
    ) -> None:
        self._answer = answer
        super().__init__(connection, "", None)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Answer a GET."""
        query = self.path.partition("?")[2]  # urlsplit raises for some hosts
        self._respond(dict(urllib.parse.parse_qsl(query, keep_blank_values=True)))

    def do_POST(self) -> None:
        """Answer a POST."""
        lengths = [text.strip(" \t") for text in self.headers.get_all("Content-Length", ["0"])]
        if len(lengths) != 1 or not (lengths[0].isascii() and lengths[0].isdecimal()):
            self._send(refusal(400, "Content-Length is not one number of decimal digits"))
            return
        if "Transfer-Encoding" in self.headers:
            self._send(refusal(411, "Transfer-Encoding is not supported; send a Content-Length"))
            return
        length = digits(lengths[0], MOST_BODY)
        if length is None:
            self._send(refusal(413, f"the body of a request has at most {MOST_BODY} bytes"))
            return
        body = self.rfile.read(length)
        if len(body) < length:
            self._send(refusal(400, f"the body has {len(body)} bytes, not {length}"))
            return
        try:
            given = json.loads(body) if body.strip() else {}
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            self._send(refusal(400, "the body of the request is not a JSON object"))
            return
        self._respond(given)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse an invalid request."""
        del explain
        self._send(refusal(code, message or self.responses[http.HTTPStatus(code)][0]))

    def _refuse(self) -> None:
        self._send(refusal(405, "only GET and POST are supported"))

    do_HEAD = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse  # noqa: N815

    def _respond(self, given: dict[str, Any]) -> None:
        path = self.path.partition("?")[0]
        try:
            answer = self._answer(HttpRequest(str(self.command), path, given))
        except Exception:
            logger.exception("a request of plaunchctl for %r failed", path)
            answer = refusal(500, "the request failed in the launcher; see its log")
        try:
            self._send(answer)
        except OSError:
            if answer.carry_out is not None:
                logger.info(
                    "a request for %r is not carried out: its connection was closed before the "
                    "answer",
                    path,
                )
            raise
        if answer.carry_out is not None:
            answer.carry_out()

    def _send(self, answer: HttpResponse) -> None:
        body = json.dumps(answer.data).encode() + b"\n"
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log requests at debug level only."""
        logger.debug("plaunchctl: %r", format % args)
