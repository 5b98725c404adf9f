"""The server of a job's store, turn by turn: what ends a connection, and never the server."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import time

import pytest
from plaunch_job_store import frames
from plaunch_job_store.authentication import Authenticator
from plaunch_job_store.frames import Code, MessageKind, Operation, OperationFailed
from plaunch_job_store.limits import (
    GREETING_TIMEOUT,
    MAX_BACKLOG,
    MAX_BUFFERED,
    MAX_OPERATIONS,
    MAX_VALUE,
    SILENCE_TIMEOUT,
)
from plaunch_job_store.server import StoreServer
from plaunch_job_store.table import StoreTable

from helpers.clock import Clock
from helpers.waiting import BOUND

TOKEN = b"0123456789abcdef"


class Peer:
    """A client of its own making: it sends what it likes."""

    def __init__(self, serving):
        self.serving = serving
        self.sock = socket.create_connection(serving.listener.getsockname())
        self.sock.setblocking(False)
        self.buffer = frames.FrameBuffer()
        self.received = []
        self.is_ended = False

    def send(self, data):
        with contextlib.suppress(BlockingIOError):
            return self.sock.send(data)
        return 0

    def send_all(self, data):
        """Send everything, while the server takes it."""
        while data:
            data = data[self.send(data) :]
            self.serving.server.turn(0)

    def read(self):
        with contextlib.suppress(BlockingIOError):
            try:
                data = self.sock.recv(1 << 20)
            except ConnectionResetError:
                data = b""
            self.is_ended = not data
            self.buffer.feed(data)
            self.received += self.buffer.frames()

    def expect(self, kind):
        """Return the fields of the next message of this kind."""
        self.serving.until(lambda: any(found is kind for found, _ in self.received), self)
        index = [found for found, _ in self.received].index(kind)
        return self.received.pop(index)[1]

    def results(self, number):
        """Return the results of the next reply, which is that to a request."""
        fields = self.expect(MessageKind.REPLY)
        assert fields.u64() == number
        return frames.decode_results(fields)


class Serving:
    """A server whose turns are taken here."""

    def __init__(self, **settings):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.reports = []
        settings = {"authenticator": Authenticator(None, "job"), "max_connections": 50, **settings}
        self.server = StoreServer(
            self.listener, report=lambda *report: self.reports.append(report), **settings
        )
        self.peers = []

    def connect(self):
        self.peers.append(Peer(self))
        return self.peers[-1]

    def client(self, session=b""):
        peer = self.connect()
        peer.send(hello(session))
        peer.expect(MessageKind.CHALLENGE)
        peer.session = peer.expect(MessageKind.WELCOME).take(frames.SESSION_SIZE)
        return peer

    def until(self, condition, *peers):
        # On a busy machine, the kernel delivers what was sent on loopback later.
        deadline = time.monotonic() + BOUND
        while time.monotonic() < deadline:
            self.server.turn(0)
            for peer in peers:
                peer.read()
            if condition():
                return
        raise AssertionError("it does not happen")

    def close(self):
        self.server.close()
        for peer in self.peers:
            peer.sock.close()


@pytest.fixture
def serve():
    made = []

    def start(**settings):
        made.append(Serving(**settings))
        return made[-1]

    yield start
    for serving in made:
        serving.close()


@pytest.fixture
def serving(serve):
    return serve()


def hello(session=b""):
    version = frames.u16(frames.VERSION)
    nonce = b"n" * frames.NONCE_SIZE
    resumes = frames.u8(len(session)), session
    return frames.frame(MessageKind.HELLO, frames.MAGIC, version, version, nonce, *resumes)


# Of a client that has not received the challenge yet.
QUESTION = frames.frame(
    MessageKind.HELLO, frames.MAGIC, frames.u16(frames.VERSION), frames.u16(frames.VERSION)
)


def request(number, *operations):
    return frames.frame(
        MessageKind.REQUEST, frames.u64(number), frames.encode_operations(operations)
    )


def write(key, value=b"v"):
    return Operation(Code.SET, key, value)


def get(key):
    return Operation(Code.GET, key)


def wait(key):
    return Operation(Code.WAIT, key)


BYE = frames.frame(MessageKind.BYE)


class TestOneConnection:
    """Whatever it sends, the others are served."""

    @pytest.mark.parametrize(
        "after",
        [BYE, hello(), hello()[:20], request(2, get("k")), b"\0" * 40],
        ids=["bye", "hello", "half", "request", "garbage"],
    )
    def test_bye_and_another_frame_in_one_packet(self, serve, after):
        clock = Clock()
        serving = serve(clock=clock)
        client, other = serving.client(), serving.client()
        client.send(BYE + after)
        serving.until(lambda: client.is_ended, client)
        clock.now += 2 * GREETING_TIMEOUT
        other.send(request(1, write("k")))
        assert other.results(1) == [None]
        assert serving.client()

    def test_bye_before_the_end_of_the_greeting(self, serving):
        other = serving.client()
        peer = serving.connect()
        peer.send(QUESTION + BYE + BYE)
        peer.expect(MessageKind.REFUSED)
        other.send(request(1, write("k")))
        assert other.results(1) == [None]

    def test_who_asks_before_the_challenge_arrives_has_a_session_all_the_same(self, serving):
        peer = serving.connect()
        peer.send(QUESTION + hello() + request(1, write("k")))
        peer.expect(MessageKind.CHALLENGE)
        peer.expect(MessageKind.WELCOME)
        assert peer.results(1) == [None]

    def test_the_kernel_ends_it_when_its_host_is_silent(self, serving, monkeypatch):
        """A connection has the settings of the socket that accepted it."""
        accepted = []
        record = serving.server._admit
        monkeypatch.setattr(
            serving.server, "_admit", lambda found: accepted.append(found) or record(found)
        )
        serving.client()
        (connection,) = accepted
        options = {
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
            (socket.IPPROTO_TCP, socket.TCP_NODELAY): 1,
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): 1,
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): SILENCE_TIMEOUT - 1,
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT): SILENCE_TIMEOUT * 1000,
        }
        found = {option: connection.sock.getsockopt(*option) for option in options}
        assert found == options

    def test_an_unexpected_error_refuses_it_and_is_reported(self, serve):
        class BrokenTable(StoreTable):
            def carry_out(self, session, number, operations):
                if operations[0].key == "bad":
                    raise LookupError("a bug")
                super().carry_out(session, number, operations)

        serving = serve(table=BrokenTable())
        client, other = serving.client(), serving.client()
        client.send(request(1, get("bad")))
        reason = client.expect(MessageKind.REFUSED).text()
        assert reason.startswith("an error of the server: LookupError: a bug (line ")
        other.send(request(1, write("k")))
        assert other.results(1) == [None]
        ((peer, problem),) = serving.reports
        assert peer == "127.0.0.1"
        assert problem == reason

    def test_a_waiter_whose_connection_is_broken(self, serving):
        client, other = serving.client(), serving.client()
        client.send(request(1, wait("k")) + request(2, get("k")))
        assert client.results(2) == [None]
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sock.close()  # with a reset
        other.send(request(1, write("k")))
        assert other.results(1) == [None]

    def test_a_waiter_that_reads_nothing_is_ended_and_not_its_waker(self, serve):
        serving = serve(clock=Clock())
        client, other = serving.client(), serving.client()
        # Otherwise the kernel may buffer as much as the system permits: 32 MiB, for example.
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        count = 2 * MAX_BACKLOG // MAX_VALUE
        for number in range(count):
            client.send(request(number, wait(f"k{number}")))
        client.send(request(count, get("k")))
        assert client.results(count) == [None]
        for number in range(count):
            other.send_all(request(number + 1, write(f"k{number}", b"x" * MAX_VALUE)))
            assert other.results(number + 1) == [None]
        ((peer, reason),) = serving.reports
        assert peer == "127.0.0.1"
        assert "the node has not read" in reason
        client.read()
        assert len(client.received) < count

    def test_the_loss_of_a_session_reaches_the_others_past_a_broken_one(self, serve):
        serving = serve(resume_timeout=0.0)
        client, broken, other = serving.client(), serving.client(), serving.client()
        client.send(request(1, Operation(Code.HOLD, "beat", b"1")))
        client.results(1)
        broken.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        broken.sock.close()
        client.sock.close()
        other.expect(MessageKind.LOST)

    def test_a_session_that_is_resumed_while_its_connection_is_open(self, serving):
        client = serving.client()
        client.send(request(1, write("k")))
        second = serving.client(client.session)
        assert second.session == client.session
        second.send(request(2, get("k")))
        assert second.results(2) == [b"v"]
        serving.until(lambda: client.is_ended, client)

    def test_a_full_server_does_not_take_the_session_of_who_resumes(self, serve):
        serving = serve(max_connections=1, resume_timeout=60.0)
        client = serving.client()
        client.send(request(1, Operation(Code.HOLD, "beat", b"1")))
        client.results(1)
        client.sock.close()
        other = serving.client()  # ends the session that was not resumed
        other.send(request(1, get("beat")))
        assert other.results(1) == [None]
        peer = serving.connect()
        peer.send(hello(client.session))
        assert "connections, its limit" in peer.expect(MessageKind.REFUSED).text()
        assert serving.client(other.session).session == other.session


class TestListener:
    @pytest.mark.parametrize("number", [errno.EMFILE, errno.EPERM, errno.ECONNABORTED])
    def test_its_errors_end_nothing(self, monkeypatch, number):
        class Failing(socket.socket):
            errors = 1

            def accept(self):
                if self.errors:
                    self.errors -= 1
                    raise OSError(number, os.strerror(number))
                return super().accept()

        clock = Clock()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            failing = Failing(fileno=listener.detach())
        server = StoreServer(failing, Authenticator(None, "job"), max_connections=5, clock=clock)
        with socket.create_connection(failing.getsockname()) as sock:
            sock.send(hello())
            sock.setblocking(False)
            for _ in range(100):
                server.turn(0.01)
                clock.now += 0.05
                if select.select([sock], [], [], 0)[0]:
                    break
            assert sock.recv(1000)
        server.close()


class SlowClock(Clock):
    """A clock that advances whenever it is read."""

    step = 0.0

    def __call__(self):
        self.now += self.step
        return self.now


class TestTurns:
    def test_one_is_left_when_its_time_is_over(self, serve):
        clock = SlowClock()
        serving = serve(clock=clock)
        greedy, other = serving.client(), serving.client()
        clock.step = 0.004
        greedy.send(b"".join(request(number, get("k")) for number in range(1, 500)))
        other.send(request(1, get("k")))
        serving.until(lambda: other.received, other)
        greedy.read()
        assert 0 < len(greedy.received) < 20
        serving.until(lambda: len(greedy.received) == 499, greedy)

    def test_who_comes_later_does_not_wait_for_all_that_others_have_sent(self, serve):
        clock = SlowClock()
        serving = serve(clock=clock)
        greedy, other = serving.client(), serving.client()
        clock.step = 0.004
        greedy.send(b"".join(request(number, get("k")) for number in range(1, 500)))
        serving.until(lambda: greedy.received, greedy)
        other.send(request(1, get("k")))
        serving.until(lambda: other.received, other)
        greedy.read()
        assert 0 < len(greedy.received) < 40
        serving.until(lambda: len(greedy.received) == 499, greedy)

    def test_losses_are_reported_once(self, serve):
        class CountingTable(StoreTable):
            detached = 0

            def detach(self, session):
                self.detached += 1
                super().detach(session)

        clock, table = Clock(), CountingTable()
        serving = serve(clock=clock, table=table)
        other = serving.client()
        for number in range(10):
            client = serving.client()
            client.send(request(1, Operation(Code.HOLD, f"beat{number}", b"1")))
            client.results(1)
            client.sock.close()
        serving.until(lambda: table.detached == 10)
        clock.now += 1
        other.expect(MessageKind.LOST)
        for _ in range(20):
            serving.server.turn(0)
        other.read()
        assert other.received == []

    def test_a_request_of_many_additions_to_a_large_value(self, serving):
        client = serving.client()
        client.send_all(request(1, write("k", b"x" * MAX_VALUE)))
        assert client.results(1) == [None]
        client.send_all(request(2, *[Operation(Code.ADD, "k", amount=1)] * MAX_OPERATIONS))
        results = client.results(2)
        assert len(results) == MAX_OPERATIONS
        assert {type(result) for result in results} == {OperationFailed}


class TestBuffers:
    def test_of_all_are_bounded(self, serving):
        """Each client leaves a frame incomplete; the one that has most of it is ended."""
        limit = MAX_BUFFERED // (8 << 20)
        incomplete = request(
            1, Operation(Code.COMPARE_SET, "k", b"x" * MAX_VALUE, b"y" * MAX_VALUE)
        )
        for _ in range(limit + 2):
            serving.client().send_all(incomplete[:-1])
        for _ in range(100):
            serving.server.turn(0)
        assert {problem for _, problem in serving.reports} == {
            "the store's buffers are full; the node takes most of them"
        }
        client = serving.client()
        client.send(request(1, write("k")))
        assert client.results(1) == [None]
