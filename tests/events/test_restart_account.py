"""The times of restarts, from histories of events."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plaunch_events.time_accounting import RestartAccount, describe_restart

PARTS = ("noticing", "stopping", "waiting", "starting")


@dataclass
class FakeEvent:
    name: str
    monotonic: float
    metadata: dict = field(default_factory=dict)


def play(account, *history):
    """The parts of the restart that the last event completed."""
    for second, name, *metadata in history:
        account.note(FakeEvent(f"plaunch.{name}", 1000.0 + second, *metadata))
    if account.seconds is None:
        return None
    assert account.seconds["total"] == pytest.approx(sum(account.seconds[part] for part in PARTS))
    return tuple(account.seconds[part] for part in PARTS)


def restart_of(*history):
    return play(RestartAccount(), *history)


FAILED = {"exit_code": 1, "stopped": False}
STOPPED = {"exit_code": -15, "stopped": True}
DECIDES = ("state.changed", {"old": "HEALTHY", "new": "STOPPED"})
TRAINS = [(0, "rendezvous.begun"), (1, "rendezvous.completed"), (2, "workers.started")]
DELAYED = ("restart.delayed", {"seconds": 5})
AGAIN = [(17, "rendezvous.begun"), (25, "rendezvous.completed"), (41, "workers.started")]

# name: events after the workers of the first round were started; noticing, stopping and so on
HISTORIES = {
    "a worker fails": (
        [(10, "worker.exited", FAILED), (11, *DECIDES), (16, "worker.exited", STOPPED), *AGAIN],
        (1, 6, 8, 16),
    ),
    "a restart is delayed": (
        [(10, "worker.exited", FAILED), (11, *DECIDES), (12, *DELAYED), *AGAIN],
        (1, 1, 13, 16),
    ),
    "a worker of another node fails": (
        [(10, "membership.changed", {"kind": "failed"}), (12, *DECIDES), *AGAIN],
        (2, 5, 8, 16),
    ),
    "a request": (
        [(10, "request.received", {"kind": "restart"}), (10, *DECIDES), *AGAIN],
        (0, 7, 8, 16),
    ),
    "all of them succeed, and others fail": (
        [
            (9, "worker.exited", {"exit_code": 0, "stopped": False}),
            (9, "state.changed", {"old": "HEALTHY", "new": "SUCCEEDED"}),
            (13, "membership.changed", {"kind": "failed"}),
            (14, "state.changed", {"old": "SUCCEEDED", "new": "STOPPED"}),
            *AGAIN,
        ],
        (1, 3, 8, 16),
    ),
    "a second worker fails while they are stopped": (
        [(10, *DECIDES), (12, "worker.exited", FAILED), *AGAIN],
        (0, 7, 8, 16),
    ),
    "what is heard while the nodes meet": (
        [(10, "failure"), (11, *DECIDES), AGAIN[0], (20, "membership.changed", {}), *AGAIN[1:]],
        (1, 6, 8, 16),
    ),
    "an agent that does not say that it stops them": ([(10, "failure"), *AGAIN], (0, 7, 8, 16)),
    "nothing is known of why": (AGAIN, (0, 0, 8, 16)),
    "the file begins late": ([AGAIN[2]], None),
    "a request that they stop": ([(10, "request.received", {"kind": "stop"}), *AGAIN[:2]], None),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_histories(name):
    history, parts = HISTORIES[name]
    assert restart_of(*TRAINS, *history) == parts


def test_the_first_start_is_not_a_restart():
    assert restart_of(*TRAINS) is None


def test_restarts_are_measured_separately():
    account = RestartAccount()
    assert play(account, *TRAINS, (10, "failure"), *AGAIN) == (0, 7, 8, 16)
    assert play(account, (41, "state.changed", {"new": "HEALTHY"})) is None
    assert play(account, (50, "failure"), (51, *DECIDES), (53, "rendezvous.begun")) is None
    assert play(account, (57, "rendezvous.completed"), (65, "workers.started")) == (1, 2, 4, 8)


@pytest.mark.parametrize(("raised", "noticing"), [(8, 3), (10.5, 1), (-5, 9)])
def test_a_worker_failed_when_it_wrote_its_error_file(raised, noticing):
    """Unless that is later than its exit, or before its start."""
    account = RestartAccount()
    play(account, *TRAINS)
    account.note_trouble(1000.0 + raised)
    parts = play(account, (10, "worker.exited", FAILED), (11, *DECIDES), *AGAIN)
    assert parts == (noticing, 6, 8, 16)


NAMES = [
    ("rendezvous.begun", {}),
    ("rendezvous.completed", {}),
    ("workers.started", {}),
    ("worker.exited", FAILED),
    ("failure", {}),
    ("membership.changed", {"kind": "lost"}),
    DECIDES,
]


@given(st.lists(st.tuples(st.integers(-2, 10**6), st.sampled_from(NAMES))))
def test_no_part_is_negative_whatever_the_order(steps):
    account, now = RestartAccount(), 0
    for wait, (name, metadata) in steps:
        now += wait
        account.note(FakeEvent(f"plaunch.{name}", now, metadata))
        if account.seconds is not None:
            assert min(account.seconds.values()) >= 0
            assert account.seconds["total"] == sum(account.seconds[part] for part in PARTS)


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ((0.01, 0, 0.01, 0.02), "less than 0.05 s"),
        ((0.01, 0.31, 0.1, 0.02), "0.4 s: 0.3 s stopping, 0.1 s waiting"),
        ((0.1, 12, 200, 1.4), "3 min 34 s: 0.1 s noticing, 12 s stopping, 3 min 20 s waiting, "
         "1.4 s starting"),
        ((0.04, 0.04, 0, 0), "0.1 s"),
    ],
)  # fmt: skip
def test_a_restart_in_one_line(parts, text):
    seconds = {**dict(zip(PARTS, parts, strict=True)), "total": sum(parts)}
    assert describe_restart(seconds) == text
