"""Bytes to the server of the job's store, over several connections."""

from __future__ import annotations

import contextlib
import socket

from plaunch_job_store import frames
from plaunch_job_store.authentication import Authenticator
from plaunch_job_store.connection import ClientConnection
from plaunch_job_store.frames import FrameBuffer, MessageKind, Operation
from plaunch_job_store.server import StoreServer

from helpers.fuzz_targets import Finding
from helpers.fuzz_targets.reading import Choices, check_equal, check_message

_VERSIONS = frames.u16(frames.OLDEST_VERSION) + frames.u16(frames.VERSION)
WORDS = (
    frames.frame(MessageKind.REQUEST, frames.u64(1), frames.encode_operations(
        [Operation(frames.Code.SET, "k", b"v")])),
    frames.frame(MessageKind.REQUEST, frames.u64(2), frames.encode_operations(
        [Operation(frames.Code.WAIT, "k")])),
    frames.frame(MessageKind.CANCEL, frames.u64(2)), frames.frame(MessageKind.BYE),
    frames.frame(MessageKind.HELLO, frames.MAGIC, _VERSIONS, b"n" * 32, b"\0"),
    frames.frame(MessageKind.HELLO, frames.MAGIC, _VERSIONS), b"\x07", b"\x08", b"\0\1",
)  # fmt: skip
_GREETING = frames.frame(MessageKind.HELLO, frames.MAGIC, _VERSIONS, b"n" * 32, b"\0")
_KEY, _VALUE = "plaunch/of/the/job", b"untouched"
_MOST_TURNS = 400
_DOCUMENTED = ("an error of the server",)


class _Server:
    """A server whose connections are pairs of sockets; its clock stands still."""

    def __init__(self):
        self.reports = []
        self.server = StoreServer(
            socket.create_server(("127.0.0.1", 0)),
            Authenticator(None, "job"),
            max_connections=8,
            clock=lambda: 1.0,
            report=lambda peer, reason: self.reports.append(reason),
        )

    def connect(self):
        client, end = socket.socketpair()
        client.setblocking(False)
        self.server._admit(ClientConnection(end, "peer", 100.0))
        return client

    def settle(self):
        """Take turns until there is nothing to do."""
        for _ in range(_MOST_TURNS):
            before = len(self.reports)
            self.server.turn(0.0)
            is_idle = not (
                self.server._ready or self.server._is_loss_due or self.server._table.has_answers()
            )
            if is_idle and len(self.reports) == before and not self.server._selector.select(0.0):
                return
        raise Finding("the server does not come to rest")

    def ask(self, client, number, operations):
        with contextlib.suppress(OSError):
            while client.recv(1 << 16):
                pass
        client.sendall(
            frames.frame(
                MessageKind.REQUEST, frames.u64(number), frames.encode_operations(operations)
            )
        )
        self.settle()
        buffer = FrameBuffer()
        buffer.feed(_received(client))
        for kind, fields in buffer.frames():
            if kind is MessageKind.REPLY:
                check_equal(fields.u64(), number, "the number of a reply")
                return frames.decode_results(fields)
        raise Finding("a client of the job gets no answer")


def _received(client):
    data = b""
    with contextlib.suppress(OSError):
        while part := client.recv(1 << 20):
            data += part
    return data


def check(data):
    """Send bytes over three connections; a client of the job still finds its data."""
    choices = Choices(data)
    made = _Server()
    with contextlib.ExitStack() as stack:
        stack.callback(made.server.close)
        job = stack.enter_context(made.connect())
        job.sendall(_GREETING)
        made.settle()
        made.ask(job, 1, [Operation(frames.Code.SET, _KEY, _VALUE)])
        peers = []
        for number in range(3):
            peer = stack.enter_context(made.connect())
            if number < 2:
                peer.sendall(_GREETING)
            peers.append(peer)
        made.settle()
        received = {peer: _received(peer) for peer in peers}
        while choices.rest:
            peer = choices.one_of(peers)
            size = choices.number(200) + 1
            part, choices.rest = choices.rest[:size], choices.rest[size:]
            with contextlib.suppress(OSError):
                peer.sendall(part)
            made.settle()
            received[peer] += _received(peer)
        for answers in received.values():
            _check_answers(answers)
        (found,) = made.ask(job, 2, [Operation(frames.Code.GET, _KEY)])
        check_equal(found, _VALUE, "the data of the job")
    for reason in made.reports:
        check_message(reason, 5000)
        if reason.startswith(_DOCUMENTED):
            raise Finding(reason)


def _check_answers(data):
    buffer = FrameBuffer()
    buffer.feed(data)
    for kind, fields in buffer.frames():
        if kind is MessageKind.REPLY:
            fields.u64()
            frames.decode_results(fields)
        elif kind is MessageKind.REFUSED:
            check_message(fields.text(), 70_000)
        elif kind not in (MessageKind.CHALLENGE, MessageKind.WELCOME, MessageKind.LOST):
            raise Finding(f"the server sends {kind.name}")
    if len(buffer):
        raise Finding(f"{len(buffer)} bytes after the last frame of the server")
