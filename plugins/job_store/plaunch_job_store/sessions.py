"""Ids of sessions, which begin with the incarnation of the server that has given them."""

from __future__ import annotations

import os

from plaunch_job_store.frames import SESSION_SIZE, ProtocolError

_INCARNATION_SIZE = 4  # bytes


class SessionLostError(ProtocolError):
    """A client resumes a session of an earlier server, whose data is lost."""


def make_session_id(incarnation: int) -> bytes:
    """Return a new id for a session with this server."""
    return incarnation.to_bytes(_INCARNATION_SIZE, "big") + os.urandom(
        SESSION_SIZE - _INCARNATION_SIZE
    )


def incarnation_of(session_id: bytes) -> int:
    """Return the incarnation of the server that has given an id."""
    return int.from_bytes(session_id[:_INCARNATION_SIZE], "big")
