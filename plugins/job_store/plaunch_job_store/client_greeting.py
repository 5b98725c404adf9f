"""What a client and the server say to each other first, as the client does it.

The server speaks first, so that the first message of the client completes its part.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from plaunch.errors import RendezvousClosedError

from plaunch_job_store import frames
from plaunch_job_store.authentication import PROOF_SIZE, is_equal
from plaunch_job_store.frames import FrameBuffer, MessageKind, ProtocolError
from plaunch_job_store.limits import MAX_GREETING
from plaunch_job_store.other_programs import recognise

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from plaunch_job_store.authentication import Authenticator
    from plaunch_job_store.frames import Fields

_SILENCE = 1.0  # seconds until a server that says nothing is asked who it is
_PART = 0.2  # of the whole time, if that is less


class StoreRefusedError(RendezvousClosedError):
    """The server refuses this node, or is not the store of its job; trying again is no use."""


class ClientGreeting:
    """The greeting of one connection.

    Args:
        sock: the connection.
        authenticator: makes and checks proofs.
        endpoint: the endpoint, for messages.
        deadline: when the greeting must be over, by `clock`.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        sock: socket.socket,
        authenticator: Authenticator,
        endpoint: str,
        deadline: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.received = FrameBuffer()
        self._sock = sock
        self._authenticator = authenticator
        self._endpoint = endpoint
        self._deadline = deadline
        self._clock = clock
        now = clock()
        self._asks_at = now + min(_SILENCE, (deadline - now) * _PART)

    def greet(self, session: bytes) -> bytes:
        """Prove what each side has to prove, and return the session that the server gives.

        Args:
            session: the session to resume; empty if there is none.

        Raises:
            StoreRefusedError: the server refuses this node, or is not the store of its job.
            ProtocolError: it is not a server of this protocol.
            OSError: the connection has ended, or the deadline has passed.
        """
        fields = self._expect(MessageKind.CHALLENGE)
        fields.take(len(frames.MAGIC))
        fields.u16()
        is_needed = bool(fields.u8())
        server_nonce = fields.take(frames.NONCE_SIZE)
        fields.end()
        nonce = os.urandom(frames.NONCE_SIZE)
        if is_needed == self._authenticator.is_needed:
            proof = self._authenticator.client_proof(nonce, server_nonce)
        else:  # so that the host can say so: nothing from a node without a token, else no proof
            proof = b"" if is_needed else bytes(PROOF_SIZE)
        self._send_hello(nonce, frames.u8(len(session)), session, proof)
        if is_needed != self._authenticator.is_needed:
            raise StoreRefusedError(
                f"the rendezvous store at {self._endpoint} "
                + (
                    "needs the token of the job, and this node has none; set PLAUNCH_RDZV_TOKEN, "
                    "or --rdzv-conf token_file"
                    if is_needed
                    else "knows no token, and this node has one; give the same token to all nodes, "
                    "or check that the endpoint is the host of this job"
                )
            )
        fields = self._expect(MessageKind.WELCOME)
        proof = fields.take(PROOF_SIZE if is_needed else 0)
        if not is_equal(proof, self._authenticator.server_proof(nonce, server_nonce)):
            raise StoreRefusedError(
                f"the server at {self._endpoint} does not know the token of this job; check that "
                "the endpoint is the host of this job"
            )
        given = fields.take(frames.SESSION_SIZE)
        fields.u8()
        fields.end()
        return given

    def _send_hello(self, *fields: bytes) -> None:
        """Send which versions this client speaks, and what it has to prove."""
        versions = frames.u16(frames.OLDEST_VERSION), frames.u16(frames.VERSION)
        self._sock.sendall(frames.frame(MessageKind.HELLO, frames.MAGIC, *versions, *fields))

    def _expect(self, expected: MessageKind) -> Fields:
        """Return the message of this kind, which comes next."""
        while True:
            for kind, fields in self.received.frames():
                if kind is MessageKind.REFUSED:
                    raise StoreRefusedError(
                        f"the rendezvous store at {self._endpoint} refuses this node: "
                        f"{fields.text()}"
                    )
                if kind is not expected:
                    raise ProtocolError(f"{kind.name} instead of {expected.name}")
                return fields
            self.received.feed(self._receive())
            is_first = expected is MessageKind.CHALLENGE
            if is_first and (program := recognise(self.received.peek(8))):
                raise StoreRefusedError(
                    f"the program at {self._endpoint} is {program}, not the rendezvous store of a "
                    "job; choose another port in --rdzv-endpoint"
                )

    def _receive(self) -> bytes:
        """Return what the server sends next; if it is silent at first, ask who it is."""
        while True:
            now = self._clock()
            until = min(self._asks_at, self._deadline)
            self._sock.settimeout(max(until - now, 0.01))
            try:
                data = self._sock.recv(MAX_GREETING)
            except TimeoutError:
                if self._asks_at >= self._deadline:
                    raise
                # Most programs answer what they do not understand; so does an older store.
                self._send_hello()
                self._asks_at = self._deadline
                continue
            if not data:
                raise ProtocolError("the server closes the connection without an answer")
            self._asks_at = self._deadline
            return data
