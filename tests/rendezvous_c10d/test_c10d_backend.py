"""The backend `c10d`: what a handler is created with."""

from __future__ import annotations

import pytest
from plaunch.rendezvous import RendezvousParameters
from plaunch_rendezvous_c10d.backend import create_c10d_handler


@pytest.fixture
def interval():
    """Return the interval of the heartbeats of a node that has not connected yet."""
    handlers = []

    def interval(max_nodes, **options):
        options = {"is_host": "false", **options}
        params = RendezvousParameters("c10d", "127.0.0.1:1", "job", 1, max_nodes, **options)
        handlers.append(create_c10d_handler(params))
        return handlers[-1].membership.timing.keep_alive_interval

    yield interval
    for handler in handlers:
        handler.shutdown()


@pytest.mark.parametrize(
    ("max_nodes", "seconds"),
    [(1, 5.0), (1024, 5.0), (10_000, 5.0), (10_240, 5.12), (16_384, 8.192)],
)
def test_heartbeats_of_many_nodes_are_rarer(interval, max_nodes, seconds):
    assert interval(max_nodes) == seconds


def test_an_interval_that_is_given_stays(interval):
    assert interval(16_384, keep_alive_interval="2") == 2.0


def test_a_store_that_does_not_notice_the_end_of_a_connection_keeps_its_interval(interval):
    assert interval(16_384, store="torch") == 1.0
