"""Endpoints as users write them."""

from __future__ import annotations

import pytest
from plaunch.errors import UsageError
from plaunch_network import parse_rendezvous_endpoint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, ("localhost", 29400)),
        ("", ("localhost", 29400)),
        ("  ", ("localhost", 29400)),
        ("node0", ("node0", 29400)),
        ("node0:1234", ("node0", 1234)),
        (" node0:0 ", ("node0", 0)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535)),
        ("[::1]:1234", ("::1", 1234)),
        ("[fe80::1]", ("fe80::1", 29400)),
        ("fe80::1", ("fe80::1", 29400)),
    ],
)
def test_good(text, expected):
    assert parse_rendezvous_endpoint(text, 29400) == expected


@pytest.mark.parametrize(
    "text", ["node0:", "node0:abc", "node0:65536", "node0:-1", ":1234", "[::1", "[::1]1234", "n:²"]
)
def test_bad(text):
    with pytest.raises(UsageError, match="endpoint"):
        parse_rendezvous_endpoint(text, 29400)
