"""Clients without the token, many of them, against the process of a store: what they reach."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time

import pytest
from plaunch_job_store import frames
from plaunch_job_store.authentication import Authenticator
from plaunch_job_store.client import StoreClient
from plaunch_job_store.frames import Code, MessageKind, Operation
from plaunch_job_store.host import StoreProcess
from plaunch_job_store.store import JobStore

TOKEN = b"0123456789abcdef"
GROWTH = 16 << 20  # bytes; greetings that are under way take some


@pytest.fixture
def hosted():
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    hosted = StoreProcess(listener, TOKEN, "job", environ={})
    yield hosted
    hosted.close()


@pytest.fixture
def store(hosted):
    def dial(timeout):
        return socket.create_connection(("127.0.0.1", hosted.port), timeout)

    client = StoreClient(dial, Authenticator(TOKEN, "job"), "here", 20.0)
    yield JobStore(client)
    client.close()


def memory(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def hello(session=b"", proof=b""):
    versions = frames.u16(frames.VERSION), frames.u16(frames.VERSION)
    fields = frames.MAGIC, *versions, os.urandom(32), frames.u8(len(session)), session, proof
    return frames.frame(MessageKind.HELLO, *fields)


def writes():
    operations = frames.encode_operations([Operation(Code.SET, "victim", b"overwritten")])
    return frames.frame(MessageKind.REQUEST, frames.u64(1), operations)


def attack(kind, chance, port):
    """Connect once, and try to write without the token; return the open connection."""
    sock = socket.create_connection(("127.0.0.1", port), 20)
    data = {
        "no proof": hello() + writes(),
        "a guess": hello(proof=chance.randbytes(32)) + writes(),
        "no greeting": writes(),
        "a guessed session": hello(chance.randbytes(16), chance.randbytes(32)) + writes(),
        "half a frame": hello()[: chance.randrange(1, 60)],
        "a huge frame": (0xFFFFFFF0).to_bytes(4, "big") + b"x" * 4096,
        "noise": chance.randbytes(chance.randrange(1, 4096)),
        "nothing": b"",
    }[kind]
    with contextlib.suppress(OSError):  # the server may have ended the connection
        sock.sendall(data)
    return sock


KINDS = (
    "no proof", "a guess", "no greeting", "a guessed session", "half a frame", "a huge frame",
    "noise", "nothing",
)  # fmt: skip


def run_attacks(hosted, store, count):
    """Attack `count` times, some at a time; the job's own client works meanwhile."""
    chance = random.Random(7)
    store.set("victim", b"intact")
    before = memory(hosted.pid)
    open_socks = []
    slowest = 0.0
    for number in range(count):
        open_socks.append(attack(KINDS[number % len(KINDS)], chance, hosted.port))
        if len(open_socks) == 200:
            for sock in open_socks:
                sock.close()
            open_socks.clear()
        if number % 20 == 0:
            began = time.monotonic()
            assert store.multi_get(["victim"]) == [b"intact"]
            slowest = max(slowest, time.monotonic() - began)
    for sock in open_socks:
        sock.close()
    assert store.multi_get(["victim"]) == [b"intact"]
    assert store.count_sessions() == 1
    return memory(hosted.pid) - before, slowest


def test_without_the_token_nothing_is_read_written_or_kept(hosted, store):
    growth, _ = run_attacks(hosted, store, 400)
    assert growth < GROWTH


@pytest.mark.exhaustive
def test_many_attacks(hosted, store):
    growth, slowest = run_attacks(hosted, store, 50_000)
    print(f"growth {growth >> 10} KiB, slowest read beside them {slowest * 1e3:.1f} ms")
    assert growth < GROWTH


def test_connections_that_stay_do_not_keep_the_job_out(hosted, store):
    """They are more than the server admits at a time."""
    socks = [socket.create_connection(("127.0.0.1", hosted.port), 20) for _ in range(600)]
    store.set("k", b"v")

    def dial(timeout):
        return socket.create_connection(("127.0.0.1", hosted.port), timeout)

    client = StoreClient(dial, Authenticator(TOKEN, "job"), "here", 20.0)
    assert JobStore(client).multi_get(["k"]) == [b"v"]
    client.close()
    for sock in socks:
        sock.close()
