"""Warnings while the store does not answer."""

from __future__ import annotations

import pytest
from plaunch.errors import RendezvousConnectionError
from plaunch_membership.outage import OutageReporter

from helpers.clock import Clock

DOWN = RendezvousConnectionError(
    "rendezvous store 'node0:1' cannot be reached: no route", names_store=True
)


@pytest.fixture
def clock():
    return Clock(0.0)


@pytest.fixture
def outage(clock):
    return OutageReporter("node0:1", clock)


def fail_at(outage, clock, *times):
    for clock.now in times:
        outage.failed(DOWN)


def test_the_wait_is_reported_once_a_minute(outage, clock, caplog):
    said = []
    for now in (0.0, 5.0, 11.0, 12.0, 60.0, 72.0, 80.0):
        caplog.clear()
        fail_at(outage, clock, now)
        if caplog.messages:
            said.append((now, *caplog.messages))
    assert said == [
        (now, f"waiting for the store, for {now:.0f} s so far: {DOWN}") for now in (11.0, 72.0)
    ]


@pytest.mark.parametrize("has_answered", [False, True])
def test_only_the_agent_reports_the_wait_for_the_first_answer(outage, clock, caplog, has_answered):
    caplog.set_level("INFO", "plaunch")
    if has_answered:
        outage.recovered()
    fail_at(outage, clock, 0.0, 11.0)
    assert len(caplog.messages) == has_answered


def test_the_end_of_an_outage_that_was_reported_is_logged(outage, clock, caplog):
    caplog.set_level("INFO", "plaunch")
    outage.recovered()
    fail_at(outage, clock, 0.0, 11.0, 15.0)
    outage.recovered()
    outage.recovered()
    assert caplog.messages[1:] == ["the store at node0:1 answers again, after 15 s"]


def test_an_answer_ends_the_outage(outage, clock, caplog):
    fail_at(outage, clock, 0.0, 9.0)
    outage.recovered()
    fail_at(outage, clock, 12.0, 21.0)
    assert caplog.messages == []
    fail_at(outage, clock, 23.0)
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "waiting for the store, for 11 s so far"
    ]


def test_the_endpoint_is_named_if_the_error_does_not(clock, caplog):
    outage = OutageReporter("node0:1", clock, after=0.0)
    outage.failed(RendezvousConnectionError("no answer"))
    assert caplog.messages == ["waiting for the store at node0:1, for 0 s so far: no answer"]


def test_the_words_of_the_error_do_not_matter(clock, caplog):
    """A wrapped address may contain that of the store, and another name may be the store's."""
    outage = OutageReporter("node0:1", clock, after=0.0)
    outage.failed(RendezvousConnectionError("no route to node0:1234"))
    outage.recovered()
    outage.failed(RendezvousConnectionError("etcd at a:1 is silent", names_store=True))
    assert [one for one in caplog.messages if "waiting" in one] == [
        "waiting for the store at node0:1, for 0 s so far: no route to node0:1234",
        "waiting for the store, for 0 s so far: etcd at a:1 is silent",
    ]
