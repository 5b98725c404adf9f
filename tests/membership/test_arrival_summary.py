"""The summary of arrivals, and what waiting costs a node."""

from __future__ import annotations

import pytest
from plaunch_membership.arrival_summary import ArrivalSummary, summarize
from plaunch_membership.node import NodeRecord
from plaunch_membership.records import RecordCodec, RecordError

from helpers.crowds import Crowd


def nodes(count, *, first_index=None):
    return [
        NodeRecord(
            ticket=number + 1,
            node=f"h{number}~1",
            host=f"h{number}",
            index=None if first_index is None else first_index + number,
            is_host=number == 1,
        )
        for number in range(count)
    ]


def through_the_store(summary):
    codec = RecordCodec("job")
    return ArrivalSummary.from_record(codec.decode("k", codec.encode("k", summary.to_record())))


@pytest.mark.parametrize(
    ("count", "first_index", "least", "text"),
    [
        (2, None, 3, "h0, h1"),
        (2, 1, 3, "h0 (index 1), h1 (index 2); missing: index 0"),
        (1, 1, 3, "h0 (index 1); missing: index 0, 2"),
        (3, 0, 3, "h0 (index 0), h1 (index 1), h2 (index 2)"),
        (
            18,
            None,
            20,
            "h0, h1, h2, h3, h4, h5, h6, h7, h8, h9, h10, h11, h12, h13, h14, h15 and 2 more",
        ),
    ],
)
def test_it_describes_who_came_and_who_is_missing(count, first_index, least, text):
    summary = summarize(nodes(count, first_index=first_index), least)
    assert summary.count == count
    assert summary.store_host == ("h1" if count > 1 else "")
    assert through_the_store(summary) == summary
    assert summary.describe_nodes() == text


def test_missing_indices_beyond_the_first_ones_are_counted():
    text = summarize(nodes(1, first_index=0), 100).describe_nodes()
    assert text.endswith("missing: index " + ", ".join(map(str, range(1, 17))) + " and 83 more")


@pytest.mark.parametrize("wrong", [{"count": -1}, {"missing": ["x"]}, {"stopping": {"h": "1"}}])
def test_an_invalid_one_is_rejected(wrong):
    record = {**summarize(nodes(2), 3).to_record(), **wrong}
    codec = RecordCodec("job")
    with pytest.raises(RecordError):
        ArrivalSummary.from_record(codec.decode("k", codec.encode("k", record)))


def waiting_costs(size):
    """The largest cost of a node that is not the leader, which waits for the last node."""
    crowd = Crowd(size)
    crowd.add(size - 1)
    for _ in range(10):
        crowd.run(5.0)
        for node in crowd.nodes:
            node.arrivals.query()
    crowd.add(1)
    crowd.run(5.0)
    assert sorted(node.place.rank for node in crowd.nodes) == list(range(size))
    came = {node.arrivals.describe().partition("; ")[2][:12] for node in crowd.nodes[:-1]}
    assert came == {f"{size - 1} came: nod"[:12]}
    costs = [node.cost for node in crowd.nodes if not node.leads]
    return [max(cost[index] for cost in costs) for index in range(3)]


def test_what_a_waiting_node_transfers_does_not_depend_on_the_number_of_nodes():
    few, many = waiting_costs(64), waiting_costs(1024)
    assert many[0] == few[0]  # requests
    # Ranks and sizes have more digits.
    growth = [large / small for small, large in zip(few, many, strict=True)]
    assert max(growth) < 1.03, (few, many)
