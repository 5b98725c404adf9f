"""Frames of the job's store, as both sides read them."""

from __future__ import annotations

from plaunch_job_store import frames
from plaunch_job_store.frames import FrameBuffer, MessageKind, Operation, ProtocolError
from plaunch_job_store.limits import MAX_FRAME, MAX_GREETING

from helpers.fuzz_targets import Finding
from helpers.fuzz_targets.reading import check_equal, check_message, divide

WORDS = (frames.MAGIC, b"\0\0\0\x05", b"\0\x01\0\x01k", b"\x05", b"\x06")


def check(data):
    """Read a stream of frames, divided anywhere, and write what was read again."""
    limit = MAX_GREETING if data[:1] == b"\1" else MAX_FRAME
    stream = data[1:]
    results = [_read(parts, limit) for parts in divide(stream)]
    for result in results[1:]:
        check_equal(result, results[0], "other parts, other frames")
    for kind, body in results[0][0]:
        _read_body(kind, body)


def _read(parts, limit):
    """Return the frames and the error of a stream, and the bytes that are left."""
    buffer, found = FrameBuffer(limit), []
    try:
        for part in parts:
            buffer.feed(part)
            for kind, fields in buffer.frames():
                found.append((kind, fields.rest()))
    except ProtocolError as error:
        check_message(str(error))
        return found, str(error), b""
    return found, "", buffer.peek(len(buffer))


def _read_body(kind, body):
    whole = frames.frame(kind, body)
    ((again, fields),) = _frames_of(whole)
    check_equal((again, fields.rest()), (kind, body), "a frame is another one when it is read")
    fields = frames.Fields(body)
    try:
        if kind is MessageKind.REQUEST:
            fields.u64()
            _check_operations(frames.decode_operations(fields))
        elif kind is MessageKind.REPLY:
            fields.u64()
            _check_results(frames.decode_results(fields))
        elif kind is MessageKind.REFUSED:
            check_message(fields.text(), 70_000)
    except ProtocolError as error:
        check_message(str(error))


def _frames_of(data):
    buffer = FrameBuffer()
    buffer.feed(data)
    return list(buffer.frames())


def _check_operations(operations):
    encoded = frames.encode_operations(operations)
    check_equal(frames.decode_operations(frames.Fields(encoded)), operations, "operations")
    if not all(isinstance(one, Operation) and one.key.isprintable() for one in operations):
        raise Finding(f"operations {operations}")
    frames.check_operations(operations)  # the client would send them


def _check_results(results):
    encoded = frames.encode_results(results)
    check_equal(frames.decode_results(frames.Fields(encoded)), results, "results")
