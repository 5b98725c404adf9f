"""A counter of torch's store that somebody has written something else to."""

from __future__ import annotations

import threading

import pytest
from plaunch.errors import RendezvousConnectionError, RendezvousStateError
from plaunch.rendezvous import ChangeKind, RendezvousParameters
from plaunch_rendezvous_c10d.backend import create_c10d_handler

from helpers.ports import free_port
from helpers.waiting import wait_until

BOUND = 60.0


@pytest.fixture
def create():
    """Make handlers of one job; all of them go in the end, the host last."""
    endpoint = f"127.0.0.1:{free_port()}"
    made = []

    def create(min_nodes, max_nodes):
        params = RendezvousParameters(
            "c10d", endpoint, "job", min_nodes, max_nodes,
            last_call_timeout="0.2", keep_alive_interval="0.3", keep_alive_max_attempt="5",
        )  # fmt: skip
        made.append(create_c10d_handler(params))
        return made[-1]

    yield create
    for handler in reversed(made):
        handler.leave()


def join(handlers):
    threads = [threading.Thread(target=handler.next_rendezvous) for handler in handlers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
    assert not any(thread.is_alive() for thread in threads)


def test_a_killed_node_is_noticed_whatever_the_counters_say(create, caplog):
    """torch's server ends the connection of whoever adds to what is not a number."""
    handlers = [create(1, 3), create(1, 3)]
    join(handlers)
    host, other = handlers
    membership = host._membership
    store = host._threads.connect()
    store.set(f"{membership.keys.done(membership.part.place.round)}/tickets", b"garbage")
    with pytest.raises(RendezvousConnectionError):
        store.add(f"{membership.keys.done(membership.part.place.round)}/tickets", 0)
    for runner in other._threads._runners():
        runner.stop()  # as if it were killed: nothing is said
    found = wait_until(lambda: list(host.changes()), "the node is missed")
    assert [change.kind for change in found] == [ChangeKind.LOST]
    assert "holds b'garbage', which is not a number" in caplog.text


def test_whoever_joins_is_told_what_is_there(create):
    handler = create(2, 2)
    call = threading.Thread(target=lambda: _keep_error(handler, errors))
    errors = []
    call.start()
    membership = handler._membership
    wait_until(lambda: membership.part.joined is not None, "it has joined")
    key = f"{membership.keys.joined(0)}/tickets"
    handler._threads.connect().set(key, b"garbage")
    call.join(BOUND)
    assert not call.is_alive()
    (error,) = errors
    assert isinstance(error, RendezvousStateError)
    assert f"the counter under '{key}' holds b'garbage', which is not a number" in str(error)


def _keep_error(handler, errors):
    try:
        handler.next_rendezvous()
    except RendezvousStateError as error:
        errors.append(error)
