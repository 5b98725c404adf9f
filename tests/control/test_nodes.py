"""The status of all nodes of a job, requested from one of them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from plaunch_control.nodes import BOUND, JobNodes

from helpers.clock import Clock


class Store:
    """The store of a job; broadcasts reach the nodes that are healthy."""

    def __init__(self):
        self.clock = Clock()
        self.texts = {}
        self.nodes = []

    def add(self, name, group_rank=None, *, is_reachable=True, ranks=(0,)):
        """Add a node; it is part of the round if it has ranks."""
        mine = f"{name}~1"
        data = dict.fromkeys(("agent_pid", "since", "waiting_for", "round", "attempt"))
        data |= {"host": name, "alive": True, "silent_seconds": 0.0, "phase": "training"}
        data |= {"group_rank": group_rank, "ranks": str(group_rank), "workers": ["many"]}

        def broadcast(_, text):
            for node, is_well in self.nodes:
                if is_well:
                    node.answer_call(text)

        control = SimpleNamespace(
            snapshot=lambda: SimpleNamespace(ranks=ranks),
            broadcast=broadcast,
            publish=lambda _, text: self.texts.update({mine: text}),
            published=lambda *_, all_nodes: self.texts if all_nodes else None,
        )
        self.texts[mine] = ""
        node = JobNodes(control, name, lambda: data, clock=self.clock, sleep=self.sleep)
        self.nodes.append((node, is_reachable))
        return node

    def sleep(self, seconds):
        self.clock.now += seconds


@pytest.fixture
def store():
    return Store()


def told_by(node):
    return [(data["host"], data["group_rank"], data["phase"]) for data in node.ask()]


def test_every_node_returns_all(store):
    nodes = [store.add(name, rank) for name, rank in (("b", 1), ("a", 0), ("c", 2))]
    for node in nodes:
        assert told_by(node) == [("a", 0, "training"), ("b", 1, "training"), ("c", 2, "training")]
    assert "workers" not in nodes[0].ask()[0]  # which may be many
    assert store.clock.now == Clock().now  # it does not wait


def test_a_silent_node_is_waited_for_and_named(store):
    node = store.add("a", 0)
    store.add("b", 1, is_reachable=False)
    began = store.clock.now
    assert told_by(node) == [("a", 0, "training"), ("b", None, None)]
    assert store.clock.now - began == pytest.approx(BOUND, abs=0.1)


@pytest.mark.parametrize("text", ["", "{", "[1]", "7", "{}", json.dumps({"calls": ["old"]})])
def test_other_records_are_not_answers(store, text):
    node = store.add("a", 0)
    store.texts["b~1"] = text
    assert told_by(node) == [("a", 0, "training"), ("b", None, None)]


def test_the_own_answer_need_not_be_read_back(store):
    node = store.add("a", 0)
    store.add("b", 1)
    node._control.publish = lambda *_: None
    assert told_by(node) == [("a", 0, "training"), ("b", 1, "training")]


def test_before_a_round_only_this_node_is_returned(store):
    store.add("b", 1)
    assert told_by(store.add("a", ranks=())) == [("a", None, "training")]


def test_without_a_job_store_only_this_node_is_returned(store):
    node = store.add("a", 0)
    node._control.published = lambda *_, all_nodes: None
    assert told_by(node) == [("a", 0, "training")]


def test_a_duplicate_call_is_answered_once(store):
    node = store.add("a", 0)
    shown = []
    node._control.publish = lambda _, text: shown.append(json.loads(text)["calls"])
    for call in ("x", "y", "x"):
        node.answer_call(call)
    assert shown == [["x"], ["x", "y"]]
