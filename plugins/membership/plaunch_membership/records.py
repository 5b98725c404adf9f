"""The records in a store: JSON objects of bounded size, signed if the job has a token.

Nothing that is read from a store is trusted. A value that is not a record of this job and protocol
version is rejected with an error that names its key. Nothing in it is ever executed.
"""

from __future__ import annotations

import enum
import json
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from plaunch.errors import RendezvousStateError
from plaunch.texts import printable

if TYPE_CHECKING:
    import hmac

PROTOCOL_VERSION = 2

# Limits of what other nodes write.
MAX_NAME = 400  # characters of a host's, a node's or a role's name
MAX_REASON = 2000  # characters of a sentence that describes an event
MAX_REFUSAL = 1000  # characters of why a node was refused, shown by waiting nodes
MAX_EXCLUDED = 64  # excluded hosts
MAX_SECONDS = 253_402_128_000.0  # since the epoch: the latest date in any time zone (9999-12-30)

_MOST_ESCAPED = 10  # characters that one becomes
_MAX_BYTES = 1 << 20  # of one record
_MAX_NUMBER = (1 << 53) - 1  # the largest integer that every JSON parser reads exactly
_MAX_WARNINGS = 20  # warnings about rejected records
_MAX_DEPTH = 32  # of nested lists and objects; plaunch itself writes about ten levels
_VERSION = "v"
_SIGNED = re.compile(rb"([0-9a-f]{64}):")
_REQUIRED: Any = object()

_log = logging.getLogger("plaunch")

T = TypeVar("T")
V = TypeVar("V")
E = TypeVar("E", bound=enum.Enum)


def nearest_date(seconds: float) -> float:
    """Clamp seconds since the epoch to valid dates in all time zones."""
    return min(max(seconds, 0.0), MAX_SECONDS)


class RecordError(RendezvousStateError):
    """The store holds something that is not a record of this job."""


class RejectionLog:
    """Logs rejected records, up to a limit."""

    def __init__(self) -> None:
        self._count = 0

    def note(self, what: str, error: RendezvousStateError) -> None:
        """Log that `what` was rejected because of `error`."""
        self._count += 1
        if self._count <= _MAX_WARNINGS:
            _log.warning("%s is rejected: %s", what, error)
        if self._count == _MAX_WARNINGS:
            _log.warning("further rejected records are not reported")


class StoreRecord(Mapping[str, object]):
    """The fields of a record, with getters that check types and bounds.

    Every getter raises `RecordError` for a field that is missing or invalid. A field that is null
    counts as missing. If `default` is given, it is returned for a missing field.

    Args:
        key: the key of the record in the store, for errors.
        raw: its fields.
    """

    def __init__(self, key: str, raw: dict[str, object], path: str = "") -> None:
        self.key = key
        self.raw = raw
        self._path = path

    def text(self, name: str, *, max_len: int | None = None, default: T = _REQUIRED) -> str | T:
        """A text of at most `max_len` characters.

        Control characters and line breaks are replaced by escape sequences, whose length counts, so
        that the result can be written and read again.
        """

        def read(value: object) -> str:
            text = self._expect(name, value, str, "a text")
            if max_len is None:
                return printable(text)
            if len(text) <= max_len:
                text = printable(text, _MOST_ESCAPED * max_len)
            if len(text) > max_len:
                raise self._wrong(name, f"has {len(text)} characters; {max_len} are the most")
            return text

        return self._read(name, read, default)

    def choice(self, name: str, choices: type[E]) -> E:
        """A member of an enumeration, by its value."""
        text = self.text(name, max_len=MAX_NAME)
        try:
            return choices(text)
        except ValueError:
            raise self._wrong(name, f"is unknown: {_excerpt(text)}") from None

    def texts(self, name: str, *, default: T = _REQUIRED) -> list[str] | T:
        """A list of texts."""

        def read(value: object) -> list[str]:
            items = self._expect(name, value, list, "a list")
            return [printable(self._expect(name, item, str, "a list of texts")) for item in items]

        return self._read(name, read, default)

    def integer(
        self,
        name: str,
        *,
        low: int | None = None,
        high: int | None = None,
        default: T = _REQUIRED,
    ) -> int | T:
        """An integer from `low` to `high` inclusive, of at most 53 bits."""

        def read(value: object) -> int:
            number = self._expect(name, value, int, "a whole number")
            if (low is not None and number < low) or (high is not None and number > high):
                span = f"from {low} on" if high is None else f"from {low} to {high}"
                span = f"up to {high}" if low is None else span
                raise self._wrong(name, f"is {_excerpt(number)}, which is not {span}")
            if abs(number) > _MAX_NUMBER:
                raise self._wrong(name, f"is {_excerpt(number)}, which is too large")
            return number

        return self._read(name, read, default)

    def number(self, name: str, *, default: T = _REQUIRED) -> float | T:
        """A finite number."""

        def read(value: object) -> float:
            if isinstance(value, float):
                return value
            try:
                return float(self._expect(name, value, int, "a number"))
            except OverflowError:
                raise self._wrong(name, "is too large") from None

        return self._read(name, read, default)

    def date(self, name: str) -> float:
        """Seconds since the epoch, clamped to dates that every platform supports."""
        return nearest_date(self.number(name))

    def flag(self, name: str, *, default: T = _REQUIRED) -> bool | T:
        """True or false."""
        return self._read(name, lambda v: self._expect(name, v, bool, "true or false"), default)

    def record(self, name: str, *, default: T = _REQUIRED) -> StoreRecord | T:
        """A record inside this one."""
        return self._read(name, lambda value: self._inner(name, value), default)

    def records(self, name: str, *, default: T = _REQUIRED) -> list[StoreRecord] | T:
        """A list of records inside this one."""

        def read(value: object) -> list[StoreRecord]:
            items = self._expect(name, value, list, "a list")
            return [self._inner(f"{name}[{index}]", item) for index, item in enumerate(items)]

        return self._read(name, read, default)

    def refuse(self, problem: str) -> NoReturn:
        """Raise `RecordError` for a problem that the getters do not detect."""
        place = f" in {self._path[:-1]!r}" if self._path else ""
        raise _error(self.key, f"is invalid{place}: {problem}")

    def __getitem__(self, name: str) -> object:
        return self.raw[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.raw)

    def __len__(self) -> int:
        return len(self.raw)

    def __repr__(self) -> str:
        return f"StoreRecord({self.key!r}, {self.raw!r})"

    def _wrong(self, name: str, problem: str) -> RecordError:
        return _error(self.key, f"is invalid: {self._path + name!r} {problem}")

    def _read(self, name: str, read: Callable[[object], V], default: T) -> V | T:
        value = self.raw.get(name)
        if value is not None:
            return read(value)
        if default is _REQUIRED:
            raise self._wrong(name, "is missing")
        return default

    def _inner(self, name: str, value: object) -> StoreRecord:
        return StoreRecord(
            self.key, self._expect(name, value, dict, "a record"), f"{self._path}{name}."
        )

    def _expect(self, name: str, value: object, kind: type[V], what: str) -> V:
        # In Python, True is an instance of int.
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
        raise self._wrong(name, f"is {_excerpt(value)}, which is not {what}")


class RecordCodec:
    """Encodes and decodes the records of one job.

    With a token, every record is preceded by a signature over the run id, the key and the record. A
    record that was copied from another job, round or key is therefore rejected as well.

    Args:
        run_id: the id of the job.
        token: the job's secret, or None for unsigned records.
        max_bytes: the size limit of a record.
    """

    def __init__(
        self, run_id: str, token: bytes | None = None, max_bytes: int = _MAX_BYTES
    ) -> None:
        self._max_bytes = max_bytes
        self._hmac: hmac.HMAC | None = None
        if token is not None:
            import hmac  # with OpenSSL, it takes 3 MB and some milliseconds

            self._hmac = hmac.new(token, b"plaunch-record", "sha256")
            _update(self._hmac, run_id)

    def encode(self, key: str, record: Mapping[str, object]) -> bytes:
        """Return the value to store under `key`.

        Raises:
            RecordError: the record is too large, or has a value that JSON cannot represent.
        """
        if _VERSION in record:
            raise ValueError(f"{_VERSION!r} is the name of the schema version's field")
        try:
            text = json.dumps(
                {_VERSION: PROTOCOL_VERSION, **record}, allow_nan=False, separators=(",", ":")
            )
        except (TypeError, ValueError, RecursionError) as error:
            raise _error(key, f"cannot be written: {error}") from error
        body = text.encode("ascii")
        value = body if self._hmac is None else _sign(self._hmac, key, body) + b":" + body
        if len(value) > self._max_bytes:
            raise _error(
                key, f"cannot be written: {len(value)} bytes; {self._max_bytes} are the most"
            )
        return value

    def decode(self, key: str, value: bytes) -> StoreRecord:
        """Return the record that was read from `key`.

        Raises:
            RecordError: the value is not a record of this job, or has another protocol version.
        """
        if len(value) > self._max_bytes:
            raise _error(key, f"is too large: {len(value)} bytes; {self._max_bytes} are the most")
        raw = _parse(key, self._verify(key, value))
        version = raw.pop(_VERSION, None)
        if type(version) is not int:
            raise _error(key, "has no schema version; something else has written it")
        if version != PROTOCOL_VERSION:
            raise _error(
                key,
                f"was written by a plaunch of protocol version {_excerpt(version)}; this one "
                f"speaks {PROTOCOL_VERSION}; install the same version on all nodes",
            )
        return StoreRecord(key, raw)

    def __repr__(self) -> str:
        return f"<RecordCodec, {'unsigned' if self._hmac is None else 'signed'}>"

    def _verify(self, key: str, value: bytes) -> bytes:
        """Check the signature and return the record without it."""
        signed = _SIGNED.match(value)
        if self._hmac is None:
            if signed:
                raise _error(
                    key, "is signed, but this node has no job token; give all nodes the same one"
                )
            return value
        if not signed:
            raise _error(
                key,
                "is not signed, but this node has a job token: a node without a token wrote it; "
                "give all nodes the same one",
            )
        import hmac

        body = value[signed.end() :]
        if not hmac.compare_digest(signed[1], _sign(self._hmac, key, body)):
            raise _error(
                key,
                "has a wrong signature: it was written with another job token, or for another job "
                "or key",
            )
        return body


def _sign(begun: hmac.HMAC, key: str, body: bytes) -> bytes:
    signature = begun.copy()
    _update(signature, key)
    signature.update(body)
    return signature.hexdigest().encode("ascii")


def _update(signature: hmac.HMAC, part: str) -> None:
    data = part.encode("utf-8", "surrogatepass")
    signature.update(b"%d:" % len(data))
    signature.update(data)


def _parse(key: str, body: bytes) -> dict[str, object]:
    try:
        value = json.loads(
            body.decode("ascii"),
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except UnicodeDecodeError as error:
        raise _error(key, f"is not ASCII: {_excerpt(body)}") from error
    except ValueError as error:
        raise _error(key, f"is not a JSON record ({error}): {_excerpt(body)}") from error
    except RecursionError:
        raise _error(key, "is nested too deeply") from None
    if not isinstance(value, dict):
        raise _error(key, f"is not a JSON object: {_excerpt(body)}")
    # Only records with many brackets can be nested too deeply.
    if body.count(b"{") + body.count(b"[") > _MAX_DEPTH and _is_deep(value, _MAX_DEPTH):
        raise _error(key, "is nested too deeply")
    return value


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name that occurs twice in one object")
    return result


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{_excerpt(text)} is too large")
    return number


def _is_deep(value: object, limit: int) -> bool:
    if isinstance(value, dict):
        return limit == 0 or any(_is_deep(item, limit - 1) for item in value.values())
    if isinstance(value, list):
        return limit == 0 or any(_is_deep(item, limit - 1) for item in value)
    return False


def _excerpt(value: object) -> str:
    text = repr(value[:80] if isinstance(value, (bytes, str)) else value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _error(key: str, problem: str) -> RecordError:
    return RecordError(f"the record under {key!r} {problem}")
