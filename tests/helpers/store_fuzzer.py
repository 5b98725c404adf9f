"""Sends valid, changed and hostile frames to the server of a job's store, over many connections.

A finding is a server that ends or raises an unexpected error, a client of the job that gets a wrong
answer or none, more memory than docs/store.md permits, a byte that is counted wrongly, or a turn
that takes too long. From the root of the repository, a million frames take about 15 minutes:

    PYTHONPATH=tests nice python -m helpers.store_fuzzer 1000000 --seed 1
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter, deque

from plaunch.errors import RendezvousStateError
from plaunch_job_store import frames
from plaunch_job_store.authentication import Authenticator
from plaunch_job_store.client import StoreClient
from plaunch_job_store.frames import Code, FrameBuffer, MessageKind, Operation
from plaunch_job_store.limits import (
    CLIENT_MEMORY,
    ENTRY_OVERHEAD,
    MAX_FRAME,
    MAX_KEY,
    MAX_MEMORY,
    MAX_OPERATIONS,
    MAX_VALUE,
)
from plaunch_job_store.server import StoreServer
from plaunch_job_store.store import JobStore

MAX_TURN = 0.1  # seconds of the thread's CPU time
MAX_CONNECTIONS = 100
_ATTACKERS = 60
_FRAMES_PER_SERVER = 100_000
_TOKEN = b"0123456789abcdef"
_TIMEOUT = 120.0  # seconds for an answer, even on a busy machine


# --- the server -----------------------------------------------------------------------------------


class MeasuredServer(StoreServer):
    """Records how long its turns take, and how it ends."""

    turns = 0
    messages = 0
    longest = 0.0

    def turn(self, timeout):
        """Take a turn, and measure the CPU time of this thread."""
        began = time.thread_time()
        super().turn(timeout)
        self.longest = max(self.longest, time.thread_time() - began)
        self.turns += 1

    def _receive(self, connection, kind, fields):
        self.messages += 1
        super()._receive(connection, kind, fields)

    def find_wrong_counts(self):
        """Compare what is counted with what there is."""
        table = self._table
        entries = sum(
            ENTRY_OVERHEAD + len(key) + len(value) for key, value in table._values.items()
        )
        sessions = [one.session for one in self._connections.values()]
        sessions += [session for _, session in self._detached.values()]
        for session in sessions:
            entries += sum(kept.size for kept in session.kept.values())
            entries += sum(wait.size for wait in session.waits.values())
        if entries != table.size:
            yield f"{table.size} bytes are counted, and there are {entries}"
        connections = (*self._connections.values(), *self._strangers)
        buffered = sum(one.buffered_bytes for one in connections)
        if buffered != self._buffered_bytes:
            yield f"{self._buffered_bytes} bytes of buffers are counted, and there are {buffered}"
        if table._sessions != len(sessions):
            yield f"{table._sessions} sessions are counted, and there are {len(sessions)}"
        if {id(one) for one in table._holders.values()} - set(map(id, sessions)):
            yield "keys are held by sessions that have ended"
        waits = sum(len(session.waits) for session in sessions)
        waiting = sum(map(len, table._waiting.values()))
        if not table.has_answers() and waits != waiting:
            yield f"{waits} waits of sessions are {waiting} waits of keys"


def serve(listener, control, token):
    """Serve until the other end of `control` is closed; print what was found as JSON."""
    found = []

    def report(peer, reason):
        if reason.startswith("an error of the server"):
            found.append(reason)

    server = MeasuredServer(
        socket.socket(fileno=listener),
        Authenticator(token, "job"),
        max_connections=MAX_CONNECTIONS,
        report=report,
    )
    server.watch(control, server.stop)
    try:
        server.serve()
    except BaseException as error:
        found.append("the server has ended: " + "".join(traceback.format_exception(error)))
    with contextlib.suppress(ValueError):  # closed descriptors
        found += server.find_wrong_counts()
    result = {name: getattr(server, name) for name in ("turns", "messages", "longest")}
    print(json.dumps({**result, "findings": found[:20], "peak": _peak_memory()}))


def _peak_memory():
    """Return the most bytes that this process has had; `ru_maxrss` has those before its exec."""
    with open("/proc/self/status") as file:
        [line] = [line for line in file if line.startswith("VmHWM:")]
    return int(line.split()[1]) << 10


# --- frames ---------------------------------------------------------------------------------------


class FrameMaker:
    """Makes frames of the protocol, and changes them.

    Args:
        choose: the source of all choices.
        is_greedy: whether most of its values are large.
    """

    def __init__(self, choose, *, is_greedy=False):
        self.is_greedy = is_greedy
        self._choose = choose
        self._large = choose.randbytes(MAX_VALUE)

    def value(self):
        """Return a value; a few are as large as possible."""
        choose, chance = self._choose, self._choose.random()
        if self.is_greedy:
            return self._large[: choose.choice((MAX_VALUE, choose.randrange(MAX_VALUE), 60_000))]
        if chance < 0.5:
            return b"%d" % choose.randrange(-5, 1 << choose.choice((4, 62, 64)))
        if chance < 0.95:
            return self._large[: choose.randrange(60)]
        if chance < 0.99:
            return self._large[: choose.randrange(20_000)]
        return self._large[: choose.choice((MAX_VALUE, MAX_VALUE, choose.randrange(MAX_VALUE)))]

    def key(self):
        """Return a key; many are used often."""
        chance = self._choose.random()
        if self.is_greedy:
            return f"large/{self._choose.randrange(400)}"
        if chance < 0.75:
            return f"k{self._choose.randrange(20)}"
        if chance < 0.8:
            return f"large/{self._choose.randrange(400)}"
        if chance < 0.98:
            return f"many/{self._choose.randrange(10_000)}"
        return "x" * self._choose.choice((MAX_KEY, MAX_KEY - 1))

    def operation(self, *codes):
        """Return an operation of one of these codes."""
        choose = self._choose
        code = choose.choice(codes)
        if code is Code.ADD:
            amount = choose.choice((1, -1, 0, (1 << 63) - 1, -(1 << 63)))
            return Operation(code, self.key(), amount=amount)
        if code is Code.COMPARE_SET:
            expected = choose.choice((None, self.value()))
            return Operation(code, self.key(), self.value(), expected)
        if code in (Code.SET, Code.HOLD):
            return Operation(code, self.key(), self.value())
        return Operation(code, self.key())

    def request(self, number):
        """Return a request that the server carries out, or refuses because it is too much."""
        choose, chance = self._choose, self._choose.random()
        if chance < 0.15:
            operations = [self.operation(Code.WAIT)]
        elif self.is_greedy:
            operations = [self.operation(*_CODES)]
        elif chance < 0.75:
            operations = [self.operation(*_CODES)]
        elif chance < 0.99:
            operations = [self.operation(*_CODES) for _ in range(choose.randrange(2, 12))]
        elif chance < 0.996:
            one = self.operation(*_CODES)
            if choose.random() < 0.5:  # of a value that may be large
                code = choose.choice((Code.ADD, Code.GET, Code.COMPARE_SET))
                one = Operation(code, f"large/{choose.randrange(400)}", b"v", amount=1)
            elif len(one.value) + len(one.expected or b"") > 1000:
                one = Operation(Code.DELETE, one.key)
            operations = [one] * choose.choice((MAX_OPERATIONS, 1000))
        else:
            code = choose.choice((Code.HOLD, Code.SET, Code.GET, Code.DELETE, Code.ADD))
            first = choose.randrange(10_000)
            operations = [
                Operation(code, f"many/{first + at}", b"v", amount=1)
                for at in range(MAX_OPERATIONS)
            ]
        return frames.frame(
            MessageKind.REQUEST, frames.u64(number), frames.encode_operations(operations)
        )

    def flood(self, number):
        """Return many small messages, which are counted as one."""
        count, key = self._choose.choice((500, 12_000)), f"k{self._choose.randrange(9)}"
        if self._choose.random() < 0.3:
            made = [frames.frame(MessageKind.CANCEL, frames.u64(number))] * count
        else:
            get = frames.encode_operations([Operation(Code.GET, key)])
            made = [frames.frame(MessageKind.REQUEST, frames.u64(number), get)] * count
        return b"".join(made)

    def hostile(self):
        """Return bytes that are no request."""
        choose, chance = self._choose, self._choose.random()
        if chance < 0.3:
            return frames.frame(
                choose.choice(list(MessageKind)), choose.randbytes(choose.randrange(90))
            )
        if chance < 0.5:
            return choose.randbytes(choose.randrange(1, 200))
        if chance < 0.7:
            length = choose.choice((0, 1, MAX_FRAME, MAX_FRAME + 1, (1 << 32) - 1))
            return length.to_bytes(4, "big") + choose.randbytes(choose.randrange(40))
        if chance < 0.9:
            return frames.frame(MessageKind.BYE) + choose.choice(
                (frames.frame(MessageKind.BYE), self.request(1), hello(), b"\0" * 9)
            )
        return bytes([choose.randrange(256)]) * choose.choice((1, 300, 300_000))

    def change(self, data):
        """Return the frame after random changes."""
        choose, changed = self._choose, bytearray(data)
        for _ in range(choose.choice((1, 1, 2, 8))):
            at = choose.randrange(min(len(changed), 64) + 1)
            action = choose.random()
            if action < 0.5 and at < len(changed):
                changed[at] = choose.choice((0, 1, 255, choose.randrange(256)))
            elif action < 0.7:
                changed[at:at] = choose.randbytes(choose.randrange(1, 9))
            elif action < 0.9:
                del changed[at : at + choose.randrange(1, 30)]
            else:
                changed[at:at] = changed[at : at + choose.randrange(1, 200)]
        return bytes(changed)


_CODES = [code for code in Code if code is not Code.WAIT]


def hello(session=b"", nonce=b"n" * frames.NONCE_SIZE, proof=b""):
    """Return the first frame of a client."""
    versions = frames.u16(frames.OLDEST_VERSION), frames.u16(frames.VERSION)
    resumes = frames.u8(len(session)), session
    return frames.frame(MessageKind.HELLO, frames.MAGIC, *versions, nonce, *resumes, proof)


# --- clients --------------------------------------------------------------------------------------


class Attacker:
    """A connection that sends what it likes, and may read slowly or never."""

    def __init__(self, port, choose, maker, authenticator, session=b""):
        self.sock = socket.create_connection(("127.0.0.1", port), _TIMEOUT)
        self.sock.setblocking(False)
        self.session = session
        self.is_over = False
        self.frames = 0  # that were sent
        self._choose = choose
        self._maker = maker
        self._authenticator = authenticator
        self._read_size = choose.choice((1 << 20, 1 << 20, 1 << 20, 1000, 0))
        self._unsent = b""
        self._stalled = 0  # steps in which nothing could be sent
        self._number = 0
        self._received = FrameBuffer()
        self._is_greeting = choose.random() < 0.95
        self._patience = choose.choice((3, 30, 300, 3000))  # frames until it ends
        if self._is_greeting and choose.random() < 0.05:  # as if the challenge were late
            self._send(hello()[: -frames.NONCE_SIZE - 1])

    def step(self):
        """Send something, read something, or end."""
        choose = self._choose
        try:
            self._read()
            if self._unsent:
                self._send(b"")
                self._stalled += 1
                if self._stalled > choose.choice((10, 1000)):
                    self._read_size = choose.choice((0, 1 << 20))
                    self.is_over = choose.random() < 0.02
            elif not self._is_greeting or choose.random() < 0.02:
                self._stalled = 0
                self._send(self._packet())
            if self.frames > self._patience or choose.random() < 0.0003:
                self._end()
        except OSError:
            self.is_over = True

    def _packet(self):
        """Return some frames, perhaps without the end of the last one."""
        choose, made = self._choose, []
        if choose.random() < 0.0005:
            self.frames += 1
            return self._maker.flood(self._number)
        for _ in range(choose.choice((1, 1, 1, 2, 5))):
            self._number += 1
            number = self._number
            chance = choose.random()
            if chance < 0.02:
                number = choose.choice((0, 1, max(number - 3, 0), (1 << 64) - 1))
            if chance < 0.85 or self._maker.is_greedy:
                data = self._maker.request(number)
            elif chance < 0.93:
                data = frames.frame(
                    MessageKind.CANCEL, frames.u64(max(number - choose.randrange(1, 9), 0))
                )
            elif chance < 0.97:
                data = self._maker.change(self._maker.request(number))
            else:
                data = self._maker.hostile()
            made.append(data)
            self.frames += 1
        packet = b"".join(made)
        return packet[: choose.randrange(len(packet) + 1)] if choose.random() < 0.02 else packet

    def _send(self, data):
        """Send some of the data; it may end anywhere."""
        self._unsent += data
        most = len(self._unsent)
        if self._choose.random() < 0.1:
            most = self._choose.randrange(most + 1)
        with contextlib.suppress(BlockingIOError):
            sent = self.sock.send(self._unsent[:most])
            self._unsent = self._unsent[sent:]

    def _read(self):
        if not self._read_size and not self._is_greeting:
            return
        with contextlib.suppress(BlockingIOError):
            data = self.sock.recv(self._read_size or 1000)
            if not data:
                self.is_over = True
            elif self._is_greeting:
                self._received.feed(data)
                self._greet()

    def _greet(self):
        """Answer the challenge, mostly with the right proof, and sometimes with more behind it."""
        for kind, fields in self._received.frames():
            if kind is MessageKind.CHALLENGE:
                nonce = fields.rest()[-frames.NONCE_SIZE :]
                proof = self._authenticator.client_proof(b"n" * frames.NONCE_SIZE, nonce)
                if self._choose.random() < 0.05:
                    proof = self._choose.randbytes(32)
                data = hello(self.session, proof=proof)
                if self._choose.random() < 0.3:
                    data += self._packet()
                self._send(data)
            elif kind is MessageKind.WELCOME:
                self.session = fields.rest()[-frames.SESSION_SIZE - 1 : -1]
                self._is_greeting = False
                return

    def _end(self):
        """End as clients do: with a goodbye, half-closed, with a reset, or all at once."""
        chance = self._choose.random()
        if chance < 0.3:
            self._send(frames.frame(MessageKind.BYE) + self._packet())
        elif chance < 0.5:
            self.sock.shutdown(socket.SHUT_WR)
            self._patience += 10
            return
        elif chance < 0.7:
            linger = (1).to_bytes(4, sys.byteorder) + bytes(4)
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.is_over = True


class JobClient:
    """A client of the job beside the attackers: each answer must be the right one."""

    def __init__(self, port, seed, authenticator):
        self.operations = 0
        self.slowest = 0.0  # seconds
        self.error = ""
        self._choose = random.Random(seed)
        self._prefix = f"job/{os.urandom(8).hex()}/"
        self._values = {}
        self._client = StoreClient(
            lambda timeout: socket.create_connection(("127.0.0.1", port), timeout),
            authenticator,
            "here",
            _TIMEOUT,
            connect_timeout=_TIMEOUT,
        )
        self._store = JobStore(self._client)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def finish(self):
        """End, and check that no other session is left."""
        self._is_over.set()
        self._thread.join()
        deadline = time.monotonic() + _TIMEOUT
        while not self.error and self._store.count_sessions() != 1:
            if time.monotonic() > deadline:
                self.error = "sessions of ended connections remain"
            time.sleep(0.01)
        self._client.close()

    def _run(self):
        try:
            while not self._is_over.wait(0.002):
                began = time.monotonic()
                with contextlib.suppress(RendezvousStateError):  # the attackers have filled it
                    self._step()
                self.slowest = max(self.slowest, time.monotonic() - began)
                self.operations += 1
        except Exception as error:
            self.error = "".join(traceback.format_exception(error))

    def _step(self):
        choose, values = self._choose, self._values
        key = f"{self._prefix}{choose.randrange(8)}"
        held = values.get(key)
        new = b"%d" % choose.randrange(1 << 30)
        action = choose.randrange(7)
        if action == 0:
            self._store.set(key, new)
            values[key] = new
        elif action == 1:
            total = self._store.add(key, 5)
            values[key] = b"%d" % (int(held or b"0") + 5)
            self._check(total, int(values[key]))
        elif action == 2:
            found = self._store.compare_set(key, held, new)
            values[key] = new
            self._check(found, new)
        elif action == 3:
            self._check(self._store.compare_set(key, b"another", new), held)
        elif action == 4:
            self._store.delete(key)
            values.pop(key, None)
        elif action == 5:
            found = self._store.wait(key, 0.01)
            self._check(found, held)
        keys = [f"{self._prefix}{number}" for number in range(8)]
        self._check(self._store.multi_get(keys), [values.get(key) for key in keys])

    @staticmethod
    def _check(found, expected):
        if found != expected:
            raise AssertionError(f"{found!r} instead of {expected!r}")


# --- runs -----------------------------------------------------------------------------------------


class StoreFuzzer:
    """Frames from one seed, to a server in a process of its own.

    `findings` has what must not be, and `statistics` the figures of the server.
    """

    def __init__(self, seed, max_turn=MAX_TURN):
        self.seed = seed
        self.findings = []
        self.statistics = {}
        self.outcomes = Counter()
        self._max_turn = max_turn
        self._choose = random.Random(seed)
        self._token = _TOKEN if seed % 2 else None

    def run(self, count):
        """Send so many frames."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
        control, line = os.pipe()
        code = (
            f"from helpers.store_fuzzer import serve; "
            f"serve({listener.fileno()}, {control}, {self._token!r})"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[listener.fileno(), control],
        ) as process:
            try:
                port = listener.getsockname()[1]
                listener.close()
                os.close(control)
                self._attack(port, count)
            finally:
                os.close(line)
                out, _ = process.communicate()
        self._judge(out)

    def _attack(self, port, count):
        choose = self._choose
        makers = FrameMaker(choose), FrameMaker(choose, is_greedy=True)
        greed = choose.choice((0.02, 0.2))
        authenticator = Authenticator(self._token, "job")
        interval = sys.getswitchinterval()
        sys.setswitchinterval(0.0002)  # so that the client of the job gets its turn
        job = JobClient(port, self.seed, authenticator)
        attackers, sessions, sent = [], deque(maxlen=20), 0
        while sent < count and not job.error:
            if len(attackers) < _ATTACKERS:
                session = choose.choice(sessions) if sessions and choose.random() < 0.3 else b""
                maker = makers[choose.random() < greed]
                attackers.append(Attacker(port, choose, maker, authenticator, session))
                self.outcomes["connections"] += 1
            attacker = choose.choice(attackers)
            before = attacker.frames
            attacker.step()
            sent += attacker.frames - before
            if attacker.is_over:
                attackers.remove(attacker)
                attacker.sock.close()
                if attacker.session:
                    sessions.append(attacker.session)
                    self.outcomes["sessions"] += 1
        for attacker in attackers:
            attacker.sock.close()
        job.finish()
        sys.setswitchinterval(interval)
        self.outcomes["frames"] = sent
        self.outcomes["right answers"] = job.operations
        self.statistics["slowest"] = job.slowest
        if job.error:
            self.findings.append(f"a client of the job: {job.error}")

    def _judge(self, out):
        try:
            result = json.loads(out)
        except ValueError:
            self.findings.append("the server's process has ended")
            return
        self.statistics.update(result)
        self.findings += result["findings"]
        if result["longest"] > self._max_turn:
            self.findings.append(f"a turn has taken {result['longest']:.3f} s of CPU time")
        most = MAX_MEMORY + MAX_CONNECTIONS * CLIENT_MEMORY
        if result["peak"] > most:
            self.findings.append(f"the server has taken {result['peak']} of {most} bytes")


def main():
    """Send the given number of frames, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    failed, seed, rest = False, options.seed, options.count
    while rest > 0:
        fuzzer = StoreFuzzer(seed)
        began = time.monotonic()
        fuzzer.run(min(rest, _FRAMES_PER_SERVER))
        took = time.monotonic() - began
        sent = ", ".join(f"{number} {what}" for what, number in fuzzer.outcomes.items())
        print(f"seed {seed}: {sent} in {took:.0f} s", flush=True)
        figures = fuzzer.statistics
        if "turns" in figures:
            print(
                f"  {figures['messages']} messages were read in {figures['turns']} turns, the "
                f"longest of {1e3 * figures['longest']:.1f} ms; peak {figures['peak'] >> 20} MiB; "
                f"the job's slowest step {figures['slowest']:.2f} s",
                flush=True,
            )
        for finding in fuzzer.findings:
            print(finding, flush=True)
        failed |= bool(fuzzer.findings)
        rest -= _FRAMES_PER_SERVER
        seed += 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
