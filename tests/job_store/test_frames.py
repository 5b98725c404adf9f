"""The encoding of messages: what is sent is received, and no bytes make a peer fail otherwise."""

from __future__ import annotations

import random
import struct

import pytest
from plaunch_job_store import frames
from plaunch_job_store.frames import (
    Code,
    Fields,
    FrameBuffer,
    MessageKind,
    Operation,
    OperationFailed,
    ProtocolError,
)
from plaunch_job_store.limits import MAX_FRAME

OPERATIONS = [
    Operation(Code.SET, "a/b", b"v"),
    Operation(Code.ADD, "n", amount=-3),
    Operation(Code.COMPARE_SET, "k", b"new"),
    Operation(Code.COMPARE_SET, "k", b"new", b"old"),
    Operation(Code.GET, "k"),
    Operation(Code.DELETE, "k"),
    Operation(Code.HOLD, "k", b"v"),
    Operation(Code.COUNT_SESSIONS, "k"),
]
RESULTS = [None, b"", b"value", 0, -(1 << 63), OperationFailed("no room")]


def test_operations():
    assert frames.decode_operations(Fields(frames.encode_operations(OPERATIONS))) == OPERATIONS


def test_results():
    assert frames.decode_results(Fields(frames.encode_results(RESULTS))) == RESULTS


def test_frames_in_any_pieces():
    sent = [frames.frame(MessageKind.BYE), frames.frame(MessageKind.CANCEL, frames.u64(7))]
    buffer, received = FrameBuffer(), []
    for byte in b"".join(sent):
        buffer.feed(bytes([byte]))
        received += [kind for kind, _ in buffer.frames()]
    assert received == [MessageKind.BYE, MessageKind.CANCEL]
    assert len(buffer) == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"\0\0", "0 operations"),
        (b"\0\1\x63", "the unknown operation 99"),
        (b"\0\1\4\0\0", "a key of 0 bytes"),
        (b"\0\1\4\xff\xff", "a key of 65535 bytes"),
        (b"\0\1\4\0\1\xe9", "a key that is not ASCII"),
        (b"\0\1\4\0\1\n", "a key with control characters"),
        (b"\0\1\4\0\2k", "ends early"),
        (b"\0\1\1\0\1k\x40\0\0\0", "a value of 1073741824 bytes"),
        (b"\0\1\4\0\1k!", "1 bytes after the end"),
        (b"\0\2\4\0\1k\5\0\1k", "a wait behind another operation"),
        (b"\0\2\5\0\1k\6\0\1k", "a wait before an operation that is not a read"),
    ],
)
def test_invalid_operations(body, message):
    with pytest.raises(ProtocolError, match=message):
        frames.decode_operations(Fields(body))


@pytest.mark.parametrize("length", [0, MAX_FRAME + 1, (1 << 32) - 1])
def test_a_frame_of_an_invalid_length(length):
    buffer = FrameBuffer()
    buffer.feed(length.to_bytes(4, "big"))
    with pytest.raises(ProtocolError, match="a frame of"):
        list(buffer.frames())


def mutate(chosen, data):
    data = bytearray(data)
    for _ in range(chosen.randint(1, 4)):
        place = chosen.randrange(len(data))
        data[place : place + chosen.randint(0, 2)] = chosen.randbytes(chosen.randint(0, 3))
    return bytes(data)


def feed(count, seed):
    """Decode this many random requests and replies."""
    chosen = random.Random(seed)
    requests = frames.encode_operations(OPERATIONS), frames.encode_results(RESULTS)
    failed = 0
    for number in range(count):
        body = mutate(chosen, requests[number % 2])
        decode = (frames.decode_operations, frames.decode_results)[number % 2]
        try:
            decode(Fields(body))
        except ProtocolError:
            failed += 1
    return failed


def test_random_changes_raise_nothing_but_a_protocol_error():
    assert 0 < feed(20_000, seed=1) < 20_000


@pytest.mark.exhaustive
def test_a_million_random_changes():
    assert feed(1_000_000, seed=2)


def test_a_client_of_torch_is_named():
    received = FrameBuffer(256)
    received.feed(b"\0" + struct.pack("=I", 0x3C85F7CE))
    with pytest.raises(ProtocolError, match="uses a TCPStore of torch"):
        list(received.frames())
