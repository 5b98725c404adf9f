"""The store on etcd: values, counters, and heartbeats.

A counter is a key that is written again and again. Its value is the key's version, so that taking a
ticket is one transaction that never conflicts. A value that was set is stored as an offset.
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
from plaunch_rendezvous_etcd.watching import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from plaunch_rendezvous_etcd.client import EtcdClient
    from plaunch_rendezvous_etcd.leases import JobLease, PresenceLease

_MAX_OPERATIONS = 128  # in one transaction; etcd's own default
_MAX_BYTES = 1 << 20  # in one transaction; etcd takes requests of 1.5 MiB
_MAX_SURPLUS = 4  # keys that a range may read for each key that is wanted
_ESCAPE = b"\0"  # begins a value with a special encoding
_COUNTER = b"\0+"  # followed by the offset in decimal digits
_LITERAL = b"\0="  # followed by a value that begins with the escape
_NUMBER = re.compile(rb"-?[0-9]{1,18}")  # the value of a counter; stricter than Python's int()


class EtcdStore(RendezvousStore):
    """One connection. All connections of an agent share its client and leases.

    Args:
        client: the client of etcd.
        job_lease: keeps the keys of the job.
        presence_lease: keeps the heartbeat of this agent.
    """

    def __init__(
        self,
        client: EtcdClient,
        job_lease: JobLease,
        presence_lease: PresenceLease,
    ) -> None:
        self._client = client
        self._job_lease = job_lease
        self._presence_lease = presence_lease
        self._message = client.protocol.message
        self._is_closed = False
        self._watch: Watch | None = None

    def set(self, key: str, value: bytes) -> None:
        """Write `value`."""
        self._write([self._put(key, _encode(value))])

    def add(self, key: str, amount: int) -> int:
        """Add `amount`; adding 1 is one transaction, however many clients add at once.

        Raises:
            RendezvousStateError: the value is not a number.
        """
        if amount == 1:
            # An existing key keeps its value, and its version counts.
            there = self._message("PutRequest")(
                key=self._key(key), ignore_value=True, lease=self._job_lease.id
            )
            answer = self._write(
                [self._operation(request_put=there), self._get(key)],
                compare=self._compare(key, "GREATER", version=0),
                otherwise=[self._put(key, _COUNTER + b"0"), self._get(key)],
            )
            (held,) = answer.responses[1].response_range.kvs
            if held.value.startswith(_COUNTER):
                return _number_in(key, held)
        return self._add_to_value(key, amount)

    def compare_set(self, key: str, expected: bytes | None, desired: bytes) -> bytes | None:
        """Write `desired` if `key` holds `expected`; return the value it has then."""
        compare = (
            self._compare(key, "EQUAL", version=0)
            if expected is None
            else self._compare(key, "EQUAL", value=_encode(expected))
        )
        while True:
            answer = self._write(
                [self._put(key, _encode(desired))],
                compare=compare,
                otherwise=[self._get(key)],
            )
            if answer.succeeded:
                return desired
            held = _first_or_none(answer.responses[0].response_range.kvs)
            value = None if held is None else _decode(held)
            if held is None or value != expected:
                return value
            # A counter, whose stored value differs from the value that it is read as.
            compare = self._compare(key, "EQUAL", mod_revision=held.mod_revision)

    def multi_get(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of all `keys`; they may be of different revisions.

        The membership does not need one revision: it compares each record with what it knows of
        that record, and reads in two operations where the order matters. A transaction would give
        one revision, but etcd 3.5.0 to 3.5.4 panic when the deadline of a read-only one passes
        (etcd issue 14110).
        """
        wanted = [self._key(key) for key in keys]
        # Records of one kind are neighbours, and are read with one request.
        groups: dict[tuple[bytes, int], list[bytes]] = {}
        for key in wanted:
            groups.setdefault((key.rpartition(b"/")[0], len(key)), []).append(key)
        held: dict[bytes, Any] = {}
        missed: list[bytes] = []
        requests = [self._range(*sorted(group)) for group in groups.values()]
        for group, answer in zip(groups.values(), self._read(requests), strict=True):
            held.update((found.key, found) for found in answer.kvs)
            if answer.more:
                # Too many other keys are between these. The remaining ones are read one by one.
                missed += [key for key in group if key > answer.kvs[-1].key]
        for answer in self._read([self._range(key) for key in missed]):
            held.update((found.key, found) for found in answer.kvs)
        return [_decode(held[key]) if key in held else None for key in wanted]

    def wait(self, key: str, timeout: float) -> bytes | None:
        """Return the value of `key` as soon as it has one; etcd wakes this call."""
        deadline = time.monotonic() + timeout
        while True:
            (answer,) = self._read([self._range(self._key(key))])
            held = _first_or_none(answer.kvs)
            if held is None:
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                held = self._await(key, answer.header.revision + 1, left)
            if held is not None:
                return _decode(held)

    def delete(self, key: str) -> None:
        """Remove `key`."""
        request = self._message("DeleteRangeRequest")(key=self._key(key))
        self._refuse_closed()
        with self._converted_errors("DeleteRange"):
            self._client.call("KV", "DeleteRange", request)

    def multi_set(self, items: Mapping[str, bytes]) -> None:
        """Write all `items`, as many in one transaction as etcd allows."""
        for part in _batches(items):
            self._write([self._put(key, value) for key, value in part])

    def beat(self, key: str, value: bytes) -> float:
        """Send a heartbeat, which etcd deletes after this process has ended.

        An existing heartbeat is not written again, because etcd would keep every revision of it.
        Only the lease is renewed.
        """
        self._refuse_closed()
        presence = self._presence_lease
        with self._converted_errors("beat"):
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
        """End a wait on another thread; the link stays open for the agent's other connections."""
        self._is_closed = True
        watch = self._watch
        if watch is not None:
            watch.end()

    # --- requests ---------------------------------------------------------------------------------

    def _key(self, key: str) -> bytes:
        return f"{self._client.options.prefix}/{key}".encode()

    def _operation(self, **request: Any) -> Any:
        return self._message("RequestOp")(**request)

    def _put(self, key: str, value: bytes) -> Any:
        request = self._message("PutRequest")(
            key=self._key(key), value=value, lease=self._job_lease.id
        )
        return self._operation(request_put=request)

    def _put_with(self, lease: int, key: str, value: bytes) -> None:
        request = self._message("PutRequest")(key=self._key(key), value=_encode(value), lease=lease)
        self._client.call("KV", "Put", request)
        self._presence_lease.written(lease, key, value)

    def _range(self, first: bytes, *others: bytes) -> Any:
        """Return a request for one key, or for a sorted range; the latter also finds other keys."""
        if not others:
            return self._message("RangeRequest")(key=first)
        limit = _MAX_SURPLUS * (1 + len(others))
        return self._message("RangeRequest")(key=first, range_end=others[-1] + b"\0", limit=limit)

    def _get(self, key: str) -> Any:
        return self._operation(request_range=self._range(self._key(key)))

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
        """Run a transaction that writes keys of the job; recreate its lease if necessary."""
        request = self._message("TxnRequest")(
            compare=[] if compare is None else [compare], success=success, failure=otherwise
        )
        self._refuse_closed()
        with self._converted_errors("Txn"):
            try:
                return self._client.call("KV", "Txn", request)
            except CallError as error:
                if not is_lease_gone(error):
                    raise
            self._job_lease.ensure()
            return self._client.call("KV", "Txn", request)

    def _read(self, requests: Sequence[Any]) -> list[Any]:
        self._refuse_closed()
        if not requests:
            return []
        with self._converted_errors("Range"):
            return self._client.call_all("KV", "Range", requests)

    @contextlib.contextmanager
    def _converted_errors(self, operation: str) -> Iterator[None]:
        try:
            yield
        except CallError as error:
            raise self._client.refusal(operation, error) from error

    def _add_to_value(self, key: str, amount: int) -> int:
        """Add to the current value in a compare-and-set, which is retried when it conflicts."""
        while True:
            (answer,) = self._read([self._range(self._key(key))])
            held = _first_or_none(answer.kvs)
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
        """Return the value written to `key` since `revision`; None if unknown or timed out."""
        self._watch = watch = Watch(self._client, self._key(key), revision)
        try:
            self._refuse_closed()  # `close` may not have seen the watch
            return watch.wait(timeout)
        finally:
            self._watch = None

    def _refuse_closed(self) -> None:
        if self._is_closed:
            endpoint = self._client.options.endpoint
            raise RendezvousConnectionError(
                f"an operation on etcd at {endpoint} over a closed connection", names_store=True
            )


def _encode(value: bytes) -> bytes:
    if not value:
        raise ValueError("an empty value")
    return _LITERAL + value if value.startswith(_ESCAPE) else value


def _decode(held: Any) -> bytes:
    """Return the value of a key, from etcd's KeyValue."""
    value: bytes = held.value
    if value.startswith(_COUNTER):
        offset = value.removeprefix(_COUNTER)
        # Any other value is returned as it is; the caller rejects it.
        return b"%d" % (int(offset) + held.version) if _NUMBER.fullmatch(offset) else value
    return value.removeprefix(_LITERAL)


def _number_in(key: str, held: Any) -> int:
    """Return the value of a counter.

    Raises:
        RendezvousStateError: it is not a number.
    """
    value = _decode(held)
    if _NUMBER.fullmatch(value):
        return int(value)
    raise RendezvousStateError(
        f"the counter under {key!r} holds {value[:40]!r}, which is not a number; something else "
        "has written it"
    )


def _first_or_none(found: Sequence[Any]) -> Any:
    return found[0] if found else None


def _batches(items: Mapping[str, bytes]) -> Iterator[list[tuple[str, bytes]]]:
    """Split the encoded items into batches that fit into one transaction."""
    part: list[tuple[str, bytes]] = []
    size = 0
    for key, value in items.items():
        encoded = _encode(value)
        if part and (len(part) == _MAX_OPERATIONS or size + len(encoded) > _MAX_BYTES):
            yield part
            part, size = [], 0
        part.append((key, encoded))
        size += len(encoded)
    if part:
        yield part
