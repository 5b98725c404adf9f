"""`Records` separates what an agent reports from what it and its workers write."""

import pytest
from plaunch_engines import records
from plaunch_engines.records import Records, encode


def fed(*parts):
    """Return what is found in the parts, as lines and records in their order."""
    found_lines, found_records = [], []
    splitter = Records()
    for part in parts:
        lines, some = splitter.feed(part)
        found_lines += lines
        found_records += some
    return found_lines, found_records


def test_lines_are_complete():
    assert fed(b"one\ntwo\nth", b"ree\n") == ([b"one\n", b"two\n", b"three\n"], [])


def test_a_last_line_without_a_newline_comes_at_the_end():
    splitter = Records()
    assert splitter.feed(b"begin") == ([], [])
    assert splitter.feed(b"") == ([b"begin"], [])


def test_a_record_may_follow_text_without_a_newline():
    data = b"50 %" + encode(kind="end", code=3) + b" done\n"
    assert fed(data) == ([b"50 %", b" done\n"], [{"kind": "end", "code": 3}])


@pytest.mark.parametrize("size", [1, 2, 7, 4096])
def test_parts_of_any_size_give_the_same(size):
    data = b"a\n" + encode(kind="hello", host="x\ny") + b"b\nc" + encode(kind="end", code=0)
    parts = [data[i : i + size] for i in range(0, len(data), size)]
    lines, found = fed(*parts)
    assert b"".join(lines) == b"a\nb\nc"
    assert [one["kind"] for one in found] == ["hello", "end"]


@pytest.mark.parametrize("text", [b"{", b"[1]", b"\xff", b'"word"'])
def test_what_is_not_a_record_is_text(text):
    line = b"\x1eplaunch " + text + b"\n"
    assert fed(line) == ([line], [])


def test_a_line_without_an_end_is_passed_on_in_parts():
    splitter = Records()
    length = 0
    for _ in range(100):
        lines, _ = splitter.feed(b"x" * 4096)
        length += sum(map(len, lines))
    assert 100 * 4096 - length <= records.MAX_LINE
