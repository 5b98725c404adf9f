"""One connection of the server, and what keeps connections alive."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from typing import TYPE_CHECKING

from plaunch_job_store import frames
from plaunch_job_store.frames import TOO_LARGE, FrameBuffer, MessageKind, OperationFailed

if TYPE_CHECKING:
    from plaunch_job_store.frames import Result
    from plaunch_job_store.table import Session

SILENCE_TIMEOUT = 5.0  # seconds after which the kernel gives up a peer that does not answer
MAX_BACKLOG = 16 << 20  # bytes that a client has not read yet
MAX_REPLY = frames.MAX_FRAME // 2  # bytes of values


def keep_alive(sock: socket.socket, timeout: float) -> None:
    """Let the kernel end a connection whose peer has not answered for `timeout` seconds.

    The peer's kernel answers: a process that is suspended, or slow, keeps its connection.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, max(int(timeout) - 1, 1))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(timeout * 1000))


class ClientConnection:
    """One client. It greets within `GREETING_TIMEOUT`, and has a session from then on."""

    def __init__(self, sock: socket.socket, deadline: float, peer: str = "") -> None:
        self.sock = sock
        self.peer = peer  # the address of the other end
        self.received = FrameBuffer(frames.MAX_GREETING)
        self.unsent: deque[bytes] = deque()
        self.unsent_bytes = 0
        self.deadline = deadline  # of the greeting
        self.client_nonce = b""
        self.server_nonce = b""
        self.resumes = b""  # the session that it wants to resume
        self.session: Session | None = None
        self.is_refused = False  # the reason is sent, and nothing that it sends is read

    def reply(self, number: int, results: list[Result]) -> None:
        """Send the results of a request; of a client that reads nothing, end the connection."""
        if self.unsent_bytes > MAX_BACKLOG:
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)
            return
        if sum(len(result) for result in results if isinstance(result, bytes)) > MAX_REPLY:
            results = [OperationFailed(TOO_LARGE)] * len(results)
        self.send(
            frames.frame(MessageKind.REPLY, frames.u64(number), frames.encode_results(results))
        )

    def send(self, data: bytes) -> None:
        """Send `data`, as far as the client reads it; keep the rest."""
        if not self.unsent:
            with contextlib.suppress(OSError):  # the next read reports it
                data = data[self.sock.send(data) :]
        if data:
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
