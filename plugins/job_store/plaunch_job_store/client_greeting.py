"""What a client and the server say to each other first, as the client does it."""

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

    def greet(self, session: bytes) -> bytes:
        """Prove what each side has to prove, and return the session that the server gives.

        Args:
            session: the session to resume; empty if there is none.

        Raises:
            StoreRefusedError: the server refuses this node, or is not the store of its job.
            ProtocolError: it is not a server of this protocol.
            OSError: the connection has ended, or the deadline has passed.
        """
        sock = self._sock
        nonce = os.urandom(frames.NONCE_SIZE)
        sock.settimeout(max(self._deadline - self._clock(), 0.01))
        versions = frames.u16(frames.OLDEST_VERSION), frames.u16(frames.VERSION)
        resumes = frames.u8(len(session)) + session
        sock.sendall(frames.frame(MessageKind.HELLO, frames.MAGIC, *versions, nonce, resumes))
        fields = self._expect(MessageKind.CHALLENGE)
        fields.take(len(frames.MAGIC))
        fields.u16()
        is_needed = bool(fields.u8())
        server_nonce = fields.take(frames.NONCE_SIZE)
        fields.end()
        if is_needed != self._authenticator.is_needed:
            # So that the host can say so: nothing from a node without a token, else no proof.
            no_proof = b"" if is_needed else bytes(PROOF_SIZE)
            sock.sendall(frames.frame(MessageKind.PROOF, no_proof))
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
        sock.sendall(
            frames.frame(MessageKind.PROOF, self._authenticator.client_proof(nonce, server_nonce))
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
            self._sock.settimeout(max(self._deadline - self._clock(), 0.01))
            data = self._sock.recv(MAX_GREETING)
            if not data:
                raise ProtocolError("the server closes the connection without an answer")
            self.received.feed(data)
            program = recognise(self.received.peek(8))
            if program:
                raise StoreRefusedError(
                    f"the program at {self._endpoint} is {program}, not the rendezvous store of a "
                    "job; choose another port in --rdzv-endpoint"
                )
