"""Client and server of a job's store over real sockets: broken connections, strangers, floods."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest
from plaunch.errors import RendezvousConnectionError, RendezvousStateError
from plaunch_job_store import frames
from plaunch_job_store.client_greeting import StoreRefusedError
from plaunch_job_store.frames import Code, MessageKind, Operation
from plaunch_job_store.store import JobStore
from plaunch_job_store.table import StoreTable

from helpers.job_store import Served
from helpers.waiting import wait_until

TOKEN = b"0123456789abcdef"


@pytest.fixture
def serve():
    made = []

    def start(**settings):
        made.append(Served(**settings))
        return made[-1]

    yield start
    for served in made:
        served.close()


@pytest.fixture
def served(serve):
    return serve()


def hello(version=frames.VERSION):
    return frames.frame(
        MessageKind.HELLO,
        frames.MAGIC,
        frames.u16(version),
        frames.u16(version),
        b"n" * frames.NONCE_SIZE,
        frames.u8(0),
    )


class Relay:
    """Passes on what a client and the server send each other, and can break their connections."""

    def __init__(self, port):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = port
        self.open = []
        self.closed = []
        self.holds_replies = False
        threading.Thread(target=self._accept, daemon=True).start()

    def dial(self, timeout):
        return socket.create_connection(self.listener.getsockname(), timeout)

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.port))
            self.open += [near, far]
            threading.Thread(target=self._pass_on, args=(near, far), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(far, near, True), daemon=True).start()

    def _pass_on(self, source, target, are_replies=False):
        while True:
            try:
                data = source.recv(1 << 16)
                if not (are_replies and self.holds_replies):
                    target.sendall(data)
            except OSError:
                return
            if not data:
                return

    def cut(self):
        self.holds_replies = False
        broken, self.open = self.open, []
        for sock in broken:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self.closed += broken

    def close(self):
        self.listener.close()
        self.cut()
        for sock in self.closed:
            sock.close()


class TestBrokenConnection:
    @pytest.fixture
    def relay(self, served):
        relay = Relay(served.port)
        served.dial = relay.dial
        yield relay
        relay.close()

    def test_the_session_is_resumed(self, served, relay):
        client = served.client()
        store = JobStore(client)
        session = client.session
        store.beat("beat", b"1")
        relay.cut()
        assert store.multi_get(["beat"]) == [b"1"]
        assert client.session == session

    def test_an_addition_without_a_reply_is_carried_out_once(self, served, relay):
        store = JobStore(served.client())
        relay.holds_replies = True
        totals = []
        adding = threading.Thread(target=lambda: totals.append(store.add("n", 1)))
        adding.start()
        direct = JobStore(served.direct())
        wait_until(lambda: direct.multi_get(["n"]) == [b"1"], "it is carried out")
        relay.cut()
        adding.join(5)
        assert totals == [1]
        assert direct.multi_get(["n"]) == [b"1"]

    def test_a_wait_continues(self, served, relay):
        store = JobStore(served.client())
        values = []
        waiting = threading.Thread(target=lambda: values.append(store.wait("k", 30)))
        waiting.start()
        wait_until(lambda: relay.open, "it is connected")
        time.sleep(0.1)
        relay.cut()
        JobStore(served.direct()).set("k", b"v")
        waiting.join(5)
        assert values == [b"v"]

    def test_without_a_server_all_calls_fail_soon(self, served, relay):
        store = JobStore(served.client())
        relay.listener.close()
        relay.cut()
        began = time.monotonic()
        with pytest.raises(RendezvousConnectionError):
            store.wait("k", 60)
        assert time.monotonic() - began < 10
        with pytest.raises(RendezvousConnectionError):
            store.set("k", b"v")

    def test_a_broken_client_is_notified(self, served, relay):
        lost = threading.Event()
        client = served.client(on_loss=lost.set)
        relay.listener.close()
        relay.cut()
        assert lost.wait(10)
        assert client.is_broken


class TestEndOfASession:
    def test_a_closed_connection_ends_it_and_notifies_the_others(self, served):
        """The kernel closes it when a process is killed."""
        lost = threading.Event()
        other = JobStore(served.client(on_loss=lost.set))
        hold = frames.encode_operations([Operation(Code.HOLD, "beat", b"1")])
        request = frames.frame(MessageKind.REQUEST, frames.u64(1), hold)
        with socket.create_connection(("127.0.0.1", served.port), 5) as sock:
            sock.sendall(hello() + frames.frame(MessageKind.PROOF) + request)
            assert other.wait("beat", 10) == b"1"
            assert not lost.wait(0.1)
        began = time.monotonic()
        assert lost.wait(10)
        assert time.monotonic() - began < 5
        assert other.multi_get(["beat"]) == [None]

    def test_of_a_client_without_keys_is_not_reported(self, served):
        lost = threading.Event()
        other = JobStore(served.client(on_loss=lost.set))
        with socket.create_connection(("127.0.0.1", served.port), 5) as sock:
            sock.sendall(hello() + frames.frame(MessageKind.PROOF))
            wait_until(lambda: other.count_sessions() == 2, "it has a session")
        wait_until(lambda: other.count_sessions() == 1, "it has ended")
        assert not lost.is_set()

    def test_close_keeps_its_keys_and_is_not_reported(self, served):
        lost = threading.Event()
        client, other = served.client(), JobStore(served.client(on_loss=lost.set))
        JobStore(client).beat("beat", b"1")
        client.close()
        wait_until(lambda: other.count_sessions() == 1, "the session has ended")
        assert other.multi_get(["beat"]) == [b"1"]
        assert not lost.is_set()


class TestClose:
    def test_ends_a_wait_of_another_thread_and_leaves_the_connection(self, served):
        client = served.client()
        store, other = JobStore(client), JobStore(client)
        errors = []

        def wait():
            try:
                store.wait("k", 60)
            except RendezvousConnectionError as error:
                errors.append(str(error))

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.1)
        store.close()
        waiting.join(5)
        assert len(errors) == 1
        other.set("k", b"v")
        with pytest.raises(RendezvousConnectionError, match="is closed"):
            store.set("k", b"v")


class TestValues:
    def test_more_than_one_reply_takes(self, served):
        store = JobStore(served.client())
        value = b"x" * (1 << 20)
        store.multi_set({f"k{number}": value for number in range(10)})
        assert store.multi_get([f"k{number}" for number in range(11)]) == [value] * 10 + [None]

    def test_a_full_store(self, serve):
        store = JobStore(serve(table=StoreTable(max_bytes=10_000)).client())
        with pytest.raises(RendezvousStateError, match="the store is full"):
            store.set("k", b"x" * 20_000)


class TestToken:
    def test_with_the_same_one(self, serve):
        served = serve(token=TOKEN)
        JobStore(served.client()).set("k", b"v")

    @pytest.mark.parametrize(
        ("theirs", "own", "message"),
        [
            (TOKEN, b"another token 12", "give it the same token and run id"),
            (TOKEN, None, "needs the token of the job, and this node has none"),
            (None, TOKEN, "knows no token, and this node has one"),
        ],
    )
    def test_with_another_one(self, serve, theirs, own, message):
        served = serve(token=theirs)
        with pytest.raises(StoreRefusedError, match=message):
            Served.client_of(served.port, own)


class TestStrangers:
    @pytest.mark.parametrize(
        "sent",
        [
            b"GET / HTTP/1.1\r\n\r\n",
            b"\0\0\0\0",
            b"\xff\xff\xff\xff",
            frames.frame(MessageKind.REQUEST, frames.u64(1)),
            frames.frame(MessageKind.HELLO, b"plaunch stare", b"\0" * 40),
            hello(version=9),
            hello() + hello(),
            hello() + frames.frame(MessageKind.BYE),
        ],
    )
    def test_what_is_no_greeting_is_refused(self, served, sent):
        with socket.create_connection(("127.0.0.1", served.port), 5) as sock:
            sock.sendall(sent)
            received = b""
            while data := sock.recv(1000):
                received += data
        assert bytes([MessageKind.REFUSED]) in received
        JobStore(served.client()).set("k", b"v")

    def test_one_that_sends_half_a_frame_costs_nothing(self, served):
        with socket.create_connection(("127.0.0.1", served.port), 5) as sock:
            sock.sendall(hello()[:20])
            JobStore(served.client()).set("k", b"v")

    def test_many_connections_do_not_keep_the_job_out(self, serve):
        served = serve(max_strangers=10)
        store = JobStore(served.client())
        socks = [socket.create_connection(("127.0.0.1", served.port), 5) for _ in range(30)]
        store.set("k", b"v")
        assert JobStore(served.client()).multi_get(["k"]) == [b"v"]
        for sock in socks:
            sock.close()

    def test_without_the_token_nothing_is_carried_out(self, serve):
        served = serve(token=TOKEN)
        store = JobStore(served.client())
        request = frames.frame(
            MessageKind.REQUEST,
            frames.u64(1),
            frames.encode_operations([Operation(Code.SET, "k", b"v")]),
        )
        with socket.create_connection(("127.0.0.1", served.port), 5) as sock:
            sock.sendall(hello() + frames.frame(MessageKind.PROOF, b"p" * 32) + request)
            while sock.recv(1000):
                pass
        assert store.multi_get(["k"]) == [None]


class TestAnotherProgram:
    @pytest.mark.parametrize(
        ("answer", "named"),
        [
            (b"SSH-2.0-OpenSSH_9.2\r\n", "an ssh server"),
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", "an HTTP server"),
            (b"\x15\x03\x01\x00\x02\x02\x0a", "a TLS server"),
        ],
    )
    def test_is_named(self, answer, named):
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def serve():
                sock, _ = listener.accept()
                sock.sendall(answer)
                sock.recv(1000)
                sock.close()

            thread = threading.Thread(target=serve)
            thread.start()
            with pytest.raises(StoreRefusedError, match=named):
                Served.client_of(listener.getsockname()[1])
            thread.join(5)

    def test_that_closes_the_connection(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def serve():
                for _ in range(2):  # the second one is to see whether it is a TCPStore
                    sock, _ = listener.accept()
                    sock.recv(1000)
                    sock.close()

            thread = threading.Thread(target=serve)
            thread.start()
            with pytest.raises(RendezvousConnectionError, match="closes the connection without"):
                Served.client_of(listener.getsockname()[1])
            thread.join(5)


class TestSlowReader:
    def test_its_connection_is_closed_and_the_others_are_served(self, served):
        store = JobStore(served.client())
        store.set("k", b"x" * (1 << 20))
        get = frames.encode_operations([Operation(Code.GET, "k")] * 4)
        with socket.create_connection(("127.0.0.1", served.port), 5) as sock:
            sock.sendall(hello() + frames.frame(MessageKind.PROOF))
            time.sleep(0.1)
            for number in range(1000):
                sock.sendall(frames.frame(MessageKind.REQUEST, frames.u64(number), get))
            began = time.monotonic()
            assert store.multi_get(["k"]) == [b"x" * (1 << 20)]
            assert time.monotonic() - began < 5
