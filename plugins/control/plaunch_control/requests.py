"""One request and its answer, as JSON over HTTP: the protocol is the standard library's."""

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
_CREDENTIALS = struct.Struct("3i")  # pid, uid and gid of the other end, as the kernel has them


class Request(NamedTuple):
    """What is asked for.

    Args:
        method: GET or POST.
        path: begins with a slash.
        given: what is given with it: of a GET in the query, of a POST in a JSON object.
    """

    method: str
    path: str
    given: Mapping[str, Any]


class Answer(NamedTuple):
    """An answer.

    Args:
        told: a JSON object.
        status: the HTTP status.
        carry_out: called once the answer is sent; not called if the client has closed the
            connection, because then it has reported that nothing is done.
    """

    told: Mapping[str, Any]
    status: int = 200
    carry_out: Callable[[], None] | None = None


def refusal(status: int, text: str, **more: Any) -> Answer:
    """An answer that says in one line why nothing was done."""
    return Answer({"error": text, **more}, status)


def peer_user(connection: socket.socket) -> int:
    """The user id of the process at the other end, when it connected."""
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(told)[1]
    return user


def serve(connection: socket.socket, answer: Callable[[Request], Answer]) -> None:
    """Read one request, and answer it.

    Raises:
        OSError: the connection is gone.
    """
    _Handler(connection, answer)


class _Handler(http.server.BaseHTTPRequestHandler):
    server_version = "plaunch"
    sys_version = ""

    def __init__(self, connection: socket.socket, answer: Callable[[Request], Answer]) -> None:
        self._answer = answer
        super().__init__(connection, "", None)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Answer a question."""
        query = urllib.parse.urlsplit(self.path).query
        self._respond(dict(urllib.parse.parse_qsl(query, keep_blank_values=True)))

    def do_POST(self) -> None:
        """Answer an order."""
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
        """Refuse what is no request."""
        del explain
        self._send(refusal(code, message or self.responses[http.HTTPStatus(code)][0]))

    def _refuse(self) -> None:
        self._send(refusal(405, "only GET and POST are supported"))

    do_HEAD = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse  # noqa: N815

    def _respond(self, given: dict[str, Any]) -> None:
        path = self.path.partition("?")[0]
        try:
            answer = self._answer(Request(str(self.command), path, given))
        except Exception:
            logger.exception("plaunchctl asked for %r, which failed", path)
            answer = refusal(500, "the launcher could not answer this; see its log")
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

    def _send(self, answer: Answer) -> None:
        body = json.dumps(answer.told).encode() + b"\n"
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log requests at debug level only."""
        logger.debug("plaunchctl: %r", format % args)
