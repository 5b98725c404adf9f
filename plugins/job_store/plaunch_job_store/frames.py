"""The protocol between the store's server and its clients: messages, and their encoding.

A frame is a length (four bytes, big-endian) and that many bytes: the kind of the message, and its
fields. docs/store.md describes each message.
"""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING, NamedTuple

from plaunch_job_store.limits import MAX_FRAME, MAX_KEY, MAX_OPERATIONS, MAX_VALUE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAGIC = b"plaunch store"
VERSION = 2  # of the protocol; the highest that this program speaks
OLDEST_VERSION = 2

TOO_LARGE = "the values are too many for one reply"  # the client asks for fewer
NONCE_SIZE = 32
SESSION_SIZE = 16

_LENGTH = struct.Struct(">I")
_U8 = struct.Struct(">B")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_I64 = struct.Struct(">q")
_MAX_FIELDS = 12  # bytes of an operation, or of a request, beside its keys and values
# How a client of torch's TCPStore begins, read as the length of a frame: a zero, and the first
# three bytes of 0x3C85F7CE, in little-endian order.
_TCP_STORE_CLIENT = 0x00CEF785


class ProtocolError(Exception):
    """The peer has sent something that is not a frame of this protocol."""


class MessageKind(enum.IntEnum):
    """The kind of a message."""

    HELLO = 1  # client: magic, oldest and newest version, then nothing, or nonce, session, proof
    CHALLENGE = 2  # server, as it accepts: magic, version, whether a proof is needed, nonce
    WELCOME = 4  # server: proof, session, whether it was resumed
    REQUEST = 5  # client: number, operations
    REPLY = 6  # server: number, results
    CANCEL = 7  # client: number of a wait, which is answered now
    BYE = 8  # client: the session ends
    REFUSED = 9  # server: reason; the connection is closed
    LOST = 10  # server: the session of another client has ended without BYE


class Code(enum.IntEnum):
    """The code of an operation."""

    SET = 1
    ADD = 2
    COMPARE_SET = 3
    GET = 4
    WAIT = 5
    DELETE = 6
    HOLD = 7  # like SET; the key is deleted if the session ends without BYE
    COUNT_SESSIONS = 8  # of all clients; the key has no meaning
    APPEND = 9  # adds 1 to the counter LOG/tickets, and sets the value of LOG/<sum>


_WITH_VALUE = (Code.SET, Code.HOLD, Code.APPEND)


class Operation(NamedTuple):
    """One operation on a key.

    Args:
        code: what to do.
        key: the key.
        value: the value to write; empty if there is none.
        expected: the value that COMPARE_SET expects; None: no value.
        amount: what ADD adds.
    """

    code: Code
    key: str
    value: bytes = b""
    expected: bytes | None = None
    amount: int = 0


class OperationFailed(NamedTuple):
    """The result of an operation that the server has refused."""

    reason: str


Result = bytes | int | OperationFailed | None


def frame(kind: MessageKind, *fields: bytes) -> bytes:
    """Return a frame of encoded fields."""
    length = 1 + sum(map(len, fields))
    return b"".join((_LENGTH.pack(length), _U8.pack(kind), *fields))


class FrameBuffer:
    """Splits a stream of bytes into frames.

    Args:
        limit: the largest frame, in bytes; may be changed between two frames.
    """

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self._bytes = bytearray()

    def __len__(self) -> int:
        return len(self._bytes)

    def feed(self, data: bytes) -> None:
        """Append received bytes."""
        self._bytes += data

    def clear(self) -> None:
        """Discard what is buffered."""
        self._bytes.clear()

    def peek(self, size: int) -> bytes:
        """Return the first bytes of what is buffered."""
        return bytes(self._bytes[:size])

    def frames(self) -> Iterator[tuple[MessageKind, Fields]]:
        """Return the complete frames, and remove them.

        Raises:
            ProtocolError: a frame is empty, too large, or of an unknown kind.
        """
        while len(self._bytes) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes)
            if not 1 <= length <= self.limit:
                if length == _TCP_STORE_CLIENT:
                    raise ProtocolError(
                        "the node uses a TCPStore of torch: it runs torchrun, or has "
                        "--rdzv-conf store=torch; start all nodes with plaunch and the same store"
                    )
                raise ProtocolError(f"a frame of {length} bytes; the limit is {self.limit}")
            end = _LENGTH.size + length
            if len(self._bytes) < end:
                return
            with memoryview(self._bytes) as view:
                body = bytes(view[_LENGTH.size : end])
            del self._bytes[:end]
            try:
                kind = MessageKind(body[0])
            except ValueError:
                raise ProtocolError(f"a message of the unknown kind {body[0]}") from None
            yield kind, Fields(body, 1)


class Fields:
    """Reads the fields of a message in order.

    Raises:
        ProtocolError: by all methods, if the field is missing, too long or invalid.
    """

    __slots__ = ("_at", "_body")

    def __init__(self, body: bytes, at: int = 0) -> None:
        self._body = body
        self._at = at

    def _unpack(self, form: struct.Struct) -> int:
        try:
            (number,) = form.unpack_from(self._body, self._at)
        except struct.error:
            raise ProtocolError("a message that ends early") from None
        self._at += form.size
        return int(number)

    def u8(self) -> int:
        """Read an integer of one byte."""
        return self._unpack(_U8)

    def u16(self) -> int:
        """Read an integer of two bytes."""
        return self._unpack(_U16)

    def u64(self) -> int:
        """Read an integer of eight bytes."""
        return self._unpack(_U64)

    def i64(self) -> int:
        """Read a signed integer of eight bytes."""
        return self._unpack(_I64)

    def take(self, size: int) -> bytes:
        """Read so many bytes."""
        end = self._at + size
        if end > len(self._body):
            raise ProtocolError("a message that ends early")
        found = self._body[self._at : end]
        self._at = end
        return found

    def are_over(self) -> bool:
        """Whether all has been read."""
        return self._at == len(self._body)

    def rest(self) -> bytes:
        """Read all that is left."""
        return self.take(len(self._body) - self._at)

    def value(self) -> bytes:
        """Read a value with its length."""
        size = self._unpack(_U32)
        if size > MAX_VALUE:
            raise ProtocolError(f"a value of {size} bytes; the limit is {MAX_VALUE}")
        return self.take(size)

    def key(self) -> str:
        """Read a key: printable ASCII."""
        size = self.u16()
        if not 1 <= size <= MAX_KEY:
            raise ProtocolError(f"a key of {size} bytes; the limit is {MAX_KEY}")
        try:
            key = self.take(size).decode("ascii")
        except UnicodeDecodeError:
            raise ProtocolError("a key that is not ASCII") from None
        if not key.isprintable():
            raise ProtocolError("a key with control characters")
        return key

    def text(self) -> str:
        """Read a text in UTF-8 for a message; bytes that are not are replaced."""
        from plaunch.texts import printable  # the server reads no texts, and does without

        return printable(self.take(self.u16()).decode(errors="replace"))

    def end(self) -> None:
        """Check that all has been read."""
        if not self.are_over():
            raise ProtocolError(f"{len(self._body) - self._at} bytes after the end of a message")


def u8(number: int) -> bytes:
    """Encode an integer in one byte."""
    return _U8.pack(number)


def u16(number: int) -> bytes:
    """Encode an integer in two bytes."""
    return _U16.pack(number)


def u64(number: int) -> bytes:
    """Encode an integer in eight bytes."""
    return _U64.pack(number)


def text(string: str) -> bytes:
    """Encode a short text; the rest of a long one is cut off."""
    encoded = string.encode(errors="replace")[:1000]
    return _U16.pack(len(encoded)) + encoded


def _value(value: bytes) -> bytes:
    return _U32.pack(len(value)) + value


def check_operations(operations: Sequence[Operation]) -> None:
    """Check what the server would end the connection for.

    Raises:
        ValueError: there are too many, or a key or a value is too long or invalid.
    """
    if not 1 <= len(operations) <= MAX_OPERATIONS:
        raise ValueError(f"{len(operations)} operations; a request has up to {MAX_OPERATIONS}")
    total = 0
    for _, key, value, expected, _ in operations:
        if not (key.isascii() and key.isprintable() and 0 < len(key) <= MAX_KEY):
            raise ValueError(f"the key {key!r:.100} is not printable ASCII of up to {MAX_KEY}")
        size = max(len(value), len(expected or b""))
        if size > MAX_VALUE:
            raise ValueError(f"a value of {size} bytes for {key!r:.100}; at most {MAX_VALUE}")
        total += len(key) + len(value) + len(expected or b"") + _MAX_FIELDS
    if total > MAX_FRAME - _MAX_FIELDS:
        raise ValueError(f"a request of {total} bytes; at most {MAX_FRAME}")


def encode_operations(operations: Sequence[Operation]) -> bytes:
    """Encode the operations of a REQUEST."""
    fields = [_U16.pack(len(operations))]
    for operation in operations:
        code, key = operation.code, operation.key.encode("ascii")
        fields += (_U8.pack(code), _U16.pack(len(key)), key)
        if code is Code.ADD:
            fields.append(_I64.pack(operation.amount))
        elif code is Code.COMPARE_SET:
            has_expected = operation.expected is not None
            fields += (_U8.pack(has_expected), _value(operation.expected or b""))
            fields.append(_value(operation.value))
        elif code in _WITH_VALUE:
            fields.append(_value(operation.value))
    return b"".join(fields)


def decode_operations(fields: Fields) -> list[Operation]:
    """Decode the operations of a REQUEST.

    Raises:
        ProtocolError: they are invalid.
    """
    count = fields.u16()
    if not 1 <= count <= MAX_OPERATIONS:
        raise ProtocolError(f"{count} operations in a request; the limit is {MAX_OPERATIONS}")
    operations = [_decode_operation(fields) for _ in range(count)]
    fields.end()
    if any(operation.code is Code.WAIT for operation in operations[1:]):
        raise ProtocolError("a wait behind another operation")
    if operations[0].code is Code.WAIT and any(one.code is not Code.GET for one in operations[1:]):
        raise ProtocolError("a wait before an operation that is not a read")
    return operations


def _decode_operation(fields: Fields) -> Operation:
    number = fields.u8()
    try:
        code = Code(number)
    except ValueError:
        raise ProtocolError(f"the unknown operation {number}") from None
    key = fields.key()
    if code is Code.ADD:
        return Operation(code, key, amount=fields.i64())
    if code is Code.COMPARE_SET:
        has_expected = fields.u8()
        expected = fields.value()
        return Operation(code, key, fields.value(), expected if has_expected else None)
    if code in _WITH_VALUE:
        return Operation(code, key, fields.value())
    return Operation(code, key)


class _Tag(enum.IntEnum):
    NOTHING = 0
    VALUE = 1
    NUMBER = 2
    FAILED = 3


def encode_results(results: Sequence[Result]) -> bytes:
    """Encode the results of a REPLY."""
    fields = [_U16.pack(len(results))]
    for result in results:
        if result is None:
            fields.append(_U8.pack(_Tag.NOTHING))
        elif isinstance(result, bytes):
            fields.append(_U8.pack(_Tag.VALUE) + _value(result))
        elif isinstance(result, int):
            fields.append(_U8.pack(_Tag.NUMBER) + _I64.pack(result))
        else:
            fields.append(_U8.pack(_Tag.FAILED) + text(result.reason))
    return b"".join(fields)


def decode_results(fields: Fields) -> list[Result]:
    """Decode the results of a REPLY.

    Raises:
        ProtocolError: they are invalid.
    """
    results: list[Result] = []
    for _ in range(fields.u16()):
        tag = fields.u8()
        if tag == _Tag.NOTHING:
            results.append(None)
        elif tag == _Tag.VALUE:
            results.append(fields.value())
        elif tag == _Tag.NUMBER:
            results.append(fields.i64())
        elif tag == _Tag.FAILED:
            results.append(OperationFailed(fields.text()))
        else:
            raise ProtocolError(f"a result of the unknown type {tag}")
    fields.end()
    return results
