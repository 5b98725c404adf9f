"""Requests to all nodes of a job, with a store and a clock that are made up."""

from __future__ import annotations

import json

import pytest
from plaunch.agent.job_query import JobQuery, PublishedAnswer, collect_published

from helpers.clock import Clock


class Store:
    """What nodes have published; others answer after some time.

    Args:
        clock: the clock of all.
        others: when each other node answers, by its name.
    """

    def __init__(self, clock, others):
        self.clock = clock
        self.others = others
        self.texts = dict.fromkeys(others, "")
        self.limits = []
        self.called = []

    def broadcast(self, name, call):
        self.called.append(call)

    def published(self, name, seconds, *, all_nodes):
        self.limits.append(seconds)
        for node, at in self.others.items():
            if self.clock() >= at:
                self.texts[node] = answer(node, self.called)
        return self.texts


def answer(node, calls):
    return json.dumps([node, list(calls)])


def read(node, text):
    if not text:
        return None
    by, calls = json.loads(text)
    return PublishedAnswer(by, calls), f"stacks of {by}"


@pytest.fixture
def clock():
    return Clock(100.0)


def query(store, *, reads_own=True):
    def publish():
        store.texts["a~1"] = answer(one.me, one.calls) if reads_own else ""
        return "own stacks"

    clock = store.clock
    one = JobQuery(store, "stacks", "a", publish, read, clock=clock, sleep=clock.advance)
    return one


def test_the_answers_of_all_nodes_come_after_ones_own(clock):
    store = Store(clock, {"b~1": 100.0, "c~1": 101.0})
    one = query(store)
    found = one.ask(5.0)
    assert found.answers == ["own stacks", "stacks of b~1", "stacks of c~1"]
    assert store.texts["a~1"] == answer(one.me, store.called)  # which is its own call
    assert (found.silent, found.is_job_wide, found.has_store) == ([], True, True)
    assert 101.0 <= clock() < 101.5
    assert store.limits[0] == 5.0  # what was left
    assert store.limits[-1] < 4.1


def test_who_does_not_answer_in_time_is_silent(clock):
    store = Store(clock, {"b~1": 100.0, "c~1": 200.0})
    found = query(store, reads_own=False).ask(5.0)
    assert found.answers == ["own stacks", "stacks of b~1"]
    assert found.silent == ["c"]
    assert clock() == pytest.approx(105.0)


@pytest.mark.parametrize(("texts", "is_job_wide"), [(None, False), ({}, True)])
def test_without_texts_of_others_there_is_ones_own_answer(clock, texts, is_job_wide):
    store = Store(clock, {})
    store.published = lambda *_, **__: texts
    found = query(store).ask(5.0)
    assert found.answers == ["own stacks"]
    assert (found.is_job_wide, found.has_store) == (is_job_wide, not is_job_wide)
    assert clock() == 100.0


def test_each_call_is_answered_once(clock):
    store = Store(clock, {})
    one = query(store)
    one.answer_call("x")
    assert store.texts == {"a~1": answer(one.me, ["x"])}
    store.texts.clear()
    one.answer_call("x")
    assert store.texts == {}


def test_no_more_than_some_answers_are_awaited(clock):
    texts, found = collect_published(
        lambda _: {"b": "1", "c": ""},
        lambda _, text: text or None,
        5.0,
        count=1,
        clock=clock,
        sleep=clock.advance,
    )
    assert (texts, found) == ({"b": "1", "c": ""}, {"b": "1"})
    assert clock() == 100.0
