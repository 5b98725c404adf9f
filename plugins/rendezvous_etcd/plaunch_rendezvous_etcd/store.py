"""The store protocol on etcd: values, counters, and heartbeats.

A counter is a key that is written again and again: its value is the key's version, so that taking a
number is one transaction that never conflicts. A value that was set is kept as an offset.
"""

from __future__ import annotations

import contextlib
import re
import time
from typing import TYPE_CHECKING, Any

from plaunch.errors import RendezvousConnectionError, RendezvousStateError
from plaunch_membership import RendezvousStore

from plaunch_rendezvous_etcd.leases import is_lease_gone
from plaunch_rendezvous_etcd.link import CallError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from plaunch_rendezvous_etcd.client import EtcdClient
    from plaunch_rendezvous_etcd.leases import JobLease, PresenceLease
    from plaunch_rendezvous_etcd.watching import Watch, Watches

_MOST_OPERATIONS = 128  # in one transaction; etcd's own default
_MOST_BYTES = 1 << 20  # in one transaction; etcd takes requests of 1.5 MiB
_ESCAPE = b"\0"  # begins what is not stored as it is
_COUNTER = b"\0+"  # and the offset, in decimal digits
_LITERAL = b"\0="  # and a value that begins with the escape
_NUMBER = re.compile(rb"-?[0-9]{1,18}")  # what a counter holds; Python would read more as one


class EtcdStore(RendezvousStore):
    """One connection; those of one agent share its client's link, its leases and its watches.

    Args:
        client: leads to etcd.
        job_lease: keeps the keys of the job.
        presence_lease: keeps the heartbeat of this agent.
        watches: waits for keys.
    """

    def __init__(
        self,
        client: EtcdClient,
        job_lease: JobLease,
        presence_lease: PresenceLease,
        watches: Watches,
    ) -> None:
        self._client = client
        self._job_lease = job_lease
        self._presence_lease = presence_lease
        self._watches = watches
        self._message = client.protocol.message
        self._is_closed = False
        self._watch: Watch | None = None

    def set(self, key: str, value: bytes) -> None:
        """Write `value`."""
        self._write([self._put(key, _encode(value))])

    def add(self, key: str, amount: int) -> int:
        """Add `amount`; adding 1 is one transaction, however many do it at once.

        Raises:
            RendezvousStateError: there is something other than a number.
        """
        if amount == 1:
            # What is there keeps its value, and its version counts.
            there = self._message("PutRequest")(
                key=self._key(key), ignore_value=True, lease=self._job_lease.number
            )
            answer = self._write(
                [self._operation(request_put=there), self._range(key)],
                compare=self._compare(key, "GREATER", version=0),
                otherwise=[self._put(key, _COUNTER + b"0"), self._range(key)],
            )
            (held,) = answer.responses[1].response_range.kvs
            if held.value.startswith(_COUNTER):
                return _number_in(key, held)
        return self._add_to_value(key, amount)

    def compare_set(self, key: str, expected: bytes | None, desired: bytes) -> bytes | None:
        """Write `desired` if `key` holds `expected`; return what it holds then."""
        compare = (
            self._compare(key, "EQUAL", version=0)
            if expected is None
            else self._compare(key, "EQUAL", value=_encode(expected))
        )
        while True:
            answer = self._write(
                [self._put(key, _encode(desired))],
                compare=compare,
                otherwise=[self._range(key)],
            )
            if answer.succeeded:
                return desired
            held = _first(answer.responses[0].response_range.kvs)
            value = None if held is None else _decode(held)
            if held is None or value != expected:
                return value
            # A counter, which does not hold what it is read as.
            compare = self._compare(key, "EQUAL", mod_revision=held.mod_revision)

    def multi_get(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values of all `keys`; up to 128 of them as they are at one moment."""
        values: list[bytes | None] = []
        for begin in range(0, len(keys), _MOST_OPERATIONS):
            part = keys[begin : begin + _MOST_OPERATIONS]
            request = self._message("TxnRequest")(success=[self._range(key) for key in part])
            for response in self._ask("Txn", request).responses:
                held = _first(response.response_range.kvs)
                values.append(None if held is None else _decode(held))
        return values

    def wait(self, key: str, timeout: float) -> bytes | None:
        """The value under `key` as soon as there is one; etcd wakes us."""
        deadline = time.monotonic() + timeout
        while True:
            answer = self._ask("Range", self._message("RangeRequest")(key=self._key(key)))
            held = _first(answer.kvs)
            if held is None:
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                held = self._await(key, answer.header.revision + 1, left)
            if held is not None:
                return _decode(held)

    def delete(self, key: str) -> None:
        """Remove `key`."""
        self._ask("DeleteRange", self._message("DeleteRangeRequest")(key=self._key(key)))

    def multi_set(self, items: Mapping[str, bytes]) -> None:
        """Write all `items`, as many at one moment as etcd takes."""
        for part in _parts(items):
            self._write([self._put(key, value) for key, value in part])

    def beat(self, key: str, value: bytes) -> float:
        """Send a heartbeat, which vanishes when this process does.

        An existing heartbeat is not written again: etcd would keep every revision of it. Then
        only the lease is renewed.
        """
        self._refuse_closed()
        presence = self._presence_lease
        with self._explained("beat"):
            self._job_lease.renew()
            lease = presence.renew(at_once=presence.holds(key, value))
            if not presence.holds(key, value):
                try:
                    self._put_with(lease, key, value)
                except CallError as error:
                    if not is_lease_gone(error):
                        raise
                    self._put_with(presence.renew(lost=lease), key, value)
        return float(presence.ttl)

    def close(self) -> None:
        """End a wait in another thread; the link stays for the agent's other connections."""
        self._is_closed = True
        watch = self._watch
        if watch is not None:
            watch.end(self._closed())

    # --- requests ---------------------------------------------------------------------------------

    def _key(self, key: str) -> bytes:
        return f"{self._client.options.prefix}/{key}".encode()

    def _operation(self, **request: Any) -> Any:
        return self._message("RequestOp")(**request)

    def _put(self, key: str, value: bytes) -> Any:
        request = self._message("PutRequest")(
            key=self._key(key), value=value, lease=self._job_lease.number
        )
        return self._operation(request_put=request)

    def _put_with(self, lease: int, key: str, value: bytes) -> None:
        request = self._message("PutRequest")(key=self._key(key), value=_encode(value), lease=lease)
        self._client.call("KV", "Put", request)
        self._presence_lease.written(lease, key, value)

    def _range(self, key: str) -> Any:
        return self._operation(request_range=self._message("RangeRequest")(key=self._key(key)))

    def _compare(self, key: str, result: str, **target: Any) -> Any:
        compare = self._message("Compare")
        (name,) = target
        return compare(
            key=self._key(key),
            result=compare.CompareResult.Value(result),
            target=compare.CompareTarget.Value("MOD" if name == "mod_revision" else name.upper()),
            **target,
        )

    def _write(
        self, success: Sequence[Any], *, compare: Any = None, otherwise: Sequence[Any] = ()
    ) -> Any:
        """Make a transaction that writes keys of the job, whose lease must be there."""
        request = self._message("TxnRequest")(
            compare=[] if compare is None else [compare], success=success, failure=otherwise
        )
        self._refuse_closed()
        with self._explained("Txn"):
            try:
                return self._client.call("KV", "Txn", request)
            except CallError as error:
                if not is_lease_gone(error):
                    raise
            self._job_lease.ensure()
            return self._client.call("KV", "Txn", request)

    def _ask(self, name: str, request: Any) -> Any:
        self._refuse_closed()
        with self._explained(name):
            return self._client.call("KV", name, request)

    @contextlib.contextmanager
    def _explained(self, operation: str) -> Iterator[None]:
        try:
            yield
        except CallError as error:
            raise self._client.refusal(operation, error) from error

    def _add_to_value(self, key: str, amount: int) -> int:
        """Add to the present value, whoever wrote it; try again while others are faster."""
        while True:
            get = self._message("RangeRequest")(key=self._key(key))
            held = _first(self._ask("Range", get).kvs)
            total = amount if held is None else _number_in(key, held) + amount
            if amount == 0:
                return total
            version, revision = (0, 0) if held is None else (held.version, held.mod_revision)
            answer = self._write(
                [self._put(key, _COUNTER + b"%d" % (total - version - 1))],
                compare=self._compare(key, "EQUAL", mod_revision=revision),
            )
            if answer.succeeded:
                return total

    def _await(self, key: str, revision: int, timeout: float) -> Any:
        """The value written to `key` since `revision`; None in doubt, and after the time-out."""
        self._watch = watch = self._watches.add(self._key(key), revision)
        try:
            self._refuse_closed()  # by a thread that has not seen the watch
            watch.wait(timeout)
            return watch.found
        finally:
            self._watch = None
            self._watches.remove(watch)

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise self._closed()

    def _closed(self) -> RendezvousConnectionError:
        return RendezvousConnectionError(
            f"an operation on etcd at {self._client.options.endpoint} over a closed connection"
        )


def _encode(value: bytes) -> bytes:
    if not value:
        raise ValueError("an empty value")
    return _LITERAL + value if value.startswith(_ESCAPE) else value


def _decode(held: Any) -> bytes:
    """The value of a key, from etcd's KeyValue."""
    value: bytes = held.value
    if value.startswith(_COUNTER):
        offset = value.removeprefix(_COUNTER)
        # Whatever else somebody has put there is for the reader to refuse.
        return b"%d" % (int(offset) + held.version) if _NUMBER.fullmatch(offset) else value
    return value.removeprefix(_LITERAL)


def _number_in(key: str, held: Any) -> int:
    """The value of a counter.

    Raises:
        RendezvousStateError: something else.
    """
    value = _decode(held)
    if _NUMBER.fullmatch(value):
        return int(value)
    raise RendezvousStateError(
        f"the counter under {key!r} holds {value[:40]!r}, which is not a number; something else "
        "has written it"
    )


def _first(found: Sequence[Any]) -> Any:
    return found[0] if found else None


def _parts(items: Mapping[str, bytes]) -> Iterator[list[tuple[str, bytes]]]:
    """The items, encoded, in parts that etcd takes as one transaction."""
    part: list[tuple[str, bytes]] = []
    size = 0
    for key, value in items.items():
        encoded = _encode(value)
        if part and (len(part) == _MOST_OPERATIONS or size + len(encoded) > _MOST_BYTES):
            yield part
            part, size = [], 0
        part.append((key, encoded))
        size += len(encoded)
    if part:
        yield part
