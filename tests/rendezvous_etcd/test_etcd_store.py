"""The store on etcd, beyond the conformance suite."""

from __future__ import annotations

import contextlib
import os
import random
import re
import time
import urllib.request

import pytest
from plaunch.errors import RendezvousConnectionError, RendezvousStateError
from plaunch_rendezvous_etcd import EtcdAccessError
from plaunch_rendezvous_etcd.backend import EtcdSession
from plaunch_rendezvous_etcd.client import EtcdBounds
from plaunch_rendezvous_etcd.options import read_options
from plaunch_rendezvous_etcd.protocol import load_protocol

from helpers.calls import Call
from helpers.clock import Clock
from helpers.waiting import wait_until


class Recorded(EtcdSession):
    """Records its requests; those whose name is in `failing` fail.

    `after_read` is called once, after the next read and before its result is used.
    """

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.requests, self.failing, self.after_read = [], set(), None

    @property
    def names(self):
        """The names of the requests."""
        return [name for name, _ in self.requests]

    def call_all(self, service, name, requests):
        if name in self.failing:
            raise RendezvousConnectionError("no answer")
        self.requests += [(name, request) for request in requests]
        answers = super().call_all(service, name, requests)
        if name == "Range" and self.after_read is not None:
            after_read, self.after_read = self.after_read, None
            after_read()
        return answers


@pytest.fixture
def recorded(params_of, etcd_server):
    with contextlib.ExitStack() as stack:

        def recorded(presence_ttl=6.0, job_ttl=7200.0, **options):
            params = params_of(etcd_server.endpoint)
            times = {"answer_timeout": 5.0, "presence_ttl": presence_ttl, "job_ttl": job_ttl}
            client = Recorded(
                read_options(params, {}), load_protocol(), params.run_id, **times, **options
            )
            stack.callback(client.close)
            return client

        yield recorded


@pytest.fixture
def client(open_session, etcd_server):
    return open_session(etcd_server.endpoint)


@pytest.fixture
def store(client):
    return client.connect()


def held(client, key):
    """Return what etcd holds for a key: value, version, lease."""
    full = f"{client.options.prefix}/{key}".encode()
    answer = client.call("KV", "Range", client.protocol.message("RangeRequest")(key=full))
    return answer.kvs[0] if answer.kvs else None


def revoke(client, number):
    client.call("Lease", "LeaseRevoke", client.protocol.message("LeaseRevokeRequest")(ID=number))


def ttl_of(client, number):
    request = client.protocol.message("LeaseTimeToLiveRequest")(ID=number)
    return client.call("Lease", "LeaseTimeToLive", request).grantedTTL


# --- values and counters --------------------------------------------------------------------------


@pytest.mark.parametrize("value", [b"\0", b"\0+5", b"\0=x", b"\xff\xfe", "größer".encode(), b"+1"])
def test_any_bytes_come_back(store, value):
    key = f"any/{value.hex()}"
    store.set(key, value)
    assert store.compare_set(f"{key}/compared", None, value) == value
    assert store.compare_set(key, value, b"new") == b"new"
    store.multi_set({f"{key}/many": value})
    assert store.multi_get([f"{key}/compared", f"{key}/many"]) == [value] * 2
    assert store.wait(f"{key}/many", 1) == value


def test_an_empty_value_is_rejected(store):
    with pytest.raises(ValueError, match="empty"):
        store.set("empty", b"")


def test_every_reader_sees_a_counter_as_a_number(store):
    for amount, total in ((1, 1), (1, 2), (5, 7), (0, 7), (1, 8), (-3, 5), (1, 6)):
        assert store.add("counter", amount) == total
    assert store.multi_get(["counter"]) == [b"6"]
    assert store.wait("counter", 1) == b"6"
    assert store.compare_set("counter", b"5", b"10") == b"6"
    assert store.compare_set("counter", b"6", b"10") == b"10"
    assert store.add("counter", 1) == 11
    store.delete("counter")
    assert store.add("counter", 1) == 1


@pytest.mark.parametrize(
    "garbage",
    [b"garbage", b"\0+", b"\0+x", b"\0+1_0", b"\0+" + b"9" * 5000, b"9" * 5000, b" 1", b"\xff"],
)
@pytest.mark.parametrize("amount", [0, 1, 2])
def test_garbage_in_a_counter_is_reported_and_affects_no_other_key(client, store, garbage, amount):
    key = f"garbage/{amount}/{garbage[:9].hex()}/{len(garbage)}"
    put = client.protocol.message("PutRequest")
    full = f"{client.options.prefix}/{key}".encode()
    client.call("KV", "Put", put(key=full, value=garbage))
    with pytest.raises(RendezvousStateError, match="which is not a number") as error:
        store.add(key, amount)
    assert key in str(error.value)
    assert len(str(error.value)) < 300
    # A reader gets it unchanged, and rejects it.
    assert store.multi_get([key]) == [store.wait(key, 1)] == [garbage]
    assert store.compare_set(key, b"other", b"new") == garbage
    assert store.compare_set(key, garbage, b"5") == b"5"
    assert store.add(key, 1) == 6


def test_reading_a_counter_writes_nothing(client, store):
    assert store.add("unread", 0) == 0
    assert held(client, "unread") is None
    store.add("unread", 1)
    assert store.add("unread", 0) == 1
    assert held(client, "unread").version == 1


def test_amounts_other_than_1_are_never_lost(open_session, etcd_server):
    stores = [open_session(etcd_server.endpoint).connect() for _ in range(4)]
    calls = [
        Call(lambda s=store: [s.add("mixed", amount) for amount in (1, 3, 1, -2) * 5])
        for store in stores
    ]
    assert all(call.ended() for call in calls)
    assert [call.error for call in calls] == [None] * 4
    assert stores[0].add("mixed", 0) == 4 * 5 * 3


def test_a_ticket_is_one_request_whatever_the_contention(recorded):
    client = recorded()
    store = client.connect()
    client.requests.clear()
    for _ in range(3):
        store.add("tickets", 1)
    assert client.names == ["Txn"] * 3


# --- reads ----------------------------------------------------------------------------------------


def test_no_transaction_only_reads(recorded):
    """etcd 3.5.0 to 3.5.4 panic when the deadline of such a transaction passes."""
    client = recorded()
    store = client.connect()
    for amount in (1, 1, 0, 5):
        store.add("reads/counter", amount)
    store.compare_set("reads/compared", None, b"x")
    store.compare_set("reads/compared", b"other", b"y")
    store.set("reads/set", b"x")
    store.multi_set({f"reads/many/{n}": b"x" for n in range(3)})
    keys = ["reads/counter", "reads/set", "reads/none", *(f"reads/many/{n}" for n in range(3))]
    assert store.multi_get(keys) == [b"7", b"x", None, b"x", b"x", b"x"]
    assert store.wait("reads/set", 1) == b"x"
    assert store.wait("reads/none", 0.05) is None
    store.beat("reads/beat", b"x")
    store.delete("reads/set")
    transactions = [request for name, request in client.requests if name == "Txn"]
    assert len(transactions) == 7
    for request in transactions:
        assert any(op.HasField("request_put") for op in (*request.success, *request.failure))


@pytest.mark.parametrize(
    ("keys", "count"),
    [
        (["few/a"], 1),
        (["few/a", "few/b", "few/c"], 1),
        (["few/a", "few/a"], 1),
        (["few/a", "few/c", "few/other/a"], 2),
        (["few/9", "few/10", "few/11"], 2),  # these are not neighbours
        ([], 0),
    ],
)
def test_neighbours_are_read_with_one_request(recorded, keys, count):
    client = recorded()
    store = client.connect()
    store.multi_set({key: key.encode() for key in ("few/a", "few/b", "few/9", "few/10")})
    client.requests.clear()
    written = {"few/a", "few/b", "few/9", "few/10"}
    assert store.multi_get(keys) == [key.encode() if key in written else None for key in keys]
    assert client.names == ["Range"] * count


def test_keys_far_apart_are_found_among_many_others(recorded):
    client = recorded()
    store = client.connect()
    everything = {f"apart/{n:04}": b"%d" % n for n in range(1000)}
    store.multi_set(everything)
    keys = [f"apart/{n:04}" for n in (999, 0, 500, 3, 998, 5000)]
    client.requests.clear()
    assert store.multi_get(keys) == [b"999", b"0", b"500", b"3", b"998", None]
    # The range is read up to its limit, and then the remaining keys.
    assert client.names == ["Range"] * 5
    assert client.requests[0][1].limit == 24
    client.requests.clear()
    assert store.multi_get(list(everything)) == list(everything.values())
    assert client.names == ["Range"]


def test_more_requests_than_are_sent_at_once(store):
    items = {f"at once/{n}/x": b"%d" % n for n in range(300)}
    store.multi_set(items)
    assert store.multi_get(list(items)) == list(items.values())


def test_a_starved_server_survives_reads_that_time_out(open_session, own_etcd_server):
    keys = [f"starved/{n}" for n in range(128)]
    open_session(own_etcd_server.endpoint).connect().multi_set(dict.fromkeys(keys, b"x" * 2000))
    failures = []

    def read_until(count):
        bounds = EtcdBounds(answer=random.uniform(0.001, 0.01))
        store = None
        while len(failures) < count and own_etcd_server.process.poll() is None:
            try:
                store = store or open_session(own_etcd_server.endpoint, bounds=bounds).connect()
                store.multi_get(keys)
            except RendezvousConnectionError as error:
                failures.append(error)

    readers = [Call(read_until, 500) for _ in range(16)]
    while not all(reader.ended(0.02) for reader in readers):
        own_etcd_server.pause()
        time.sleep(0.005)
        own_etcd_server.resume()
    assert [reader.error for reader in readers] == [None] * 16
    assert own_etcd_server.process.poll() is None, own_etcd_server.log[-2000:]
    assert sum("DEADLINE_EXCEEDED" in str(error) for error in failures) > 50
    store = open_session(own_etcd_server.endpoint).connect()
    assert store.multi_get(keys) == [b"x" * 2000] * 128


def test_more_operations_than_a_transaction_allows(store):
    items = {f"many/{n}": b"%d" % n for n in range(300)}
    store.multi_set(items)
    assert store.multi_get(list(items)) == list(items.values())
    large = {f"large/{n}": b"x" * (1 << 19) for n in range(5)}
    store.multi_set(large)
    assert store.multi_get(list(large)) == list(large.values())


def test_rejected_requests_are_not_retried(store):
    for size in (1_600_000, 3_000_000):
        with pytest.raises(EtcdAccessError, match=r"refuses Txn: .* large.*--max-request-bytes"):
            store.set("too large", b"x" * size)
    store.set("small", b"x")


# --- leases ---------------------------------------------------------------------------------------


def test_all_keys_of_a_job_are_attached_to_one_lease(open_session, etcd_server):
    one = open_session(etcd_server.endpoint, "leased", job_ttl=100)
    two = open_session(etcd_server.endpoint, "leased", job_ttl=100)
    other = open_session(etcd_server.endpoint, "another job", job_ttl=200)
    for name, client in (("one", one), ("two", two), ("other", other)):
        client.connect().set(f"leased/{name}", b"x")
        client.connect().add(f"leased/{name}/counter", 1)
        client.connect().add(f"leased/{name}/counter", 1)
        client.connect().compare_set(f"leased/{name}/compared", None, b"x")
    for name in ("one", "two"):
        for suffix in ("", "/counter", "/compared"):
            assert held(one, f"leased/{name}{suffix}").lease == one.job_lease.id
    assert held(one, "leased/other").lease != one.job_lease.id
    assert ttl_of(one, one.job_lease.id) == 100
    revoke(one, one.job_lease.id)
    keys = ["leased/one", "leased/two/counter", "leased/other"]
    assert two.connect().multi_get(keys) == [None, None, b"x"]


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.set("again", b"1"),
        lambda store: store.add("again", 1),
        lambda store: store.compare_set("again", None, b"1"),
        lambda store: store.multi_set({"again": b"1"}),
        lambda store: store.beat("again", b"1"),
    ],
)
def test_an_expired_lease_is_replaced(client, store, write):
    store.set("before", b"x")
    store.beat("sign", b"x")
    revoke(client, client.job_lease.id)
    revoke(client, held_lease := client.presence_lease.renew())
    store.delete("again")
    write(store)
    assert store.multi_get(["before", "sign", "again"]) == [None, None, b"1"]
    assert held(client, "again").lease not in (0, held_lease)


def test_a_heartbeat_expires_with_its_process(open_session, etcd_server):
    dead = open_session(etcd_server.endpoint, keep_alive_interval=0.4)
    alive = open_session(etcd_server.endpoint, keep_alive_interval=0.4)
    store = alive.connect()
    dead.connect().beat("beat/dead", b"1")
    dead.connect().set("beat/stays", b"1")
    dead.close()
    deadline, beats = time.monotonic() + 20, 0
    while store.multi_get(["beat/dead"]) != [None]:
        assert time.monotonic() < deadline
        beats += 1
        store.beat("beat/alive", b"%d" % beats)
        time.sleep(0.2)
    assert store.multi_get(["beat/alive", "beat/stays"]) == [b"%d" % beats, b"1"]
    assert held(alive, "beat/alive").lease == alive.presence_lease.renew()


def test_an_existing_heartbeat_is_not_written_again(recorded):
    client = recorded()
    store = client.connect()
    assert store.beat("constant", b"1") == 6.0
    first = held(client, "constant")
    client.requests.clear()
    for _ in range(3):
        client.connect().beat("constant", b"1")
    # A heartbeat over a broken connection must fail.
    assert client.names == ["LeaseKeepAlive"] * 3
    assert held(client, "constant") == first
    store.beat("constant", b"2")
    assert held(client, "constant").value == b"2"
    assert held(client, "constant").lease == first.lease


@pytest.mark.parametrize("is_noticed_by", ["renewal", "write"])
def test_a_heartbeat_whose_lease_expired_is_written_at_once(client, store, is_noticed_by):
    store.beat("revoked", b"1")
    before = held(client, "revoked").lease
    revoke(client, before)
    assert held(client, "revoked") is None
    value = b"1" if is_noticed_by == "renewal" else b"2"
    store.beat("revoked", value)
    again = held(client, "revoked")
    assert again.value == value
    assert again.lease not in (0, before)
    store.beat("revoked", value)
    assert held(client, "revoked") == again


def test_a_failed_write_is_repeated(recorded):
    client = recorded()
    store = client.connect()
    store.beat("failed", b"1")
    client.failing.add("Put")
    with pytest.raises(RendezvousConnectionError):
        store.beat("failed", b"2")
    client.failing.clear()
    store.beat("failed", b"2")
    assert held(client, "failed").value == b"2"


def test_beat_returns_the_duration_that_etcd_granted(open_session, etcd_server):
    client = open_session(etcd_server.endpoint, keep_alive_interval=0.04)
    assert client.connect().beat("short", b"1") == 2.0
    assert ttl_of(client, client.presence_lease.renew()) == 2


def test_a_late_renewal_is_detected(open_session, etcd_server):
    clock = Clock()
    client = open_session(etcd_server.endpoint, clock=clock)
    client.connect().beat("late", b"1")
    lease = client.presence_lease.renew()
    clock.now += client.job_lease.ttl
    revoke(client, lease)
    revoke(client, client.job_lease.id)
    # The renewal comes first, before a write that would be rejected.
    assert client.presence_lease.renew() != lease
    client.job_lease.renew()
    assert ttl_of(client, client.job_lease.id) > 0


def test_leases_are_renewed_in_time(recorded):
    clock, names = Clock(1000.0), []
    client = recorded(presence_ttl=30, job_ttl=60, clock=clock)
    store = client.connect()
    for second in range(31):
        clock.now = 1000.0 + second
        store.beat("renewed", b"%d" % (second + 1))
        names += [(second, name) for name in client.names if name.startswith("Lease")]
        client.requests.clear()
    alive = "LeaseKeepAlive"
    assert names == [
        (0, alive),
        (0, "LeaseGrant"),
        (0, "LeaseGrant"),
        (10, alive),
        (20, alive),
        (20, alive),
        (30, alive),
    ]


# --- waiting --------------------------------------------------------------------------------------


def test_waits_need_no_threads_of_their_own(client):
    stores = [client.connect() for _ in range(20)]
    stores[0].set("one/before", b"x")  # grpc starts its threads with the first call
    before = len(os.listdir("/proc/self/task"))
    calls = [Call(store.wait, f"one/{n % 10}", 30) for n, store in enumerate(stores)]
    assert not calls[0].ended(0.3)
    # Beside the waiting threads, grpc's own pool may grow.
    assert len(os.listdir("/proc/self/task")) <= before + len(calls) + 2
    client.connect().multi_set({f"one/{n}": b"%d" % n for n in range(10)})
    assert all(call.ended() for call in calls)
    assert [call.result for call in calls] == [b"%d" % (n % 10) for n in range(20)]


def test_an_ended_stream_is_freed(client):
    link, message = client.link(), client.protocol.message
    create = message("WatchCreateRequest")(key=b"/freed", start_revision=1)
    request = message("WatchRequest")(create_request=create)

    def open_and_end(count):
        for _ in range(count):
            stream = link.stream("Watch", "Watch", request, 30)
            assert next(stream).created
            client.protocol.end_stream(stream)

    open_and_end(100)
    before = resident_kilobytes()
    open_and_end(500)
    # grpc keeps 20 kB of each stream whose end is not read: 10 MB.
    assert resident_kilobytes() - before < 4000


def resident_kilobytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


def test_watches_without_a_waiter_are_cancelled(own_etcd_server, open_session):
    def watchers():
        with urllib.request.urlopen(f"http://{own_etcd_server.endpoint}/metrics") as page:
            found = re.search(rb"(?m)^etcd_debugging_mvcc_watcher_total (\d+)", page.read())
        return int(found[1])

    store = open_session(own_etcd_server.endpoint).connect()
    call = Call(store.wait, "cancelled", 30)
    wait_until(lambda: watchers() == 1, "etcd has the watch")
    store.close()
    assert call.ended()
    wait_until(lambda: watchers() == 0, "no watch is left")


def test_a_watch_with_compacted_revisions_reads_again(recorded, store):
    client = recorded()

    def write_and_compact():
        store.set("compacted/key", b"now")
        store.set("compacted/other", b"y")
        last = held(client, "compacted/other").mod_revision
        client.call("KV", "Compact", client.protocol.message("CompactionRequest")(revision=last))

    late = client.connect()
    client.after_read = write_and_compact
    client.requests.clear()
    call = Call(late.wait, "compacted/key", 30)
    assert call.ended()
    assert call.result == b"now"
    assert client.names.count("Compact") == 1


def test_a_closed_client_ends_everything(client):
    stores = [client.connect() for _ in range(3)]
    calls = [Call(store.wait, "never", 60) for store in stores]
    assert not any(call.ended(0.2) for call in calls)
    client.close()
    client.close()
    assert all(call.ended(5) for call in calls)
    assert {type(call.error) for call in calls} == {RendezvousConnectionError}
    with pytest.raises(RendezvousConnectionError, match="closed"):
        client.connect()
    with pytest.raises(RendezvousConnectionError, match="closed"):
        stores[0].wait("never", 1)
