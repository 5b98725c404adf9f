"""What is said while a round is not complete, and when the first one has taken too long."""

from __future__ import annotations

import logging

import pytest
from plaunch.agent.wait_reporter import WaitReporter
from plaunch.errors import ExitCode, RendezvousTimeoutError

from helpers.clock import Clock, utc  # noqa: F401 - a fixture
from helpers.faults import raising

pytestmark = pytest.mark.usefixtures("utc")


class Handler:
    words = "2 nodes; 1 came: a"

    def get_backend(self):
        return "other"

    def describe_wait(self):
        return self.words


@pytest.fixture
def clock():
    return Clock(1000.0)


def waiting(clock, **settings):
    made = WaitReporter(clock=clock, wall_clock=lambda: 3600.0, **settings)
    made.begin()
    return made


def test_a_backend_that_fails_to_describe_its_wait_does_not_end_the_job(clock, caplog):
    caplog.set_level(logging.INFO, "plaunch")
    handler = Handler()
    handler.describe_wait = raising(KeyError("nodes"))
    assert said(waiting(clock), clock, 4, handler) == [3]
    assert "the rendezvous, which cannot say for what (KeyError: 'nodes')" in caplog.text


def said(made, clock, seconds, handler=None):
    """The times at which something is said, looking whenever it asks to be."""
    until, times = clock.now + seconds, []
    while clock.now + made.pause() <= until:
        clock.now += made.pause()
        assert made.look(handler or Handler()) is None
        times.append(clock.now - 1000.0)
    clock.now = until
    return times


def test_plain_lines_become_rarer(clock, caplog):
    caplog.set_level(logging.INFO, "plaunch")
    made = waiting(clock)
    assert said(made, clock, 300.0) == [3.0, 9.0, 21.0, 45.0, 93.0, 153.0, 213.0, 273.0]
    assert caplog.messages[1] == (
        "waiting for 2 nodes; 1 came: a (since 01:00:00, for 9 s; Ctrl-C ends it)"
    )


def test_a_short_wait_is_not_worth_a_word(clock, caplog):
    caplog.set_level(logging.INFO, "plaunch")
    made = waiting(clock)
    assert said(made, clock, 2.9) == []
    made.end()
    made.begin()
    assert said(made, clock, 2.9) == []
    assert caplog.messages == []


def test_a_live_line_is_replaced_every_second_and_taken_away(clock, caplog):
    shown = []
    made = waiting(clock, show=shown.append)
    assert said(made, clock, 6.0) == [3.0, 4.0, 5.0, 6.0]
    made.end()
    assert [text[-22:-16] for text in shown] == [" (3 s;", " (4 s;", " (5 s;", " (6 s;", ""]
    assert shown[-1] == ""
    assert caplog.messages == []


def test_a_look_that_comes_early_says_nothing(clock, caplog):
    caplog.set_level(logging.INFO, "plaunch")
    made = waiting(clock)
    for _ in range(5):
        assert made.look(Handler()) is None
    assert caplog.messages == []


def test_a_handler_of_torchrun_has_no_words(clock, caplog):
    caplog.set_level(logging.INFO, "plaunch")

    class Plain:
        def get_backend(self):
            return "bridged"

    said(waiting(clock), clock, 3.0, Plain())
    assert "waiting for the rendezvous backend 'bridged'" in caplog.text


def test_the_first_start_has_a_bound(clock):
    shown = []
    made = waiting(clock, start_timeout=5.0, show=shown.append)
    assert said(made, clock, 4.9) == [3.0, 4.0]
    assert made.pause() == pytest.approx(0.1)
    clock.now += made.pause()
    error = made.look(Handler())
    assert isinstance(error, RendezvousTimeoutError)
    assert error.exit_code == ExitCode.RENDEZVOUS_TIMEOUT
    assert "within 5 s (--start-timeout); it was waiting for 2 nodes; 1 came: a" in str(error)
    assert shown[-1] == ""


def test_the_bound_counts_from_the_begin_of_the_launch(clock):
    made = waiting(clock, start_timeout=5.0)
    clock.now += 2.0
    made.begin()
    clock.now += 3.0
    assert made.look(Handler()) is not None


def test_a_later_round_may_take_longer(clock):
    made = waiting(clock, start_timeout=5.0)
    made.end()
    made.workers_started()
    made.begin()
    clock.now += 100.0
    assert made.look(Handler()) is None
