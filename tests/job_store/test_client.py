"""Client and server of a job's store over real sockets: broken connections, strangers, floods."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time

import pytest
from plaunch.errors import RendezvousConnectionError, RendezvousStateError
from plaunch_job_store import frames
from plaunch_job_store.authentication import Authenticator
from plaunch_job_store.client import StoreClient
from plaunch_job_store.client_greeting import ClientGreeting, StoreRefusedError
from plaunch_job_store.frames import Code, MessageKind, Operation
from plaunch_job_store.limits import MAX_VALUE
from plaunch_job_store.store import JobStore
from plaunch_job_store.table import StoreTable

from helpers.clock import Clock
from helpers.job_store import Served
from helpers.waiting import BOUND, wait_until

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


def hello(version=frames.VERSION, proof=b""):
    return frames.frame(
        MessageKind.HELLO,
        frames.MAGIC,
        frames.u16(version),
        frames.u16(version),
        b"n" * frames.NONCE_SIZE,
        frames.u8(0),
        proof,
    )


# Of a client that has not received the challenge yet.
QUESTION = frames.frame(
    MessageKind.HELLO, frames.MAGIC, frames.u16(frames.VERSION), frames.u16(frames.VERSION)
)


class PassingSocket:
    """A connection that notes the bytes and the frames that pass."""

    def __init__(self, sock):
        self._sock = sock
        self.sent = self.received = b""
        self.kinds = []

    def settimeout(self, timeout):
        self._sock.settimeout(timeout)

    def sendall(self, data):
        self.sent += data
        self._note("sent", data)
        self._sock.sendall(data)

    def recv(self, size):
        data = self._sock.recv(size)
        self.received += data
        self._note("received", data)
        return data

    def _note(self, way, data):
        found = frames.FrameBuffer()
        found.feed(data)
        self.kinds += [(way, kind) for kind, _ in found.frames()]


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


class Outage:
    """A network between clients and their server that is down from `begin` to `end`."""

    def __init__(self, port):
        self._port = port
        self._socks = []
        self._is_up = threading.Event()
        self._is_up.set()
        self._lock = threading.Lock()
        self.was_noticed = threading.Event()  # a client connects again

    def dial(self, timeout):
        if not self._is_up.is_set():
            self.was_noticed.set()
            assert self._is_up.wait(BOUND)
        sock = socket.create_connection(("127.0.0.1", self._port), timeout)
        with self._lock:
            self._socks.append(sock)
            if not self._is_up.is_set():
                self._cut()
        return sock

    def begin(self):
        with self._lock:
            self.was_noticed.clear()
            self._is_up.clear()
            self._cut()
        assert self.was_noticed.wait(BOUND)

    def end(self):
        self._is_up.set()

    def _cut(self):
        for sock in self._socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


class TestOutage:
    """What is called while the client connects again."""

    @pytest.fixture
    def served(self, serve):
        return serve(resume_timeout=BOUND)

    @pytest.fixture
    def outage(self, served):
        outage = Outage(served.port)
        served.dial = outage.dial
        yield outage
        outage.end()

    @pytest.fixture
    def client(self, served, outage):
        return served.client(clock=Clock())  # however long it takes

    def test_close_says_goodbye_over_the_new_connection(self, served, outage, client):
        other = JobStore(served.direct())
        JobStore(client).beat("beat", b"1")
        outage.begin()
        closing = threading.Thread(target=client.close)
        closing.start()
        wait_until(lambda: client.is_broken, "it is being closed")
        outage.end()
        closing.join(BOUND)
        wait_until(lambda: other.count_sessions() == 1, "the session has ended")
        assert other.multi_get(["beat"]) == [b"1"]

    def test_a_wait_ends_in_time(self, outage, client):
        store, values = JobStore(client), []
        began = threading.Event()

        def wait():
            began.set()
            values.append(store.wait("k", 0.05))

        waiting = threading.Thread(target=wait)
        outage.begin()
        waiting.start()
        assert began.wait(BOUND)
        time.sleep(0.2)  # until the wait is cancelled; if that takes longer, nothing is tested
        outage.end()
        waiting.join(BOUND)
        assert values == [None]

    def test_many_large_requests_and_replies(self, outage, client):
        """Neither side sends on while the other one does not read."""
        store = JobStore(client)
        value = b"x" * MAX_VALUE
        store.set("k", value)
        results = []
        calls = [lambda: store.multi_get(["k"])] * 4
        calls += [lambda: [store.compare_set("l", None, value)]] * 4
        threads = [
            threading.Thread(target=lambda call=call: results.append(call())) for call in calls
        ]
        outage.begin()
        for thread in threads:
            thread.start()
        time.sleep(0.2)  # until they are sent, in vain
        outage.end()
        for thread in threads:
            thread.join(BOUND)
        assert results == [[value]] * 8

    def test_additions_are_carried_out_once_however_often_it_begins(self, outage, client):
        store, totals = JobStore(client), []
        go_on = [threading.Semaphore(0) for _ in range(4)]

        def add(semaphore):
            for _ in range(20):
                semaphore.acquire()
                totals.append(store.add("n", 1))

        threads = [threading.Thread(target=add, args=(semaphore,)) for semaphore in go_on]
        for thread in threads:
            thread.start()
        for _ in range(20):
            for semaphore in go_on:
                semaphore.release()
            outage.begin()
            outage.end()
        for thread in threads:
            thread.join(BOUND)
        assert sorted(totals) == list(range(1, 81))


class RecordingSocket(socket.socket):
    """Keeps what is sent."""

    def __init__(self, sock):
        super().__init__(fileno=sock.detach())
        self.sent = []

    def sendall(self, data):
        self.sent.append(data)
        super().sendall(data)

    def send(self, data, *flags):
        self.sent.append(data)
        return super().send(data, *flags)


class DelayedClient(StoreClient):
    """Sends a request when the test says so."""

    def __init__(self, *args):
        self.may_send = threading.Event()
        self.is_called = threading.Event()
        super().__init__(*args)

    def _send(self, request):
        self.is_called.set()
        assert self.may_send.wait(BOUND)
        super()._send(request)


class TestRaces:
    def test_a_request_is_not_sent_after_the_goodbye(self, served):
        sock = RecordingSocket(served.dial(BOUND))
        client = DelayedClient(lambda timeout: sock, Authenticator(None, "job"), "here", BOUND)
        errors = []

        def call():
            try:
                JobStore(client).set("k", b"v")
            except RendezvousConnectionError as error:
                errors.append(str(error))

        calling = threading.Thread(target=call)
        calling.start()
        assert client.is_called.wait(BOUND)
        client.close()
        client.may_send.set()
        calling.join(BOUND)
        assert sock.sent[-1] == frames.frame(MessageKind.BYE)
        assert errors == ["the rendezvous store at here: the connection is closed"]

    def test_nothing_is_sent_after_the_goodbye(self, served):
        """Threads send while another one closes the client."""
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for _ in range(30):
                self._close_while_others_send(served)
        finally:
            sys.setswitchinterval(interval)
        assert JobStore(served.client()).count_sessions() == 1

    @staticmethod
    def _close_while_others_send(served):
        made = []

        def dial(timeout):
            sock = socket.create_connection(("127.0.0.1", served.port), timeout)
            made.append(RecordingSocket(sock))
            return made[-1]

        client = Served.client_of(served.port, dial=dial)
        store = JobStore(client)
        threads_are_ready = threading.Barrier(4)

        def send():
            threads_are_ready.wait(BOUND)
            with contextlib.suppress(RendezvousConnectionError):
                while True:
                    store.set("k", b"v")

        threads = [threading.Thread(target=send) for _ in range(3)]
        for thread in threads:
            thread.start()
        threads_are_ready.wait(BOUND)
        client.close()
        for thread in threads:
            thread.join(BOUND)
            assert not thread.is_alive()
        (sock,) = made
        assert sock.fileno() < 0, "the socket is closed"
        goodbye = frames.frame(MessageKind.BYE)
        assert sock.sent.index(goodbye) == len(sock.sent) - 1

    def test_close_after_a_call_without_a_reply_was_ended(self, serve):
        """The end of the call breaks the connection; the goodbye needs another one."""

        class SilentTable(StoreTable):
            def carry_out(self, session, number, operations):
                if operations[0].key != "silent":
                    super().carry_out(session, number, operations)
                else:
                    reached.set()

        reached = threading.Event()
        served = serve(table=SilentTable(), resume_timeout=BOUND)
        other = JobStore(served.direct())
        client = served.client()
        store = JobStore(client)
        store.beat("beat", b"1")

        def call():
            with contextlib.suppress(RendezvousConnectionError):
                store.set("silent", b"v")

        calling = threading.Thread(target=call)
        calling.start()
        assert reached.wait(BOUND)
        store.close()
        client.close()
        calling.join(BOUND)
        wait_until(lambda: other.count_sessions() == 1, "the session has ended")
        assert other.multi_get(["beat"]) == [b"1"]

    def test_what_the_server_refuses_is_not_sent_again(self, serve):
        class BrokenTable(StoreTable):
            requests = 0

            def carry_out(self, session, number, operations):
                self.requests += 1
                raise LookupError("a bug")

        table = BrokenTable()
        client = serve(table=table).client()
        with pytest.raises(RendezvousConnectionError, match="an error of the server: LookupError"):
            JobStore(client).multi_get(["k"])
        assert table.requests == 1
        assert client.is_broken


class TestEndOfASession:
    def test_a_closed_connection_ends_it_and_notifies_the_others(self, served):
        """The kernel closes it when a process is killed."""
        lost = threading.Event()
        other = JobStore(served.client(on_loss=lost.set))
        hold = frames.encode_operations([Operation(Code.HOLD, "beat", b"1")])
        request = frames.frame(MessageKind.REQUEST, frames.u64(1), hold)
        with socket.create_connection(("127.0.0.1", served.port), 5) as sock:
            sock.sendall(hello() + request)
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
            sock.sendall(hello())
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

    def test_two_of_the_largest_are_compared(self, served):
        store = JobStore(served.client())
        old, new = b"x" * MAX_VALUE, b"y" * MAX_VALUE
        store.set("k", old)
        assert store.compare_set("k", old, new) == new

    def test_one_that_is_too_large_is_an_error_of_the_caller(self, served):
        client = served.client()
        with pytest.raises(ValueError, match="a value of 4194305 bytes"):
            JobStore(client).set("k", b"x" * (MAX_VALUE + 1))
        with pytest.raises(ValueError, match="a request of"):
            client.call(None, [Operation(Code.SET, "k", b"x" * MAX_VALUE)] * 3)
        assert not client.is_broken

    def test_a_full_store(self, serve):
        store = JobStore(serve(table=StoreTable(max_bytes=10_000)).client())
        with pytest.raises(RendezvousStateError, match="the store is full"):
            store.set("k", b"x" * 20_000)


class TestGreeting:
    """The server speaks first: one message of the client, one answer."""

    @staticmethod
    def recorded(served):
        """Greet a server, and return what has passed."""
        with served.dial(5) as sock:
            recorded = PassingSocket(sock)
            deadline = time.monotonic() + BOUND
            greeting = ClientGreeting(recorded, Authenticator(TOKEN, "job"), "here", deadline)
            assert len(greeting.greet(b"")) == frames.SESSION_SIZE
        return recorded

    def test_takes_one_message_and_its_answer(self, serve):
        assert self.recorded(serve(token=TOKEN)).kinds == [
            ("received", MessageKind.CHALLENGE),
            ("sent", MessageKind.HELLO),
            ("received", MessageKind.WELCOME),
        ]

    def test_a_recorded_one_is_refused_by_another_connection(self, serve):
        served = serve(token=TOKEN)
        write = frames.encode_operations([Operation(Code.SET, "k", b"v")])
        request = frames.frame(MessageKind.REQUEST, frames.u64(1), write)
        data = self.recorded(served).sent + request
        with served.dial(5) as sock:
            sock.sendall(data)
            received = frames.FrameBuffer()
            while data := sock.recv(1000):
                received.feed(data)
        assert [kind for kind, _ in received.frames()] == [
            MessageKind.CHALLENGE,
            MessageKind.REFUSED,
        ]
        assert JobStore(served.client()).multi_get(["k"]) == [None]

    def test_a_server_that_repeats_an_answer_is_refused(self, serve):
        recorded = self.recorded(serve(token=TOKEN))
        client, server = socket.socketpair()
        with client, server:
            server.sendall(recorded.received)
            deadline = time.monotonic() + BOUND
            greeting = ClientGreeting(client, Authenticator(TOKEN, "job"), "here", deadline)
            with pytest.raises(StoreRefusedError, match="does not know the token"):
                greeting.greet(b"")

    def test_a_server_of_an_older_version_is_asked_and_says_so(self):
        """It waits for the first message of the client."""
        client, server = socket.socketpair()
        with client, server:
            refused = frames.frame(MessageKind.REFUSED, frames.text("install the same plaunch"))

            def serve():
                assert server.recv(1000) == QUESTION
                server.sendall(refused)

            thread = threading.Thread(target=serve)
            thread.start()
            deadline = time.monotonic() + BOUND
            greeting = ClientGreeting(client, Authenticator(None, "job"), "here", deadline)
            with pytest.raises(StoreRefusedError, match="install the same plaunch"):
                greeting.greet(b"")
            thread.join()

    def test_a_client_of_an_older_version_is_refused_with_the_reason(self, served):
        old = (frames.MAGIC, frames.u16(1), frames.u16(1), b"n" * frames.NONCE_SIZE, frames.u8(0))
        with socket.create_connection(("127.0.0.1", served.port), 5) as sock:
            sock.sendall(frames.frame(MessageKind.HELLO, *old))
            received = frames.FrameBuffer()
            while data := sock.recv(1000):
                received.feed(data)
        # It reads the challenge as that of its own version, and then why it is refused.
        (challenge, fields), (refused, reason) = received.frames()
        assert (challenge, refused) == (MessageKind.CHALLENGE, MessageKind.REFUSED)
        assert fields.take(len(frames.MAGIC)) == frames.MAGIC
        assert "install the same plaunch" in reason.text()


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
            QUESTION + frames.frame(MessageKind.BYE),
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
            sock.sendall(hello(proof=b"p" * 32) + request)
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
            sock.sendall(hello())
            time.sleep(0.1)
            for number in range(1000):
                sock.sendall(frames.frame(MessageKind.REQUEST, frames.u64(number), get))
            began = time.monotonic()
            assert store.multi_get(["k"]) == [b"x" * (1 << 20)]
            assert time.monotonic() - began < 5
