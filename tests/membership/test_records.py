"""Records are read back as written; everything else is rejected with its key."""

from __future__ import annotations

import contextlib
import datetime
import enum
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plaunch.errors import RendezvousStateError
from plaunch_membership.records import RecordCodec, RecordError, StoreRecord

KEY = "job/0/state/1"
TOKEN = b"0123456789abcdef"

plain = RecordCodec("job")
signing = RecordCodec("job", TOKEN)

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
records = st.dictionaries(st.text().filter(lambda name: name != "v"), values, max_size=6)


@given(records)
def test_a_record_comes_back_as_it_was(record):
    for codec in (plain, signing):
        value = codec.encode(KEY, record)
        assert value.isascii()
        assert b"\n" not in value
        assert codec.decode(KEY, value).raw == record


@given(st.binary(max_size=200))
def test_any_bytes_at_most_raise(value):
    with pytest.raises(RecordError, match=KEY):
        signing.decode(KEY, value)
    with contextlib.suppress(RecordError):  # some inputs are valid records
        plain.decode(KEY, value)


@given(records, st.data())
def test_no_changed_byte_of_a_signed_record_goes_unnoticed(record, data):
    value = bytearray(signing.encode(KEY, record))
    where = data.draw(st.integers(0, len(value) - 1))
    value[where] ^= data.draw(st.integers(1, 255))
    with pytest.raises(RecordError):
        signing.decode(KEY, bytes(value))


def deep(levels, value="1"):
    return '{"a":' * levels + value + "}" * levels


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("", "is not a JSON record"),
        ("(1,", "is not a JSON record"),
        ('{"v":1,"a":1', "is not a JSON record"),
        ('{"v":1}{"v":1}', "is not a JSON record"),
        ("cos\nsystem\n(S'true'\ntR.", "is not a JSON record"),  # a pickle that would run a program
        ("\x80\x04.", "is not ASCII"),
        ('{"v":1,"host":"\xe4"}', "is not ASCII"),
        ("[1]", "is not a JSON object"),
        ("null", "is not a JSON object"),
        ('"text"', "is not a JSON object"),
        ("{}", "has no schema version"),
        ('{"v":"1"}', "has no schema version"),
        ('{"v":true}', "has no schema version"),
        ('{"v":1.0}', "has no schema version"),
        ('{"v":null}', "has no schema version"),
        (
            '{"v":7}',
            "was written by a plaunch of protocol version 7; this one speaks 2; "
            "install the same version on all nodes",
        ),
        ('{"v":' + "9" * 4000 + "}", "of protocol version 999"),
        ('{"v":1,"a":NaN}', "NaN is not a JSON number"),
        ('{"v":1,"a":[-Infinity]}', "-Infinity is not a JSON number"),
        ('{"v":1,"a":1e999}', "'1e999' is too large"),
        ('{"v":1,"a":1,"a":2}', "a name that occurs twice"),
        ('{"v":1,"a":{"b":1,"b":1}}', "a name that occurs twice"),
        ('{"v":1,"a":' + deep(40) + "}", "nested too deeply"),
        ('{"v":1,"a":' + "[" * 40 + "]" * 40 + "}", "nested too deeply"),
        (deep(100_000), "nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
        ('{"v":1,"a":' + "9" * 10_000 + "}", "is not a JSON record"),
        (json.dumps({"v": 1, "a": "x" * (1 << 20)}), "is too large: .* 1048576 are the most"),
    ],
)
def test_invalid_records_are_rejected_with_their_key(value, problem):
    with pytest.raises(RecordError, match=problem) as caught:
        plain.decode(KEY, value.encode("latin-1"))
    assert f"the record under {KEY!r}" in str(caught.value)
    assert len(str(caught.value)) < 300
    assert isinstance(caught.value, RendezvousStateError)


def test_many_brackets_on_one_level_are_not_deep():
    record = {"members": [{"node": str(number), "ports": [number]} for number in range(1000)]}
    assert plain.decode(KEY, plain.encode(KEY, record)).raw == record


@pytest.mark.parametrize(
    ("writer", "reader", "key", "problem"),
    [
        (signing, plain, KEY, "is signed, but this node has no job token"),
        (plain, signing, KEY, "is not signed, but this node has a job token"),
        (RecordCodec("job", b"another token 16"), signing, KEY, "has a wrong signature"),
        (RecordCodec("another", TOKEN), signing, KEY, "has a wrong signature"),
        (signing, signing, "job/0/state/2", "has a wrong signature"),
    ],
)
def test_signatures(writer, reader, key, problem):
    value = writer.encode(KEY, {"a": 1})
    with pytest.raises(RecordError, match=f"{key}.* {problem}") as caught:
        reader.decode(key, value)
    assert "0123456789abcdef" not in str(caught.value)


def test_signed_parts_cannot_be_shifted():
    # The same bytes in the same order, divided elsewhere between run id, key and record.
    value = RecordCodec("job1", TOKEN).encode("key", {})
    with pytest.raises(RecordError, match="wrong signature"):
        RecordCodec("job", TOKEN).decode("1key", value)


def test_a_forged_record_is_not_parsed():
    value = b"0" * 64 + b":" + b"[" * 1000
    with pytest.raises(RecordError, match="wrong signature"):
        signing.decode(KEY, value)


def test_the_token_is_not_shown():
    assert repr(signing) == "<RecordCodec, signed>"
    assert repr(plain) == "<RecordCodec, unsigned>"


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"a": math.nan}, "cannot be written"),
        ({"a": math.inf}, "cannot be written"),
        ({"a": {1, 2}}, "cannot be written"),
        ({"a": b"bytes"}, "cannot be written"),
        ({"a": "x" * 200}, "cannot be written: 214 bytes; 200 are the most"),
    ],
)
def test_records_that_cannot_be_written(record, problem):
    with pytest.raises(RecordError, match=problem) as caught:
        RecordCodec("job", max_bytes=200).encode(KEY, record)
    assert KEY in str(caught.value)


def test_a_record_that_contains_itself_cannot_be_written():
    record = {}
    record["a"] = record
    with pytest.raises(RecordError, match="cannot be written"):
        plain.encode(KEY, record)


def test_the_version_is_not_a_field():
    with pytest.raises(ValueError, match="schema version"):
        plain.encode(KEY, {"v": 2})
    assert "v" not in plain.decode(KEY, plain.encode(KEY, {"a": 1}))


# --- fields ---------------------------------------------------------------------------------------

RECORD = StoreRecord(
    KEY,
    {
        "host": "a",
        "rank": 3,
        "time": 1.5,
        "large": 10**400,
        "is_host": True,
        "nothing": None,
        "names": ["a", "b\x1b[2J"],
        "node": {"pid": 7, "inner": {"x": "y"}},
        "nodes": [{"pid": 1}, {"pid": "2"}],
        "lines": "one\ntwo\x07\x9b\ud800 äß",
    },
)


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (lambda r: r.text("host"), "a"),
        (lambda r: r.text("host", max_len=1), "a"),
        (lambda r: r.text("lines"), "one\\ntwo\\x07\\x9b\\ud800 äß"),
        (lambda r: r.text("absent", default="b"), "b"),
        (lambda r: r.text("nothing", default=None), None),
        (lambda r: r.texts("names"), ["a", "b\\x1b[2J"]),
        (lambda r: r.texts("absent", default=()), ()),
        (lambda r: r.integer("rank", low=3, high=3), 3),
        (lambda r: r.integer("absent", default=-1), -1),
        (lambda r: r.number("time"), 1.5),
        (lambda r: repr(r.number("rank")), "3.0"),
        (lambda r: r.flag("is_host"), True),
        (lambda r: r.flag("absent", default=False), False),
        (lambda r: r.record("node").integer("pid"), 7),
        (lambda r: r.record("absent", default=None), None),
        (lambda r: [inner.raw for inner in r.records("nodes")], [{"pid": 1}, {"pid": "2"}]),
        (lambda r: r.records("absent", default=[]), []),
        (lambda r: r["host"], "a"),
        (lambda r: ("rank" in r, "absent" in r, len(r)), (True, False, 10)),
    ],
)
def test_fields(read, expected):
    assert read(RECORD) == expected


@pytest.mark.parametrize("number", [2**53, -(2**53), 10**400])
def test_integers_have_at_most_53_bits(number):
    """Other JSON parsers would read larger ones differently."""
    record = StoreRecord(KEY, {"attempt": number})
    with pytest.raises(RecordError, match=r"'attempt' is .*, which is too large") as caught:
        record.integer("attempt")
    assert len(str(caught.value)) < 300
    assert StoreRecord(KEY, {"attempt": 2**53 - 1}).integer("attempt") == 2**53 - 1


@pytest.mark.parametrize(
    ("number", "date"),
    [(12.5, 12.5), (-1, 0.0), (1e308, 253_402_128_000.0), (10**100, 253_402_128_000.0)],
)
def test_dates_are_clamped(number, date):
    found = StoreRecord(KEY, {"time": number}).date("time")
    assert found == date
    assert datetime.datetime.fromtimestamp(found).astimezone()


def test_texts_can_be_written_and_read_again():
    """The length counts after control characters are escaped."""
    record = StoreRecord(KEY, {"host": "\x1b" * 100})
    text = record.text("host", max_len=400)
    assert StoreRecord(KEY, {"host": text}).text("host", max_len=400) == text
    with pytest.raises(RecordError, match="'host' has 400 characters; 399 are the most"):
        record.text("host", max_len=399)


@pytest.mark.parametrize(
    ("read", "problem"),
    [
        (lambda r: r.text("absent"), "'absent' is missing"),
        (lambda r: r.text("nothing"), "'nothing' is missing"),
        (lambda r: r.text("rank"), "'rank' is 3, which is not a text"),
        (lambda r: r.text("lines", max_len=3), "'lines' has 13 characters; 3 are the most"),
        (lambda r: r.texts("host"), "'host' is 'a', which is not a list"),
        (lambda r: r.texts("nodes"), "is {'pid': 1}, which is not a list of texts"),
        (lambda r: r.integer("host"), "'host' is 'a', which is not a whole number"),
        (lambda r: r.integer("time"), "'time' is 1.5, which is not a whole number"),
        (lambda r: r.integer("is_host"), "'is_host' is True, which is not a whole number"),
        (lambda r: r.integer("rank", low=4), "'rank' is 3, which is not from 4 on"),
        (lambda r: r.integer("rank", high=2), "'rank' is 3, which is not up to 2"),
        (lambda r: r.integer("rank", low=0, high=2), "'rank' is 3, which is not from 0 to 2"),
        (lambda r: r.number("is_host"), "'is_host' is True, which is not a number"),
        (lambda r: r.number("host"), "'host' is 'a', which is not a number"),
        (lambda r: r.number("large"), "'large' is too large"),
        (lambda r: r.flag("rank"), "'rank' is 3, which is not true or false"),
        (lambda r: r.record("host"), "'host' is 'a', which is not a record"),
        (lambda r: r.records("node"), "'node' is {'pid': 7, .*, which is not a list"),
        (lambda r: r.records("names"), r"'names\[0\]' is 'a', which is not a record"),
        (lambda r: r.record("node").text("host"), r"'node\.host' is missing"),
        (lambda r: r.record("node").record("inner").flag("x"), r"'node\.inner\.x' is 'y'"),
        (lambda r: r.records("nodes")[1].integer("pid"), r"'nodes\[1\]\.pid' is '2'"),
        (lambda r: r.refuse("there is no such phase"), "is invalid: there is no such phase"),
        (lambda r: r.record("node").refuse("it is odd"), "is invalid in 'node': it is odd"),
    ],
)
def test_invalid_fields(read, problem):
    with pytest.raises(RecordError, match=problem) as caught:
        read(RECORD)
    assert KEY in str(caught.value)


def test_long_values_are_cut_in_messages():
    record = StoreRecord(KEY, {"a": "x" * 10_000, "b": list(range(10_000))})
    for name in record:
        with pytest.raises(RecordError) as caught:
            record.flag(name)
        assert len(str(caught.value)) < 300


class Color(enum.Enum):
    RED = "red"


def test_a_choice_is_a_member_of_the_enumeration():
    assert StoreRecord(KEY, {"color": "red"}).choice("color", Color) is Color.RED


@pytest.mark.parametrize("value", ["green", "RED", "", 1, ["red"], "x" * 5000])
def test_any_other_choice_is_rejected(value):
    with pytest.raises(RecordError, match=rf"{KEY}.*'color'"):
        StoreRecord(KEY, {"color": value}).choice("color", Color)
