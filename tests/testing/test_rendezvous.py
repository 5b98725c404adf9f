"""The fakes of rendezvous handlers that plugins are tested with."""

from __future__ import annotations

from plaunch.testing import FakeRendezvous
from plaunch.testing.rendezvous import FakeElasticRendezvous


def test_each_round_has_a_port_of_its_own():
    handler = FakeRendezvous()
    handler.master_port = 7000
    ports = [handler.next_rendezvous().bootstrap_store_info.master_port for _ in range(3)]
    assert ports == [7000, 7001, 7002]


def test_it_is_closed_for_all_who_ask():
    handler = FakeRendezvous()
    assert not handler.is_closed()
    handler.set_closed()
    assert handler.is_closed()


def test_it_is_shut_down_at_the_end():
    with FakeElasticRendezvous() as handler:
        assert not handler.shut_down
    assert handler.shut_down
