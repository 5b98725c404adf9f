"""How the workers of all nodes are numbered."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plaunch.rendezvous import WorldRanks, world_ranks


@pytest.mark.parametrize(
    ("world", "expected"),
    [
        ([], []),
        ([("a", 2), ("a", 2)], [WorldRanks(0, 4, 0, 4), WorldRanks(2, 4, 2, 4)]),
        (
            [("a", 1), ("b", 4), ("a", 3)],
            [WorldRanks(0, 8, 0, 4), WorldRanks(1, 8, 0, 4), WorldRanks(5, 8, 1, 4)],
        ),
    ],
)
def test_world_ranks(world, expected):
    assert world_ranks(world) == expected


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), max_size=20))
def test_world_ranks_are_all_numbers_once(world):
    ranks = world_ranks(world)
    total = sum(size for _, size in world)
    assert all(node.world_size == total for node in ranks)
    covered = itertools.chain.from_iterable(
        range(node.first_global, node.first_global + size)
        for node, (_, size) in zip(ranks, world, strict=True)
    )
    assert list(covered) == list(range(total))
    for role in "abc":
        mine = [(n, size) for n, (name, size) in zip(ranks, world, strict=True) if name == role]
        covered = [n.first_role + i for n, size in mine for i in range(size)]
        assert covered == list(range(sum(size for _, size in mine)))
        assert all(node.role_world_size == len(covered) for node, _ in mine)
