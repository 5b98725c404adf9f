"""Counters are not signed: values that are out of range or not numbers are reported."""

from __future__ import annotations

import threading
import tracemalloc

import pytest
from plaunch.errors import RendezvousConnectionError, RendezvousStateError
from plaunch.rendezvous import ChangeKind, RendezvousParameters
from plaunch_membership import DynamicRendezvousHandler, StoreAccess
from plaunch_membership.keys import entry, tickets
from plaunch_membership.operations import Add, MultiGet
from plaunch_membership.records import RecordError
from plaunch_membership.shared_log import SharedLogReader
from plaunch_membership.testing import MemoryStore

from helpers.waiting import wait_until

LOG = "job/round/0/joined"
SAYS = [b"garbage", b"1000000", b"-3", b"9" * 30, b"%d" % 2**62, b""]


def perform(routine, store):
    """Return the result of a routine that does not wait."""
    result = None
    while True:
        try:
            operation = routine.send(result)
        except StopIteration as end:
            return end.value
        result = operation.run(store)


def take(store, *numbers):
    """Take tickets of the log, and write records for the given ones."""
    for number in range(1, max(numbers) + 1):
        assert Add(tickets(LOG)).run(store) == number
        if number in numbers:
            store.set(entry(LOG, number), b"%d" % number)


def test_a_log_is_read_once_and_holes_are_filled_later(board):
    store = board.connect()
    take(store, 1, 3, 4)
    reader = SharedLogReader(LOG, max_nodes=2)
    assert [ticket for ticket, _, _ in perform(reader.read(), store)] == [1, 3, 4]
    assert reader.has_holes
    assert perform(reader.read(), store) == []
    store.set(entry(LOG, 2), b"2")
    assert [ticket for ticket, _, _ in perform(reader.read(), store)] == [2]
    assert not reader.has_holes


def test_a_log_is_read_in_parts(board):
    store = board.connect()
    take(store, *range(1, 20))
    reader = SharedLogReader(LOG, max_nodes=2)
    found = []
    for _ in range(7):
        part = perform(reader.read(3), store)
        assert len(part) <= 3
        found += [ticket for ticket, _, _ in part]
        if len(found) < 19:
            assert perform(reader.wait(1e9), store) is None, "there is more, so none is waited for"
    assert found == list(range(1, 20))
    assert isinstance(next(reader.wait(1.0)).timeout, float)


def test_holes_that_stay_are_read_less_often(board):
    store = board.connect()
    take(store, 1, 3)
    reader = SharedLogReader(LOG, max_nodes=2)
    waits = []
    for _ in range(100):
        perform(reader.read(), store)
        waits.append(next(reader.wait(5.0)))
    assert (waits[0].key, waits[0].timeout) == (entry(LOG, 2), 0.05)
    assert (waits[-1].key, waits[-1].timeout) == (entry(LOG, 4), 5.0)
    store.set(entry(LOG, 2), b"2")
    assert [ticket for ticket, _, _ in perform(reader.read(), store)] == [2]


def test_a_record_without_a_ticket_is_not_found_again_and_again(simulate):
    """The leader would query the store in a busy loop."""
    job = simulate(min_nodes=2, max_nodes=2)
    first = job.add()
    log = first.membership.keys.joined(0)
    job.board.data[entry(log, 2)] = b"garbage"
    before = first.operations["leader", "Add"]
    job.run(30.0)
    assert first.operations["leader", "Add"] - before < 40
    assert job.settle(first, job.add()) == [0, 1]


@pytest.mark.parametrize("says", [1_000_000, 2**62, -1])
def test_a_counter_out_of_range_is_an_error(board, says):
    store = board.connect()
    Add(tickets(LOG), says).run(store)
    tracemalloc.start()
    with pytest.raises(RecordError, match=rf"counter under '{tickets(LOG)}' is {says}, which"):
        perform(SharedLogReader(LOG, max_nodes=8).read(), store)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
    assert store.operations == {"add": 2}


def test_a_very_large_job_may_have_more_tickets(board):
    store = board.connect()
    Add(tickets(LOG), 100_000).run(store)
    assert perform(SharedLogReader(LOG, max_nodes=100_000).read(), store) == []


def test_many_holes_cost_little(board):
    """They are read in turn, so that none is forgotten."""
    store = board.connect()
    Add(tickets(LOG), 65_536).run(store)
    store.set(entry(LOG, 65_536), b"last")
    reader = SharedLogReader(LOG, max_nodes=2)
    tracemalloc.start()
    assert len(perform(reader.read(), store)) == 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 << 20
    store.set(entry(LOG, 30_000), b"late")
    store.operations.clear()
    found = []
    for _ in range(64):
        found += perform(reader.read(), store)
    assert [ticket for ticket, _, _ in found] == [30_000]
    assert store.operations["multi_get"] == 64 * 8


@pytest.mark.parametrize("says", SAYS)
def test_a_lost_node_is_detected_whatever_the_counter_of_finished_nodes(settled, says, caplog):
    job, nodes = settled(3, min_nodes=2)
    job.board.data[tickets(nodes[0].membership.keys.done(0))] = says
    job.kill(nodes[1])
    assert job.settle(nodes[0], nodes[2], seconds=20.0) == [0, 1]
    assert nodes[0].place.round == 1
    assert "a report of success is rejected" in caplog.text


@pytest.mark.parametrize("says", SAYS)
def test_an_unreadable_log_of_nodes_ends_the_wait_with_its_name(simulate, says):
    job = simulate(min_nodes=2, max_nodes=2)
    first = job.add()
    job.board.data[tickets(first.membership.keys.joined(0))] = says
    job.run(5.0)
    assert isinstance(first.error, RendezvousStateError)
    assert "tickets" in str(first.error)


def test_rejected_records_are_logged_up_to_a_limit(settled, caplog):
    """Without a token, any client of the store can write them."""
    job, nodes = settled(2)
    log = nodes[0].membership.keys.done(0)
    for ticket in range(1, 501):
        job.board.data[entry(log, ticket)] = b"garbage"
    job.board.data[tickets(log)] = b"500"
    for node in nodes:
        node.agent.succeed()
    job.have_verdict(nodes, 60.0)
    assert nodes[0].verdict.outcome == "succeeded"
    assert caplog.text.count("is rejected") == 20 * len(nodes)
    assert "further rejected records are not reported" in caplog.text


def test_invalid_departures_delay_no_node(simulate):
    job = simulate(min_nodes=2, max_nodes=2)
    nodes = [job.add(is_host=True), job.add()]
    job.settle(*nodes)
    job.board.data[entry(nodes[0].membership.keys.departures, 1)] = b"garbage"
    job.board.data[tickets(nodes[0].membership.keys.departures)] = b"1"
    for node in nodes:
        node.agent.succeed()
    nodes[0].agent.linger(lambda seconds, _: seconds < 60.0)
    began = job.now
    assert job.run(30.0, lambda: nodes[0].has_ended), job.describe()
    assert job.now - began < 10.0
    assert nodes[0].error is None


# --- on a thread, over a store that cannot tell why it fails --------------------------------------


class Hushed(MemoryStore):
    """Like torch's store: adding to a value that is not a number closes the connection."""

    def add(self, key, amount):
        try:
            return super().add(key, amount)
        except RendezvousStateError:
            self.close()
            raise RendezvousConnectionError("the connection was closed") from None


def test_a_bad_counter_is_reported_for_a_store_without_error_messages(run, board):
    board.data["job/count"] = b"garb\x1bage" * 1000
    results = []

    def routine():
        try:
            yield Add("job/count")
        except RendezvousStateError as error:
            results.append(str(error))
        results.append((yield MultiGet(["absent"])))

    runner, ended = run(routine(), lambda: Hushed(board))
    assert ended.wait() is None
    assert "under 'job/count' holds b'garb\\x1bage" in results[0]
    assert "not a number" in results[0]
    assert len(results[0]) < 300
    assert results[1] == [None]
    assert (runner.problem, runner.silent_for()) == (None, 0.0)


def test_a_routine_that_does_not_catch_the_error_ends_with_it(run, board):
    board.data["job/count"] = b"garbage"

    def routine():
        yield Add("job/count")

    _, ended = run(routine(), board.connect)
    assert isinstance(ended.wait(), RendezvousStateError)


class Moody(MemoryStore):
    """Stops answering the leader's thread on demand."""

    def __init__(self, board, mood):
        super().__init__(board)
        self._mood = mood

    def add(self, key, amount):
        if self._mood and threading.current_thread().name == "plaunch-leader":
            raise RendezvousConnectionError("no answer to the leader")
        return super().add(key, amount)


def test_a_leader_without_answers_for_too_long_is_notified(board):
    """While it retries, no lost node would be detected; its other threads get answers."""
    mood = []
    params = RendezvousParameters(
        "memory", "board", "job", 1, 1, keep_alive_interval="0.1", unreachable_timeout="0.5"
    )
    handler = DynamicRendezvousHandler(params, StoreAccess(lambda: Moody(board, mood), "127.0.0.1"))
    try:
        handler.next_rendezvous()
        mood.append("bad")
        (change,) = wait_until(lambda: list(handler.changes()), "it is reported")
    finally:
        handler.leave()
    assert change.kind is ChangeKind.UNREACHABLE
    assert "no answer to the leader" in change.reason
