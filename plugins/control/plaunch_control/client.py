"""One question to one launch, answered within a bound; imports as little as it can."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time

from plaunch.lazy import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

PATIENCE = 2.0  # seconds for an answer
_MOST_BYTES = 64 << 20  # of an answer


class ClientError(Exception):
    """A question was not answered; the message says why, in one line."""


class GoneError(ClientError):
    """Nobody listens: the launch has ended."""


class SilentError(ClientError):
    """The launch listens, but has not answered in time."""


class WithdrawnError(SilentError):
    """An order was not answered in time, and the launch will not carry it out."""


class ForeignError(ClientError):
    """The launch, or the folder of its socket, belongs to another user."""


class RefusedError(ClientError):
    """The launch has answered that it will not do this, or cannot; `told` is the whole answer."""

    def __init__(self, text: str, status: int, told: dict[str, Any]) -> None:
        super().__init__(text)
        self.status = status
        self.told = told


def ask(
    path: str,
    page: str,
    given: dict[str, Any] | None = None,
    *,
    patience: float = PATIENCE,
) -> dict[str, Any]:
    """Ask the launch behind a socket for a page, or to do something.

    Args:
        path: of the socket.
        page: such as `/v1/status`.
        given: what is to be done, for a POST; None for a GET.
        patience: seconds within which the whole answer must be there.

    Raises:
        ClientError: it was not answered.
    """
    return Question(path, page, given, patience=patience).answer()


class Question:
    """One that is asked when it is made, and whose answer may be waited for later; see `ask`.

    Raises:
        ClientError: it could not be asked.
    """

    def __init__(
        self,
        path: str,
        page: str,
        given: dict[str, Any] | None = None,
        *,
        patience: float = PATIENCE,
    ) -> None:
        self._until = time.monotonic() + patience
        self._is_order = given is not None
        method = "GET" if given is None else "POST"
        body = b"" if given is None else json.dumps(given).encode()
        head = (
            f"{method} {page} HTTP/1.0\r\nHost: plaunch\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            with _errors_told(is_order=self._is_order):
                self._socket.settimeout(_left(self._until))
                self._socket.connect(path)
                self._socket.sendall(head.encode() + body)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Want no answer any more."""
        self._socket.close()

    def answer(self) -> dict[str, Any]:
        """Wait for the answer.

        Raises:
            ClientError: there is none, or it is a refusal.
        """
        received = bytearray()
        with self._socket, _errors_told(is_order=self._is_order):
            try:
                self._receive(received)
            except TimeoutError:
                told = self._withdraw(received)
            else:
                if not received:
                    raise GoneError("it has ended")
                told = _read(received)
        return _check(*told)

    def _receive(self, received: bytearray) -> None:
        while len(received) <= _MOST_BYTES:
            self._socket.settimeout(_left(self._until))
            piece = self._socket.recv(1 << 16)
            if not piece:
                return
            received += piece
        raise ClientError("its answer has no end")

    def _withdraw(self, received: bytearray) -> tuple[int, dict[str, Any]]:
        """Refuse an answer from now on; return one that has come before.

        The launch carries an order out once it has sent the answer. So either the whole answer is
        here, or the launch cannot send it any more and drops the order.

        Raises:
            TimeoutError: there is no whole answer.
        """
        with contextlib.suppress(OSError):  # ENOTCONN: the launch has closed the connection
            self._socket.shutdown(socket.SHUT_RDWR)
        self._receive(received)
        try:
            return _read(received)
        except ClientError:
            raise TimeoutError from None


def _check(status: int, told: dict[str, Any]) -> dict[str, Any]:
    if status == 200:
        return told
    text_of_error = str(told.get("error", f"status {status}"))
    if status == 403:
        raise ForeignError(text_of_error)
    if status == 404 and 1 not in told.get("versions", ()):
        raise RefusedError(
            f"the launch is of another version of plaunch ({text_of_error}); use the plaunchctl of "
            "its environment",
            status,
            told,
        )
    raise RefusedError(text_of_error, status, told)


def _read(answer: bytes | bytearray) -> tuple[int, dict[str, Any]]:
    head, _, text = bytes(answer).partition(b"\r\n\r\n")
    words = head.split(None, 2)
    told = None
    if len(words) > 2 and words[0].startswith(b"HTTP/") and words[1].isdigit():
        with contextlib.suppress(ValueError):
            told = json.loads(text)
    if not isinstance(told, dict):
        raise ClientError(
            "what listens there does not answer as plaunch does; use the plaunchctl of the "
            "launch's own environment"
        )
    return int(words[1]), told


@contextlib.contextmanager
def _errors_told(*, is_order: bool) -> Iterator[None]:
    try:
        yield
    except (TimeoutError, BlockingIOError):
        error = WithdrawnError if is_order else SilentError
        raise error("it does not answer") from None
    except OSError as error:
        if error.errno in (errno.ECONNREFUSED, errno.ENOENT, errno.ECONNRESET, errno.EPIPE):
            raise GoneError("it has ended") from None
        if error.errno in (errno.EACCES, errno.EPERM):
            raise ForeignError("it belongs to another user") from None
        raise ClientError(os.strerror(error.errno or 0)) from None


def _left(until: float) -> float:
    return max(until - time.monotonic(), 0.001)
