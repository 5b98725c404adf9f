"""What a server answers to the greeting of a client of the job's store."""

from __future__ import annotations

from plaunch_job_store import frames
from plaunch_job_store.authentication import Authenticator
from plaunch_job_store.client_greeting import ClientGreeting, StoreRefusedError
from plaunch_job_store.frames import ProtocolError

from helpers.fuzz_targets import Finding
from helpers.fuzz_targets.reading import Choices, check_equal, check_message, divide

MAX_LENGTH = 512
_VERSION = frames.u16(frames.VERSION)
WORDS = (
    frames.frame(frames.MessageKind.CHALLENGE, frames.MAGIC, _VERSION, b"\0", b"n" * 32),
    frames.frame(frames.MessageKind.WELCOME, b"s" * 16, b"\0"), b"SSH-2.0", b"HTTP/1.1",
    frames.frame(frames.MessageKind.REFUSED, frames.text("no")),
)  # fmt: skip


class _Socket:
    """A connection to a server that sends these parts, whatever it gets."""

    def __init__(self, parts):
        self._parts = [part for part in parts if part]
        self.sent = b""

    def settimeout(self, seconds):
        if not seconds > 0:
            raise Finding(f"a timeout of {seconds} s")

    def sendall(self, data):
        self.sent += data

    def recv(self, size):
        part = self._parts.pop(0) if self._parts else b""
        if len(part) > size:
            self._parts.insert(0, part[size:])
        return part[:size]


def check(data):
    """Greet a server; the result is a session, or a documented error."""
    choices = Choices(data)
    token = choices.one_of((None, b"t" * 16))
    found = [_greet(parts, token) for parts in divide(choices.rest)]
    for one in found[1:]:
        # A program is recognised by its first bytes, before or after the rest has been read.
        check_equal(type(one), type(found[0]), "other parts, another result")
        if isinstance(one, bytes):
            check_equal(one, found[0], "other parts, another session")


def _greet(parts, token):
    greeting = ClientGreeting(
        _Socket(parts), Authenticator(token, "job"), "here:1", 10.0, clock=lambda: 0.0
    )
    try:
        session = greeting.greet(b"")
    except (StoreRefusedError, ProtocolError) as error:
        check_message(str(error), 5000)
        return error
    if token is not None:
        raise Finding("a session from a server that does not know the token")
    if len(session) != frames.SESSION_SIZE:
        raise Finding(f"a session {session!r}")
    return session
