"""The assignment of ranks."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plaunch_membership.placement import Candidate, place, with_claims


def nodes(*words):
    """Nodes from words such as `a`, `b@2` (index 2), `c<1` (was rank 1), `d*` (hosts the store)."""
    result = []
    for ticket, word in enumerate(words, 1):
        rest, star, _ = word.partition("*")
        rest, _, previous = rest.partition("<")
        name, _, index = rest.partition("@")
        result.append(
            Candidate(
                ticket,
                name,
                f"host-{name}",
                index=int(index) if index else None,
                previous=int(previous) if previous else None,
                is_host=bool(star),
            )
        )
    return result


def names(placed):
    return " ".join(node.node for node in placed)


CASES = {
    # name: (nodes in order of arrival, maximum number, members in order of rank, spares, and the
    # refused node, if any)
    "no node": ("", 4, "", ""),
    "as they arrive": ("a b c", 4, "a b c", ""),
    "the host of the store first": ("a b c*", 4, "c a b", ""),
    "given indexes": ("a@2 b@0 c@1", 4, "b c a", ""),
    "some have indexes": ("a b@0 c", 4, "b a c", ""),
    "an index comes before hosting": ("a@0 b*", 4, "a b", ""),
    "a host with an index": ("a b@1*", 4, "a b", ""),
    "indexes from 1 on": ("a@1 b@2 c@3", 4, "c a b", ""),
    "indexes with a hole": ("a@7 b@0 c@5", 4, "b c a", ""),
    "an index that is too large comes last": ("a@9 b c*", 4, "c b a", ""),
    "survivors keep their ranks": ("c<2 b<1 a<0", 4, "a b c", ""),
    "a newcomer fills the hole": ("d c<2 a<0", 4, "a d c", ""),
    "the hole of rank 0": ("d b<1 c<2", 4, "d b c", ""),
    "the smaller world": ("a<0 c<2 d<3", 4, "a d c", ""),
    "who lost its rank is placed before newcomers": ("n d<3 b<1", 4, "d b n", ""),
    "and before the host": ("n* d<3 b<1", 4, "d b n", ""),
    "an index moves a survivor": ("n@0 a<0 b<1", 4, "n b a", ""),
    "a survivor with an index that is too large": ("a@0<0 c@2<1", 4, "a c", ""),
    "more than there are places": ("a b c", 2, "a b", "c"),
    "those of the round before stay": ("n a<0 b<1", 2, "a b", "n"),
    "the survivors with the lowest ranks stay": ("c<2 b<1 a<0", 2, "a b", "c"),
    "those with an index before those without": ("a b c@1", 2, "a c", "b"),
    "the lowest indexes": ("a@3 b@2 c@1 d@0", 2, "d c", "b a"),
    "a spare takes the free place": ("s a<0", 2, "a s", ""),
    "the host may be a spare": ("a b h*", 2, "a b", "h"),
    "the later one of two with the same index is refused": ("a@1 b@1 c d@1", 4, "c a", "", "b d"),
    "that of the round before stays": ("n@0 a@0<0 b@1<1", 4, "a b", "", "n"),
    "a refused node takes no place": ("a@0 b@0 c", 2, "a c", "", "b"),
}


@pytest.mark.parametrize("name", CASES)
def test_places(name):
    words, max_nodes, members, spares, *refused = CASES[name]
    placement = place(nodes(*words.split()), max_nodes)
    assert (names(placement.members), names(placement.spares)) == (members, spares)
    assert names(refusal.node for refusal in placement.refused) == "".join(refused)


def test_a_refusal_has_a_reason():
    (refusal,) = place(nodes("a@1", "b@1"), 4).refused
    assert refusal.reason == (
        "node index 1 was given to both host-a (a) and host-b (b); "
        "give each node its own --node-rank"
    )


def claims(crowd, ranks=None):
    return {node.node: node.previous for node in with_claims(crowd, ranks)}


def test_previous_ranks_come_from_the_leader():
    crowd = nodes("a<0", "b<0", "c", "d<2")
    assert claims(crowd, {"b": 0, "c": 1}) == {"a": None, "b": 0, "c": 1, "d": None}
    assert claims(crowd, {}) == dict.fromkeys("abcd")


def test_without_a_round_the_latest_claims_are_accepted():
    crowd = [
        replace(node, previous_round=round_)
        for node, round_ in zip(nodes("a<0", "b<0", "c<1", "d"), (3, 4, 4, None), strict=True)
    ]
    assert claims(crowd) == {"a": None, "b": 0, "c": 1, "d": None}
    assert claims(nodes("a", "b")) == {"a": None, "b": None}


@st.composite
def crowds(draw):
    count = draw(st.integers(0, 8))
    some = st.none() | st.integers(0, 9)
    # Only one node had a given rank in the previous round; an index may be given twice.
    previous = draw(st.lists(some, min_size=count, max_size=count))
    seen = set()
    crowd = []
    for ticket, rank in enumerate(previous):
        before = None if rank in seen else rank
        seen.add(rank)
        crowd.append(
            Candidate(
                ticket, f"n{ticket}", f"h{ticket}", draw(some), before, is_host=draw(st.booleans())
            )
        )
    return crowd


@given(crowds(), st.integers(1, 10), st.randoms())
def test_invariants(crowd, max_nodes, rng):
    placement = place(crowd, max_nodes)
    members, spares = placement.members, placement.spares
    refused = [refusal.node for refusal in placement.refused]
    # Each node is in exactly one list.
    assert sorted(node.node for node in (*members, *spares, *refused)) == sorted(
        node.node for node in crowd
    )
    assert len(members) == min(max_nodes, len(crowd) - len(refused))
    # The result does not depend on the order of the nodes.
    assert place(rng.sample(crowd, len(crowd)), max_nodes) == placement
    # Given indices are ranks.
    owned = {node.index for node in members if node.index is not None}
    for rank, node in enumerate(members):
        if node.index is not None and node.index < len(members):
            assert node.index == rank
        # Survivors keep their ranks, unless those do not exist or were given to others.
        elif node.previous is not None and node.previous < len(members):
            assert rank == node.previous or node.previous in owned
    # No member of the previous round is replaced, and only duplicate indices are refused.
    if any(node.previous is None for node in members):
        assert all(node.previous is None for node in spares)
    assert all(node.index in {other.index for other in (*members, *spares)} for node in refused)


@given(crowds().filter(bool), st.integers(1, 10))
def test_the_same_nodes_again_have_the_same_ranks(crowd, max_nodes):
    first = place(crowd, max_nodes).members
    tickets = random.Random(len(crowd)).sample(range(100), len(first))
    again = [
        Candidate(ticket, node.node, node.host, node.index, rank, node.is_host)
        for (rank, node), ticket in zip(enumerate(first), tickets, strict=True)
    ]
    assert names(place(again, max_nodes).members) == names(first)
