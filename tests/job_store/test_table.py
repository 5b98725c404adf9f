"""The store without sockets: repeated requests, sessions that end, waits, and limits."""

from __future__ import annotations

import pytest
from plaunch_job_store import frames
from plaunch_job_store.frames import TOO_LARGE, Code, Operation, OperationFailed, ProtocolError
from plaunch_job_store.limits import (
    ENTRY_OVERHEAD,
    MAX_HELD,
    MAX_KEPT_BYTES,
    MAX_KEPT_RESULTS,
    MAX_REPLY,
    MAX_WAITS,
)
from plaunch_job_store.table import Session, StoreTable


class Client:
    """A session and what it has received."""

    def __init__(self, table, name=b"a"):
        self.table = table
        self.session = Session(name)
        table.begin(self.session)
        self.session.deliver = self.receive
        self.received = {}
        self.number = 0

    def receive(self, number, answer):
        self.received[number] = answer.results

    def send(self, *operations, number=None):
        if number is None:
            self.number += 1
            number = self.number
        self.table.carry_out(self.session, number, operations)
        while self.table.has_answers():
            self.table.answer_waits(1)
        return self.received.get(number)


@pytest.fixture
def table():
    return StoreTable(max_bytes=100_000)


@pytest.fixture
def large_table():
    return StoreTable()


@pytest.fixture
def client(table):
    return Client(table)


@pytest.fixture
def other(table):
    return Client(table, b"b")


def get(key):
    return Operation(Code.GET, key)


class TestRepeatedRequests:
    def test_an_addition_is_carried_out_once(self, client):
        add = Operation(Code.ADD, "n", amount=5)
        assert client.send(add, number=7) == [5]
        client.received.clear()
        assert client.send(add, number=7) == [5]
        assert client.send(get("n")) == [b"5"]

    def test_a_write_does_not_replace_a_later_one(self, client, other):
        client.send(Operation(Code.SET, "k", b"first"), number=1)
        other.send(Operation(Code.SET, "k", b"second"))
        client.send(Operation(Code.SET, "k", b"first"), number=1)
        assert client.send(get("k"), number=2) == [b"second"]

    def test_numbers_of_two_sessions_are_different_requests(self, client, other):
        add = Operation(Code.ADD, "n", amount=1)
        assert client.send(add, number=1) == [1]
        assert other.send(add, number=1) == [2]

    def test_one_whose_result_is_not_kept_is_refused(self, client):
        add = Operation(Code.ADD, "n", amount=1)
        for number in range(1, MAX_KEPT_RESULTS + 2):
            client.send(add, number=number)
        (result,) = client.send(add, number=1)
        assert "carried out before" in result.reason
        assert client.send(add, number=2) == [2]
        assert client.send(get("n")) == [b"65"]

    def test_kept_results_are_counted_and_limited(self, large_table):
        client = Client(large_table)
        value = b"x" * MAX_REPLY
        client.send(Operation(Code.SET, "k", value))
        before = large_table.size
        for _ in range(MAX_KEPT_RESULTS):
            assert client.send(Operation(Code.COMPARE_SET, "k", b"y")) == [value]
        grown = large_table.size - before
        assert MAX_REPLY < grown <= MAX_KEPT_BYTES
        large_table.end(client.session, is_orderly=True)
        assert large_table.size < before

    def test_results_are_not_kept_in_a_full_store(self, table, client):
        client.send(Operation(Code.SET, "k", b"x" * 90_000))
        assert client.send(Operation(Code.COMPARE_SET, "k", b"y")) == [b"x" * 90_000]
        assert table.size <= 100_000


class TestWaits:
    @pytest.mark.parametrize(
        "write",
        [
            Operation(Code.SET, "k", b"1"),
            Operation(Code.HOLD, "k", b"1"),
            Operation(Code.ADD, "k", amount=1),
            Operation(Code.COMPARE_SET, "k", b"1"),
        ],
    )
    def test_any_write_answers_all(self, client, other, write):
        assert client.send(Operation(Code.WAIT, "k")) is None
        assert other.send(Operation(Code.WAIT, "k")) is None
        client.send(write)
        assert client.received[1] == other.received[1] == [b"1"]

    def test_the_answer_to_many_is_encoded_once(self, table, monkeypatch):
        clients = [Client(table, b"%d" % number) for number in range(5)]
        replies = []
        for number, client in enumerate(clients, start=1):
            client.session.deliver = lambda *of: replies.append(of)
            client.send(Operation(Code.WAIT, "k"), number=number)
        encoded = []
        encode = frames.encode_results
        monkeypatch.setattr(
            frames, "encode_results", lambda results: encoded.append(results) or encode(results)
        )
        Client(table, b"writer").send(Operation(Code.SET, "k", b"v"))
        received = frames.FrameBuffer()
        for number, answer in replies:
            received.feed(answer.reply(number))
        assert encoded == [[b"v"]]
        found = [(fields.u64(), frames.decode_results(fields)) for _, fields in received.frames()]
        assert sorted(found) == [(number, [b"v"]) for number in range(1, 6)]

    def test_a_cancelled_one_is_answered_with_nothing(self, table, client):
        client.send(Operation(Code.WAIT, "k"))
        table.cancel(client.session, 1)
        assert client.received == {1: [None]}

    def test_to_cancel_an_answered_one_does_nothing(self, table, client, other):
        client.send(Operation(Code.WAIT, "k"))
        other.send(Operation(Code.SET, "k", b"1"))
        table.cancel(client.session, 1)
        assert client.received == {1: [b"1"]}

    def test_a_detached_session_is_not_answered_and_waits_again(self, table, client, other):
        client.send(Operation(Code.WAIT, "k"))
        table.detach(client.session)
        other.send(Operation(Code.SET, "k", b"1"))
        client.session.deliver = client.receive
        assert client.received == {}
        assert client.send(Operation(Code.WAIT, "k"), number=1) == [b"1"]

    def test_their_number_is_limited(self, large_table):
        client = Client(large_table)
        for _ in range(MAX_WAITS):
            assert client.send(Operation(Code.WAIT, "k")) is None
        (result,) = client.send(Operation(Code.WAIT, "k"))
        assert "more than" in result.reason

    def test_one_number_is_one_wait(self, client):
        client.send(Operation(Code.WAIT, "k"), number=1)
        with pytest.raises(ProtocolError, match="two waits with the number 1"):
            client.send(Operation(Code.WAIT, "l"), number=1)

    def test_are_counted_until_they_are_answered(self, table, client, other):
        before = table.size
        client.send(Operation(Code.WAIT, "k"))
        client.send(Operation(Code.WAIT, "l"))
        assert table.size - before > 2 * ENTRY_OVERHEAD
        table.cancel(client.session, 1)
        table.detach(client.session)
        assert table.size == before

    def test_are_refused_by_a_full_store(self, client):
        client.send(Operation(Code.SET, "k", b"x" * 98_500))
        (result,) = client.send(Operation(Code.WAIT, "l" * 500))
        assert "the store is full" in result.reason

    def test_many_are_answered_one_by_one_before_the_next_request(self, table, client, other):
        for _ in range(3):
            client.send(Operation(Code.WAIT, "k"))
        table.carry_out(other.session, 1, [Operation(Code.SET, "k", b"v")])
        answered = []
        while table.has_answers():
            table.answer_waits(1)
            answered.append(len(client.received))
        assert answered == [1, 2, 3]

    def test_one_that_is_answered_next_cannot_be_cancelled(self, table, client, other):
        client.send(Operation(Code.WAIT, "k"))
        table.carry_out(other.session, 1, [Operation(Code.SET, "k", b"v")])
        table.cancel(client.session, 1)
        assert client.received == {}
        table.answer_waits(1)
        assert client.received == {1: [b"v"]}

    def test_one_that_is_answered_next_ends_with_its_connection(self, table, client, other):
        client.send(Operation(Code.WAIT, "k"))
        table.carry_out(other.session, 1, [Operation(Code.SET, "k", b"v")])
        table.detach(client.session)
        client.session.deliver = client.receive
        table.answer_waits(1)
        assert client.received == {}


class TestEndOfASession:
    def test_deletes_the_keys_that_it_holds(self, table, client, other):
        client.send(Operation(Code.HOLD, "beat", b"1"), Operation(Code.SET, "kept", b"1"))
        assert table.end(client.session, is_orderly=False)
        assert other.send(get("beat"), get("kept")) == [None, b"1"]

    def test_in_order_keeps_them(self, table, client, other):
        client.send(Operation(Code.HOLD, "beat", b"1"))
        assert not table.end(client.session, is_orderly=True)
        assert other.send(get("beat")) == [b"1"]

    def test_without_keys_deletes_nothing(self, table, client):
        assert not table.end(client.session, is_orderly=False)

    @pytest.mark.parametrize("write", [Code.SET, Code.HOLD])
    def test_leaves_a_key_that_another_one_has_written_since(self, table, client, other, write):
        client.send(Operation(Code.HOLD, "beat", b"1"))
        other.send(Operation(write, "beat", b"2"))
        table.end(client.session, is_orderly=False)
        assert other.send(get("beat")) == [b"2"]

    def test_lowers_the_number_of_sessions(self, table, client, other):
        count = Operation(Code.COUNT_SESSIONS, "k")
        assert client.send(count) == [2]
        table.end(other.session, is_orderly=True)
        assert client.send(count) == [1]


class TestLimits:
    def test_a_full_store_refuses_to_grow(self, client):
        client.send(Operation(Code.SET, "k", b"x" * 60_000))
        (result,) = client.send(Operation(Code.SET, "l", b"x" * 60_000))
        assert isinstance(result, OperationFailed)
        assert "the store is full: it holds 61033 of 100000 bytes" in result.reason
        assert client.send(get("k"), get("l")) == [b"x" * 60_000, None]

    def test_smaller_values_and_deletions_make_room(self, client):
        client.send(Operation(Code.SET, "k", b"x" * 60_000))
        assert client.send(Operation(Code.SET, "k", b"x")) == [None]
        assert client.send(Operation(Code.SET, "l", b"x" * 60_000)) == [None]
        client.send(Operation(Code.DELETE, "l"))
        assert client.send(Operation(Code.SET, "m", b"x" * 60_000)) == [None]

    def test_a_reply_has_as_many_values_as_fit(self, large_table):
        client = Client(large_table)
        half = b"x" * (MAX_REPLY // 2)
        for key in "abc":
            client.send(Operation(Code.SET, key, half))
        too_large = OperationFailed(TOO_LARGE)
        assert client.send(*map(get, "abcd")) == [half, half, too_large, None]

    def test_what_cannot_be_returned_is_not_written(self, large_table):
        client = Client(large_table)
        half = b"x" * (MAX_REPLY // 2 + 1)
        writes = [Operation(Code.COMPARE_SET, key, half) for key in "ab"]
        assert client.send(*writes) == [half, OperationFailed(TOO_LARGE)]
        assert client.send(get("b")) == [None]

    def test_a_client_holds_few_keys(self, large_table):
        client = Client(large_table)
        for number in range(MAX_HELD):
            assert client.send(Operation(Code.HOLD, f"k{number}", b"v")) == [None]
        assert client.send(Operation(Code.HOLD, "k0", b"w")) == [None]
        (result,) = client.send(Operation(Code.HOLD, "another", b"v"))
        assert "more than" in result.reason
        assert client.send(get("another")) == [None]

    def test_refusals_do_not_format_large_values(self, large_table):
        client = Client(large_table)
        client.send(Operation(Code.SET, "k" * 1000, b"1" * 4_000_000))
        results = client.send(*[Operation(Code.ADD, "k" * 1000, amount=1)] * 4096)
        assert {len(result.reason) < 200 for result in results} == {True}

    def test_only_numbers_are_added_to(self, client):
        client.send(Operation(Code.SET, "k", b"text"))
        (result,) = client.send(Operation(Code.ADD, "k", amount=1))
        assert result.reason == "'k' holds b'text', which is not a number"

    def test_a_sum_has_64_bits(self, client):
        most = (1 << 63) - 1
        assert client.send(Operation(Code.ADD, "n", amount=most)) == [most]
        (result,) = client.send(Operation(Code.ADD, "n", amount=1))
        assert "64 bits" in result.reason


class TestCompareSet:
    @pytest.mark.parametrize(
        ("held", "expected", "result", "after"),
        [
            (None, None, b"new", b"new"),
            (b"old", b"old", b"new", b"new"),
            (b"old", None, b"old", b"old"),
            (b"old", b"other", b"old", b"old"),
            (None, b"other", None, None),
        ],
    )
    def test_writes_if_the_value_is_as_expected(self, client, held, expected, result, after):
        if held is not None:
            client.send(Operation(Code.SET, "k", held))
        assert client.send(Operation(Code.COMPARE_SET, "k", b"new", expected)) == [result]
        assert client.send(get("k")) == [after]
