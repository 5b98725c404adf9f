"""What a client and the server say to each other first, as the server does it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plaunch_job_store import frames
from plaunch_job_store.authentication import is_equal
from plaunch_job_store.frames import MessageKind, ProtocolError

if TYPE_CHECKING:
    from plaunch_job_store.authentication import Authenticator
    from plaunch_job_store.connection import ClientConnection
    from plaunch_job_store.frames import Fields
    from plaunch_job_store.table import Session


_NOT_A_NODE = "it is not a node of a job that uses the store of plaunch"
_NO_TOKEN = "the node has no token, and this job has one; give all nodes the same"  # noqa: S105
_OTHER_TOKEN = "the node has a token, and this job has none; give all nodes the same"  # noqa: S105


class ServerGreeting:
    """Decides which connections may have a session.

    Args:
        authenticator: checks the clients.
    """

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    def challenge(self, connection: ClientConnection) -> bytes:
        """Return the frame that a connection gets first: what its client has to prove."""
        connection.server_nonce = os.urandom(frames.NONCE_SIZE)
        return frames.frame(
            MessageKind.CHALLENGE,
            frames.MAGIC,
            frames.u16(frames.VERSION),
            frames.u8(self._authenticator.is_needed),
            connection.server_nonce,
        )

    def receive(self, connection: ClientConnection, kind: MessageKind, fields: Fields) -> bool:
        """Check a message of a client without a session; return whether it may have one.

        Raises:
            ProtocolError: it may not.
        """
        if kind is not MessageKind.HELLO or fields.take(len(frames.MAGIC)) != frames.MAGIC:
            raise ProtocolError(_NOT_A_NODE)
        oldest, newest = fields.u16(), fields.u16()
        if not oldest <= frames.VERSION <= newest:
            raise ProtocolError(
                f"the node speaks versions {oldest} to {newest} of the store's protocol, and "
                f"the host of the store version {frames.VERSION}; install the same plaunch on "
                "both"
            )
        if fields.are_over():
            return False  # the client has not received the challenge yet
        connection.client_nonce = fields.take(frames.NONCE_SIZE)
        connection.resumes = fields.take(fields.u8())
        nonces = connection.client_nonce, connection.server_nonce
        proof = fields.rest()
        if bool(proof) != self._authenticator.is_needed:
            raise ProtocolError(_OTHER_TOKEN if proof else _NO_TOKEN)
        if not is_equal(proof, self._authenticator.client_proof(*nonces)):
            raise ProtocolError(
                "the node does not prove that it knows the job's token: give it the same token "
                "and run id (--rdzv-id) as the host of the store"
            )
        return True

    def welcome(self, connection: ClientConnection, session: Session, *, is_resumed: bool) -> bytes:
        """Return the frame that gives a connection its session."""
        nonces = connection.client_nonce, connection.server_nonce
        return frames.frame(
            MessageKind.WELCOME,
            self._authenticator.server_proof(*nonces),
            session.session_id,
            frames.u8(is_resumed),
        )
