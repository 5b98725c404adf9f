"""Counters of torch's store that hold another value than a number."""

from __future__ import annotations

import pytest
from plaunch.errors import RendezvousConnectionError, RendezvousStateError
from plaunch.rendezvous import ChangeKind, RendezvousParameters
from plaunch_rendezvous_c10d.backend import create_c10d_handler

from helpers.calls import Call, at_once
from helpers.ports import free_port
from helpers.waiting import wait_until


@pytest.fixture
def create():
    """Make handlers of one job; all are shut down after the test, the host last."""
    endpoint = f"127.0.0.1:{free_port()}"
    made = []

    def create(min_nodes, max_nodes):
        params = RendezvousParameters(
            "c10d", endpoint, "job", min_nodes, max_nodes,
            last_call_timeout="0.2", keep_alive_interval="0.3", keep_alive_max_attempt="5",
            store="torch",
        )  # fmt: skip
        made.append(create_c10d_handler(params))
        return made[-1]

    yield create
    for handler in reversed(made):
        handler.leave()


def test_a_killed_node_is_detected_whatever_the_counters_hold(create, caplog):
    """torch's server closes the connection of a client that adds to such a value."""
    host, other = create(1, 3), create(1, 3)
    at_once(host.next_rendezvous, other.next_rendezvous)
    membership = host.membership
    store = host.job.threads.connect()
    store.set(f"{membership.keys.done(membership.part.place.round)}/tickets", b"garbage")
    with pytest.raises(RendezvousConnectionError):
        store.add(f"{membership.keys.done(membership.part.place.round)}/tickets", 0)
    for runner in other.job.threads.runners():
        runner.stop()  # as if it were killed: nothing is announced
    found = wait_until(lambda: list(host.changes()), "the node is missed")
    assert [change.kind for change in found] == [ChangeKind.LOST]
    assert "holds b'garbage', which is not a number" in caplog.text


def test_a_joining_node_reports_the_value(create):
    handler = create(2, 2)
    call = Call(handler.next_rendezvous)
    membership = handler.membership
    wait_until(lambda: membership.part.joined is not None, "it has joined")
    key = f"{membership.keys.joined(0)}/tickets"
    handler.job.threads.connect().set(key, b"garbage")
    said = f"the counter under '{key}' holds b'garbage', which is not a number"
    with pytest.raises(RendezvousStateError, match=said):
        call.get()
