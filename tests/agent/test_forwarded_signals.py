"""What is passed on to the workers: each signal once a second, whoever was told of it."""

from __future__ import annotations

import logging
import signal

import pytest
from plaunch.agent.forwarded_signals import ForwardedSignals

from helpers.clock import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def passed_on():
    return []


@pytest.fixture
def notices(passed_on, clock):
    return ForwardedSignals(passed_on.append, clock=clock)


def test_a_signal_is_passed_on_once_a_second(notices, passed_on, clock):
    assert notices.pass_on(signal.SIGUSR1)
    for _ in range(3):
        clock.now += 0.25
        assert not notices.pass_on(signal.SIGUSR1)
        assert not notices.pass_on(signal.SIGUSR1, node="b")
    assert passed_on == [signal.SIGUSR1]
    clock.now += 0.25  # a second after the one that was passed on, not after the last
    assert notices.pass_on(signal.SIGUSR1, node="b")
    assert passed_on == [signal.SIGUSR1] * 2


def test_each_signal_counts_for_itself(notices, passed_on):
    assert notices.pass_on(signal.SIGUSR1)
    assert notices.pass_on(signal.SIGUSR2)
    assert passed_on == [signal.SIGUSR1, signal.SIGUSR2]


def test_new_workers_have_got_nothing_yet(notices, passed_on):
    notices.pass_on(signal.SIGUSR1)
    notices.forget()
    assert notices.pass_on(signal.SIGUSR1)
    assert passed_on == [signal.SIGUSR1] * 2


def test_what_is_said_of_it(notices, caplog):
    caplog.set_level(logging.DEBUG, "plaunch")
    notices.pass_on(signal.SIGUSR1, node="b")
    notices.pass_on(signal.SIGUSR1)
    notices.pass_on(signal.SIGUSR1, node="c")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "SIGUSR1 received on node b; it is passed on and the job goes on"),
        ("INFO", "SIGUSR1 received within a second of the last; the workers have it already"),
        (
            "DEBUG",
            "SIGUSR1 received on node c within a second of the last; the workers have it already",
        ),
    ]
