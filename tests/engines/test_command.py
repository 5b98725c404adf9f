"""What a command gives its agents beside the options of the user."""

from __future__ import annotations

import argparse

import pytest
from plaunch_engines.command import awaiting_others


@pytest.mark.parametrize(
    ("restarts", "nodes", "words"),
    [
        (0, (2, 2), ["--max-restarts=0,node:inf"]),
        ("0,hang:1", (2, 2), ["--max-restarts=0,hang:1,node:inf"]),
        ("0,node:0", (2, 2), []),
        ("0,node:1", (2, 2), []),
        (0, (2, 3), []),
        (1, (2, 2), []),
        ("3,hang:1", (2, 2), []),
    ],
)
def test_agents_leave_the_place_of_a_lost_node_to_the_command(restarts, nodes, words):
    args = argparse.Namespace(max_restarts=restarts)
    assert awaiting_others(args, *nodes) == words
