"""Requests to one launch, with a timeout; imports as little as possible."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import time

from plaunch.lazy import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

PATIENCE = 10.0  # seconds for an answer; a launcher may get little CPU time
LIST_PATIENCE = 2.0  # of `ps`, which also lists launches that do not answer
_MOST_BYTES = 64 << 20  # of an answer
_STATUS_DIGITS = 3


class ClientError(Exception):
    """A request failed; the message says why, in one line."""


class GoneError(ClientError):
    """No process listens on the socket: the launch has ended."""


class SilentError(ClientError):
    """The launch listens, but did not answer in time."""


class WithdrawnError(SilentError):
    """A POST was not answered in time; the launch will not carry it out."""


class ForeignError(ClientError):
    """The launch, or the folder of its socket, belongs to another user."""


class RefusedError(ClientError):
    """The launch refused the request; `response` is its whole answer."""

    def __init__(self, text: str, status: int, response: dict[str, Any]) -> None:
        super().__init__(text)
        self.status = status
        self.response = response


def ask(
    path: str,
    page: str,
    given: dict[str, Any] | None = None,
    *,
    patience: float = PATIENCE,
    most_bytes: int = _MOST_BYTES,
) -> dict[str, Any]:
    """Send a request to the launch behind a socket, and return the answer.

    Args:
        path: the path of the socket.
        page: the page, such as `/v1/status`.
        given: the arguments of a POST; None for a GET.
        patience: seconds until the whole answer must be received.
        most_bytes: the maximum size of the answer.

    Raises:
        ClientError: it was not answered, or refused.
    """
    request = PendingRequest(path, page, given, patience=patience, most_bytes=most_bytes)
    return request.answer()


class PendingRequest:
    """A request that is sent when it is created, and whose answer is read later; see `ask`.

    Raises:
        ClientError: it could not be sent.
    """

    def __init__(
        self,
        path: str,
        page: str,
        given: dict[str, Any] | None = None,
        *,
        patience: float = PATIENCE,
        most_bytes: int = _MOST_BYTES,
    ) -> None:
        self._most_bytes = most_bytes
        self._until = time.monotonic() + patience
        self._is_post = given is not None
        method = "GET" if given is None else "POST"
        body = b"" if given is None else json.dumps(given).encode()
        head = (
            f"{method} {page} HTTP/1.0\r\nHost: plaunch\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            with _converted_errors(is_post=self._is_post):
                self._socket.settimeout(_left(self._until))
                self._socket.connect(path)
                self._socket.sendall(head.encode() + body)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection without an answer."""
        self._socket.close()

    def answer(self) -> dict[str, Any]:
        """Wait for the answer.

        Raises:
            ClientError: it did not arrive in time, or is a refusal.
        """
        received = bytearray()
        with self._socket, _converted_errors(is_post=self._is_post):
            try:
                self._receive(received)
            except TimeoutError:
                status, response = self._withdraw(received)
            else:
                if not received:
                    raise GoneError("it has ended")
                status, response = _read(received)
        return _check(status, response)

    def _receive(self, received: bytearray) -> None:
        while len(received) <= self._most_bytes:
            self._socket.settimeout(_left(self._until))
            piece = self._socket.recv(1 << 16)
            if not piece:
                return
            received += piece
        raise ClientError(f"its answer is longer than {self._most_bytes >> 20} MiB")

    def _withdraw(self, received: bytearray) -> tuple[int, dict[str, Any]]:
        """Shut the connection down; return the answer if all of it was received before.

        The launch carries a POST out after it has sent the answer. So either the whole answer was
        received, or the launch cannot send it any more and drops the request.

        Raises:
            TimeoutError: the answer is incomplete.
        """
        with contextlib.suppress(OSError):  # ENOTCONN: the launch has closed the connection
            self._socket.shutdown(socket.SHUT_RDWR)
        self._receive(received)
        try:
            return _read(received)
        except ClientError:
            raise TimeoutError from None


def _check(status: int, response: dict[str, Any]) -> dict[str, Any]:
    if status == 200:
        return response
    problem = str(response.get("error", f"status {status}"))
    if status == 403:
        raise ForeignError(problem)
    versions = response.get("versions")
    if status == 404 and not (isinstance(versions, list) and 1 in versions):
        raise RefusedError(
            f"the launch is of another version of plaunch ({problem}); use the plaunchctl of "
            "its environment",
            status,
            response,
        )
    raise RefusedError(problem, status, response)


def _read(answer: bytes | bytearray) -> tuple[int, dict[str, Any]]:
    head, _, text = bytes(answer).partition(b"\r\n\r\n")
    words = head.split(None, 2)
    response = None
    is_http = len(words) > 2 and words[0].startswith(b"HTTP/")
    if is_http and words[1].isdigit() and len(words[1]) == _STATUS_DIGITS:
        with contextlib.suppress(ValueError, RecursionError):
            response = json.loads(text)
    if not isinstance(response, dict):
        raise ClientError(
            "its answer is not one of plaunch; use the plaunchctl of the launch's own environment"
        )
    return int(words[1]), response


@contextlib.contextmanager
def _converted_errors(*, is_post: bool) -> Iterator[None]:
    try:
        yield
    except (TimeoutError, BlockingIOError):
        error = WithdrawnError if is_post else SilentError
        raise error("it does not answer") from None
    except OSError as error:
        if error.errno in (errno.ECONNREFUSED, errno.ENOENT, errno.ECONNRESET, errno.EPIPE):
            raise GoneError("it has ended") from None
        if error.errno in (errno.EACCES, errno.EPERM):
            raise ForeignError("it belongs to another user") from None
        raise ClientError(f"its socket cannot be used: {error.strerror or error}") from None


def _left(until: float) -> float:
    return max(until - time.monotonic(), 0.001)
