"""`Records` separates what an agent reports from what it and its workers write."""

import re

import pytest
from plaunch import __version__
from plaunch_engines import records
from plaunch_engines.records import InvalidRecord, Records, encode, encode_failure

NONCE = "0123456789abcdef" * 2
HELLO = {
    "kind": "hello", "protocol": records.VERSION, "version": __version__, "python": "3.12.1",
    "host": "node1", "pid": 17, "has_folder": True, "script": "9 bytes", "port": 20000,
    "addresses": ["192.0.2.7"], "client": "",
}  # fmt: skip
END = {"kind": "end", "code": 3, "has_succeeded": False, "verdict": "failed"}
FAILURE = {
    "kind": "failure", "text": "it failed", "code": 3, "is_first": True, "is_of_workers": True,
    "is_consequence": False,
}  # fmt: skip


def fed(*parts, nonce=NONCE):
    """Return what is found in the parts; consecutive blocks of text are joined."""
    splitter = Records()
    if nonce:
        splitter.expect(nonce)
    found = []
    for piece in (piece for part in parts for piece in splitter.feed(part)):
        if found and isinstance(piece, bytes) and isinstance(found[-1], bytes):
            found[-1] += piece
        else:
            found.append(piece)
    return found


def end(**changes):
    return encode(NONCE, **{**END, **changes})


def test_blocks_have_whole_lines():
    splitter = Records()
    assert splitter.feed(b"one\ntwo\nth") == [b"one\ntwo\n"]
    assert splitter.feed(b"ree\n") == [b"three\n"]


def test_a_last_line_without_a_newline_comes_at_the_end():
    splitter = Records()
    assert splitter.feed(b"begin") == []
    assert splitter.feed(b"") == [b"begin"]


def test_text_and_records_keep_their_order():
    data = b"one\n50 %" + end() + b" done\n" + end(code=0)
    assert fed(data) == [b"one\n50 %", END, b" done\n", {**END, "code": 0}]


def test_parts_of_any_size_give_the_same():
    data = b"a\n" + end() + b"b\n\x1e c\x1eplaunch \n\x1epl" + end(code=0) + b"d"
    expected = [b"a\n", END, b"b\n\x1e c\x1eplaunch \n\x1epl", {**END, "code": 0}, b"d"]
    for size in range(1, len(data) + 1):
        parts = [data[i : i + size] for i in range(0, len(data), size)]
        assert fed(*parts, b"") == expected
    for at in range(len(data)):
        assert fed(data[:at], data[at:], b"") == expected


def test_before_the_settings_only_a_hello_is_a_record():
    hello = encode("", **HELLO)
    assert fed(b"Welcome" + hello, nonce="") == [b"Welcome", HELLO]
    assert fed(encode("", **END), nonce="") == [encode("", **END)]
    assert fed(end(), nonce="") == [end()]


@pytest.mark.parametrize(
    "line",
    [encode("", **END), encode("", **HELLO), encode("f" * 32, **END), encode(NONCE.upper(), **END)],
)
def test_what_has_not_the_nonce_is_text(line):
    """A worker may write anything."""
    assert fed(line) == [line]


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[1]", b"\xff", b'"word"', b"[" * 60_000, b"1" * 5000]
)
def test_what_is_no_object_is_an_invalid_record(text):
    line = b"\x1eplaunch " + NONCE.encode() + b" " + text + b"\n"
    assert fed(line + b"text\n") == [InvalidRecord("it is not a JSON object"), b"text\n"]


def test_a_record_without_an_end_is_invalid():
    found = fed(b"\x1eplaunch " + NONCE.encode() + b" " + b"x" * 70_000, b"yz\n")
    assert found == [InvalidRecord("it has more than 65536 bytes"), b"yz\n"]


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({}, "its kind is None"),
        ({"kind": "dance"}, "its kind is 'dance'"),
        ({"kind": ["end"]}, "its kind is not a single value"),
        ({"kind": "end"}, "end has no code"),
        ({**END, "code": True}, "code of end is True, not a whole number from 0 to 255"),
        ({**END, "code": float("nan")}, "code of end is nan, not a whole number from 0 to 255"),
        ({**END, "code": 10**400}, "code of end is 1000.*, not a whole number"),
        ({**END, "code": -1}, "code of end is -1"),
        ({**END, "code": "0"}, "code of end is '0'"),
        ({**END, "code": {"a": 1}}, "code of end is not a single value"),
        (
            {**END, "verdict": "won"},
            "verdict of end is 'won', not one of '', 'succeeded', 'failed'",
        ),
        ({**END, "more": 1}, "end has an unknown field 'more'"),
        ({**HELLO, "port": 65536}, "port of hello is 65536, not a whole number from 0 to 65535"),
        ({**HELLO, "has_folder": 1}, "has_folder of hello is 1, not true or false"),
        (
            {**HELLO, "addresses": "::1"},
            "addresses of hello is '::1', not a list of",
        ),
        (
            {**HELLO, "addresses": ["1"] * 17},
            "addresses of hello is not a single value",
        ),
        ({**FAILURE, "text": "x" * 301}, "text of failure is .*, not a text of at most 300"),
        ({"kind": "running", "round": 0, "attempt": 0, "nodes": 0, "workers": 1}, "nodes of run"),
    ],
)
def test_a_record_that_does_not_have_its_fields_is_invalid(record, problem):
    [found] = fed(encode(NONCE, **record))
    assert isinstance(found, InvalidRecord)
    assert re.match(problem, found.problem), found.problem


def test_the_hello_of_another_version_may_have_other_fields():
    """The versions are then what is wrong."""
    hello = {"kind": "hello", "protocol": 1, "version": "0.1", "cpus": 8}
    assert fed(encode("", **hello), nonce="") == [hello]
    [found] = fed(encode("", **{**HELLO, "cpus": 8}), nonce="")
    assert found == InvalidRecord("hello has an unknown field 'cpus'")


@pytest.mark.parametrize("text", ["it took 3 s", "\U0001f525" * 1000, "x" * 300])
def test_no_record_of_a_last_message_is_long(text):
    data = records.encode_last_message(NONCE, text)
    assert all(len(line) <= records.MAX_RECORD for line in data.splitlines())
    found = fed(data)
    assert "".join(one["text"] for one in found) == text
    assert [one["is_more"] for one in found] == [False] + [True] * (len(found) - 1)


@pytest.mark.parametrize("text", ["", "it failed", "\U0001f525" * 1000, "x" * 299 + "\ud800" * 9])
def test_no_record_of_a_failure_is_long(text):
    """Others write to the same stream, and only short writes stay whole."""
    data = encode_failure(
        NONCE, text, code=3, is_first=True, is_of_workers=False, is_consequence=False
    )
    assert all(len(line) <= records.MAX_RECORD for line in data.splitlines())
    found = fed(data)
    assert "".join(one["text"] for one in found) == text
    assert [one["kind"] for one in found] == ["failure_text"] * (len(found) - 1) + ["failure"]


def test_a_line_without_an_end_is_passed_on_in_parts():
    splitter = Records()
    length = 0
    for _ in range(100):
        length += sum(map(len, splitter.feed(b"x" * 4096)))
    assert 100 * 4096 - length <= records.MAX_LINE


def test_a_record_may_follow_a_line_without_an_end():
    """Wherever the line is divided."""
    for more in range(len(end())):
        line = b"x" * (records.MAX_LINE + 1 - more)
        data = line + end()
        at = records.MAX_LINE + 1
        assert fed(data[:at], data[at:]) == [line, END]


def test_a_block_is_split_at_once():
    """Its lines are not handled one by one: that took ten seconds for each million."""
    data = b"0 1234567\n" * 6500
    splitter = Records()
    assert splitter.feed(data) == [data]
    assert splitter.feed(data[:-1]) == [data[:-10]]
