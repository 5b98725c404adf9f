"""How a client and a server prove to each other that they know the job's token.

Each side has sent a nonce, the server first. A proof is an HMAC over both nonces under a key that
is derived from the token and the run id; the client proves first, so a stranger receives nothing to
try tokens on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import hmac

# hmac is imported if there is a token: with OpenSSL, it takes 3 MB and some milliseconds.
PROOF_SIZE = 32  # bytes, of SHA-256


class Authenticator:
    """Makes and checks proofs.

    Args:
        token: the job's token; None if there is none, and then every proof is empty.
        run_id: the id of the job.
    """

    def __init__(self, token: bytes | None, run_id: str) -> None:
        self._keyed: hmac.HMAC | None = None  # copied for each proof
        if token is not None:
            import hmac

            purpose = b"plaunch store\0" + run_id.encode(errors="surrogateescape")
            self._keyed = hmac.new(hmac.digest(token, purpose, "sha256"), digestmod="sha256")

    @property
    def is_needed(self) -> bool:
        """Whether there is a token."""
        return self._keyed is not None

    def client_proof(self, client_nonce: bytes, server_nonce: bytes) -> bytes:
        """Return what a client sends."""
        return self._proof(b"client", client_nonce, server_nonce)

    def server_proof(self, client_nonce: bytes, server_nonce: bytes) -> bytes:
        """Return what a server sends."""
        return self._proof(b"server", client_nonce, server_nonce)

    def _proof(self, side: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
        if self._keyed is None:
            return b""
        proof = self._keyed.copy()
        proof.update(side + client_nonce + server_nonce)
        return proof.digest()


def is_equal(proof: bytes, expected: bytes) -> bool:
    """Compare two proofs in constant time."""
    if not expected:
        return not proof
    import hmac

    return hmac.compare_digest(proof, expected)
