"""One connection of the server, and what keeps connections alive."""

from __future__ import annotations

import selectors
import socket
from collections import deque
from typing import TYPE_CHECKING

from plaunch_job_store.frames import FrameBuffer
from plaunch_job_store.limits import MAX_BACKLOG, MAX_GREETING

if TYPE_CHECKING:
    from plaunch_job_store.answers import Answer
    from plaunch_job_store.table import Session

_READ_SIZE = 256 << 10  # bytes per turn


class EndConnectionError(Exception):
    """The server ends a connection without another word to the client."""


def keep_alive(sock: socket.socket, timeout: float) -> None:
    """Let the kernel end a connection whose peer has not answered for `timeout` seconds.

    The peer's kernel answers: a process that is suspended, or slow, keeps its connection.
    Connections that a listening socket accepts inherit this from it.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, max(int(timeout) - 1, 1))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(timeout * 1000))


class ClientConnection:
    """One client. It greets within `GREETING_TIMEOUT`, and has a session from then on.

    Args:
        sock: the socket; it does not block.
        peer: the address of the other end.
        deadline: when it is closed, unless the client has greeted.
    """

    def __init__(self, sock: socket.socket, peer: str, deadline: float) -> None:
        self.sock = sock
        self.peer = peer
        self.received = FrameBuffer(MAX_GREETING)
        self.unsent: deque[bytes] = deque()
        self.unsent_bytes = 0
        self.counted_bytes = 0  # of `buffered_bytes`, by the server
        self.awaits = selectors.EVENT_READ  # for which the server's selector waits
        self.deadline = deadline
        self.client_nonce = b""
        self.server_nonce = b""
        self.resumes = b""  # the session that it wants to resume
        self.session: Session | None = None
        self.is_refused = False  # the reason is sent, and nothing that it sends is read
        self.is_loss_due = False  # LOST is to be sent

    @property
    def is_closed(self) -> bool:
        """Whether the server has closed it."""
        return self.sock.fileno() < 0

    @property
    def takes_requests(self) -> bool:
        """Whether the next request may be carried out: the client has read the last reply."""
        return not (self.is_closed or self.is_refused or self.unsent)

    @property
    def buffered_bytes(self) -> int:
        """The bytes of requests and replies on their way."""
        return len(self.received) + self.unsent_bytes

    def receive(self) -> bool:
        """Read what the client has sent; False if it sends nothing more."""
        data = self.sock.recv(_READ_SIZE if self.session is not None else 2 * MAX_GREETING)
        if data and not self.is_refused:
            self.received.feed(data)
        return bool(data)

    def reply(self, number: int, answer: Answer) -> None:
        """Send the answer to a request."""
        self.send(answer.reply(number))

    def send(self, data: bytes) -> None:
        """Send `data`, as far as the client reads it; keep the rest.

        Raises:
            EndConnectionError: the client has not read too much already.
        """
        if self.unsent_bytes + len(data) > MAX_BACKLOG:
            raise EndConnectionError(f"the node has not read {self.unsent_bytes} bytes of replies")
        if not self.unsent:
            try:
                sent = self.sock.send(data)
            except OSError:  # the next read reports it
                sent = 0
            if sent == len(data):
                return
            data = data[sent:]
        self.unsent.append(data)
        self.unsent_bytes += len(data)

    def send_rest(self) -> None:
        """Send what the client can take now."""
        while self.unsent:
            data = self.unsent[0]
            sent = self.sock.send(data)
            self.unsent_bytes -= sent
            if sent < len(data):
                self.unsent[0] = data[sent:]
                return
            self.unsent.popleft()
