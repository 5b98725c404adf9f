"""`expand_hostlist` reads lists of hosts."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plaunch.errors import UsageError
from plaunch_network import expand_hostlist


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("node1,node2", ["node1", "node2"]),
        ("node[01-03,07]", ["node01", "node02", "node03", "node07"]),
        ("node[01-02],gpu-a[1-2]x", ["node01", "node02", "gpu-a1x", "gpu-a2x"]),
        ("node[8-11]", ["node8", "node9", "node10", "node11"]),
        ("node[098-101]", ["node098", "node099", "node100", "node101"]),
        ("r[1-2]n[1,3]", ["r1n1", "r1n3", "r2n1", "r2n3"]),
        ("a[1-2][0-1].lab", ["a10.lab", "a11.lab", "a20.lab", "a21.lab"]),
        ("b,a,b", ["b", "a", "b"]),
        ("[1-2]", ["1", "2"]),
        ("10.0.0.[1-2]", ["10.0.0.1", "10.0.0.2"]),
        ("me@node[1-2]:22", ["me@node1:22", "me@node2:22"]),
        ("[fd00::5]:22,a[1-2]", ["[fd00::5]:22", "a1", "a2"]),
    ],
)
def test_a_list_is_expanded_in_its_order(text, hosts):
    assert expand_hostlist(text) == hosts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no host"),
        (",", "has an empty part"),
        ("a,,b", "has an empty part"),
        ("node[1-2", "does not close a bracket"),
        ("node1]", "closes a bracket that is not open"),
        ("a]b[1]", "closes a bracket"),
        ("node[]", "has '' in a bracket"),
        ("node[1,]", "has '' in a bracket"),
        ("node[a-b]", "has 'a-b' in a bracket"),
        ("node[2-1]", "has '2-1' in a bracket"),
        ("node[1-2-3]", "has '1-2-3' in a bracket"),
        ("node[-1]", "has '-1' in a bracket"),
        ("node[1[2]]", "has '1[2' in a bracket"),
        ("node[\u0661]", "in a bracket, which is not a number"),
        ("node[0-99999999]", "more than 65536 hosts"),
        ("n[1-999]x[1-999]", "more than 65536 hosts"),
        ("n[1-60000],m[1-60000]", "more than 65536 hosts"),
    ],
)
def test_malformed_lists(text, message):
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        expand_hostlist(text)
    assert repr(text) in str(caught.value)


# --- against a reference --------------------------------------------------------------------------

PLAIN = st.text("abz-.9", min_size=0, max_size=3)
NUMBER = st.integers(0, 120)
WIDTH = st.integers(1, 4)
RANGE = st.tuples(NUMBER, st.integers(0, 12), WIDTH)
BRACKET = st.lists(RANGE, min_size=1, max_size=3)
PIECE = st.one_of(PLAIN, BRACKET)
PART = st.lists(PIECE, min_size=1, max_size=4).filter(any)


def written(bracket):
    return ",".join(f"{first:0{width}}-{first + more:0{width}}" for first, more, width in bracket)


def meant(bracket):
    return [
        f"{number:0{len(f'{first:0{width}}')}}"
        for first, more, width in bracket
        for number in range(first, first + more + 1)
    ]


@given(st.lists(PART, min_size=1, max_size=4))
def test_random_lists_are_expanded(parts):
    text = ",".join(
        "".join(piece if isinstance(piece, str) else f"[{written(piece)}]" for piece in part)
        for part in parts
    )
    hosts = [
        "".join(choice)
        for part in parts
        for choice in itertools.product(
            *([piece] if isinstance(piece, str) else meant(piece) for piece in part)
        )
    ]
    if len(hosts) <= 65536:
        assert expand_hostlist(text) == hosts


@given(st.text("a1[],-0", max_size=12))
def test_random_text_is_rejected(text):
    try:
        hosts = expand_hostlist(text)
    except UsageError:
        return
    assert hosts
    assert not set("[],") & set("".join(hosts))
