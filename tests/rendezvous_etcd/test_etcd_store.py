"""The store on etcd, beyond the conformance suite."""

from __future__ import annotations

import threading
import time

import pytest
from plaunch.errors import RendezvousConnectionError, RendezvousStateError
from plaunch_rendezvous_etcd import EtcdAccessError
from plaunch_rendezvous_etcd.options import read_options
from plaunch_rendezvous_etcd.protocol import load_protocol
from plaunch_rendezvous_etcd.session import EtcdSession

from helpers.calls import Call
from helpers.waiting import wait_until


@pytest.fixture
def create_client(params_of):
    clients = []

    def create(endpoint, run_id=None, presence_ttl=6.0, **config):
        params = params_of(endpoint, run_id, **config)
        options = read_options(params, {})
        client = EtcdSession(
            options,
            load_protocol(),
            params.run_id,
            presence_ttl=presence_ttl,
            job_ttl=options.job_ttl,
        )
        clients.append(client)
        return client

    yield create
    for client in clients:
        client.close()


@pytest.fixture
def client(create_client, etcd_server):
    return create_client(etcd_server.endpoint)


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


def test_amounts_other_than_1_are_never_lost(create_client, etcd_server):
    stores = [create_client(etcd_server.endpoint).connect() for _ in range(4)]
    calls = [
        Call(lambda s=store: [s.add("mixed", amount) for amount in (1, 3, 1, -2) * 5])
        for store in stores
    ]
    assert all(call.ended() for call in calls)
    assert [call.error for call in calls] == [None] * 4
    assert stores[0].add("mixed", 0) == 4 * 5 * 3


def test_a_ticket_is_one_request_whatever_the_contention(client, store, monkeypatch):
    asked = []
    call = client.call
    monkeypatch.setattr(client, "call", lambda *a: asked.append(a[1]) or call(*a))
    for _ in range(3):
        store.add("tickets", 1)
    assert asked == ["Txn"] * 3


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


def test_all_keys_of_a_job_are_attached_to_one_lease(create_client, etcd_server):
    one = create_client(etcd_server.endpoint, "leased", job_ttl=100)
    two = create_client(etcd_server.endpoint, "leased", job_ttl=100)
    other = create_client(etcd_server.endpoint, "another job", job_ttl=200)
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


def test_a_heartbeat_expires_with_its_process(create_client, etcd_server):
    dead = create_client(etcd_server.endpoint, presence_ttl=1)
    alive = create_client(etcd_server.endpoint, presence_ttl=1)
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


def test_an_existing_heartbeat_is_not_written_again(client, store, monkeypatch):
    assert store.beat("constant", b"1") == 6.0
    first = held(client, "constant")
    asked = []
    call = client.call
    monkeypatch.setattr(client, "call", lambda *a: asked.append(a[1]) or call(*a))
    for _ in range(3):
        client.connect().beat("constant", b"1")
    # A heartbeat over a broken connection must fail.
    assert asked == ["LeaseKeepAlive"] * 3
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


def test_a_failed_write_is_repeated(client, store, monkeypatch):
    store.beat("failed", b"1")
    call = client.call

    def fail(service, name, request):
        if name == "Put":
            raise RendezvousConnectionError("no answer")
        return call(service, name, request)

    with monkeypatch.context() as patch:
        patch.setattr(client, "call", fail)
        with pytest.raises(RendezvousConnectionError):
            store.beat("failed", b"2")
    store.beat("failed", b"2")
    assert held(client, "failed").value == b"2"


def test_beat_returns_the_duration_that_etcd_granted(create_client, etcd_server):
    client = create_client(etcd_server.endpoint, presence_ttl=0.1)
    assert client.connect().beat("short", b"1") == 2.0
    assert ttl_of(client, client.presence_lease.renew()) == 2


def test_a_late_renewal_is_detected(client, store, monkeypatch):
    store.beat("late", b"1")
    lease = client.presence_lease.renew()
    for one in (client.presence_lease, client.job_lease):
        monkeypatch.setattr(one, "_renew_at", 0.0)
    revoke(client, lease)
    revoke(client, client.job_lease.id)
    # The renewal comes first, before a write that would be rejected.
    assert client.presence_lease.renew() != lease
    client.job_lease.renew()
    assert ttl_of(client, client.job_lease.id) > 0


def test_leases_are_renewed_in_time(create_client, etcd_server, monkeypatch):
    client = create_client(etcd_server.endpoint, presence_ttl=30, job_ttl=60)
    now = [1000.0]
    monkeypatch.setattr("plaunch_rendezvous_etcd.leases.time.monotonic", lambda: now[0])
    renewed = []
    call = client.call
    monkeypatch.setattr(client, "call", lambda *a: renewed.append((now[0], a[1])) or call(*a))
    store = client.connect()
    for second in range(31):
        now[0] = 1000.0 + second
        store.beat("renewed", b"%d" % (second + 1))
    names = [(at - 1000, name) for at, name in renewed if name.startswith("Lease")]
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


def test_one_stream_serves_all_waits_of_an_agent(client):
    stores = [client.connect() for _ in range(20)]
    before = threading.active_count()
    calls = [Call(store.wait, f"one/{n % 10}", 30) for n, store in enumerate(stores)]
    assert not calls[0].ended(0.3)
    # Beside the waiting threads: the reader, and two of grpc's.
    assert threading.active_count() <= before + len(calls) + 3
    client.connect().multi_set({f"one/{n}": b"%d" % n for n in range(10)})
    assert all(call.ended() for call in calls)
    assert [call.result for call in calls] == [b"%d" % (n % 10) for n in range(20)]


def test_watches_without_a_waiter_are_cancelled(client, store):
    for n in range(3):
        assert store.wait(f"cancelled/{n}", 0.05) is None
    watches = client.watches
    wait_until(
        lambda: not (watches._active or watches._pending or watches._waiting), "no watch is left"
    )


def test_a_watch_with_compacted_revisions_reads_again(client, store, monkeypatch):
    store.set("compacted/other", b"x")
    revision = held(client, "compacted/other").mod_revision
    add = client.watches.add
    revisions = []

    def add_late(key, from_revision):
        # The key was written between the read and the watch, and then compacted.
        if not revisions:
            writer = client.connect()
            writer.set("compacted/key", b"now")
            writer.set("compacted/other", b"y")
            compact = client.protocol.message("CompactionRequest")
            last = held(client, "compacted/other").mod_revision
            client.call("KV", "Compact", compact(revision=last))
            from_revision = revision
        revisions.append(from_revision)
        return add(key, from_revision)

    monkeypatch.setattr(client.watches, "add", add_late)
    call = Call(store.wait, "compacted/key", 30)
    assert call.ended()
    assert call.result == b"now"
    assert len(revisions) == 1


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
