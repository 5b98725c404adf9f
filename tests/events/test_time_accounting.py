"""Where the time of a run went, from histories of events."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plaunch_events.time_accounting import TimeAccount, describe_seconds, describe_times


@dataclass
class FakeEvent:
    name: str
    monotonic: float
    metadata: dict = field(default_factory=dict)


def account_of(*history):
    """The account of events given as (second, name, metadata)."""
    account = TimeAccount()
    for second, name, *metadata in history:
        account.note(FakeEvent(f"plaunch.{name}", 1000.0 + second, *metadata))
    return account


def seconds_of(*history):
    seconds = account_of(*history).seconds
    assert seconds.pop("total") == pytest.approx(sum(seconds.values()))
    return {name: round(value, 6) for name, value in seconds.items() if value}


FAILED = {"exit_code": 1, "stopped": False}
WELL = {"exit_code": 0, "stopped": False}
SUCCEEDED = {"old": "HEALTHY", "new": "SUCCEEDED"}
UP = [(0, "launcher.started"), (1, "rendezvous.begun"), (3, "rendezvous.completed")]
TRAINS = [*UP, (4, "workers.started"), (4, "state.changed", {"old": "INIT", "new": "HEALTHY"})]
FAILS = [
    *TRAINS,
    (10, "worker.exited", FAILED),
    (10, "state.changed", {"old": "HEALTHY", "new": "STOPPED"}),
    (10, "restart", {"cause": "failure"}),
    (10, "stop.step", {"step": "signalled"}),
    (12, "worker.exited", {"exit_code": -15, "stopped": True}),
    (12, "stop.step", {"step": "gone"}),
]
AGAIN = [(13, "rendezvous.begun"), (15, "rendezvous.completed"), (16, "workers.started")]

# name: (events, seconds that are not 0, restarts)
HISTORIES = {
    "nothing": ([], {}, 0),
    "success": (
        [*TRAINS, (9, "state.changed", SUCCEEDED), (11, "launcher.finished")],
        {"starting": 2, "waiting": 4, "training": 5},
        0,
    ),
    "a console that is slow to the end": (
        [
            *TRAINS,
            (9, "state.changed", SUCCEEDED),
            (10, "console.awaited", {"waiting_bytes": 9}),
            (40, "launcher.finished"),
        ],
        {"starting": 2, "waiting": 3, "training": 5, "showing": 30},
        0,
    ),
    "a console that is slow after a failure": (
        [*FAILS, (13, "console.awaited", {"waiting_bytes": 9}), (20, "launcher.finished")],
        {"starting": 2, "waiting": 2, "training": 6, "stopping": 3, "showing": 7},
        0,
    ),
    "a failure, a restart, success": (
        [*FAILS, *AGAIN, (20, "state.changed", SUCCEEDED), (20, "launcher.finished")],
        {"starting": 2, "waiting": 2, "training": 10, "lost": 6},
        1,
    ),
    "two restarts": (
        [
            *FAILS,
            *AGAIN,
            (17, "failure"),
            (18, "rendezvous.begun"),
            (19, "rendezvous.completed"),
            (20, "workers.started"),
            (25, "launcher.finished"),
        ],
        {"starting": 2, "waiting": 2, "training": 12, "lost": 9},
        2,
    ),
    "a failure that ends the job": (
        [*FAILS, (12.5, "launcher.finished")],
        {"starting": 2, "waiting": 2, "training": 6, "stopping": 2.5},
        0,
    ),
    # If the job decides, the agent joins a rendezvous and learns that no round follows.
    "a failure that ends the job, as the others say": (
        [*FAILS, (13, "rendezvous.begun"), (14, "rendezvous.failed"), (16, "launcher.finished")],
        {"starting": 2, "waiting": 3, "training": 6, "stopping": 5},
        0,
    ),
    "a signal while training": (
        [*TRAINS, (9, "signal.received", {"action": "stop"}), (12, "launcher.finished")],
        {"starting": 2, "waiting": 2, "training": 5, "stopping": 3},
        0,
    ),
    "a signal that is passed on": (
        [*TRAINS, (9, "signal.received", {"action": "notify"}), (12, "launcher.finished")],
        {"starting": 2, "waiting": 2, "training": 8},
        0,
    ),
    "a signal while the nodes meet": (
        [*UP[:2], (5, "signal.received", {"action": "stop"}), (6, "launcher.finished")],
        {"starting": 1, "waiting": 4, "stopping": 1},
        0,
    ),
    "nobody comes": (
        [*UP[:2], (61, "rendezvous.failed"), (62, "launcher.finished")],
        {"starting": 1, "waiting": 60, "stopping": 1},
        0,
    ),
    "workers that cannot be started": (
        [*UP, (5, "stop.step", {"step": "signalled"}), (6, "launcher.finished")],
        {"starting": 3, "waiting": 2, "stopping": 1},
        0,
    ),
    "a membership change": (
        [
            *TRAINS,
            (8, "membership.changed", {"kind": "arrived"}),
            (8, "restart"),
            *AGAIN,
            (18, "launcher.finished"),
        ],
        {"starting": 2, "waiting": 2, "training": 6, "lost": 8},
        1,
    ),
    # The others trained while this node lingered: only what follows their failure is lost.
    "a failure elsewhere after success here": (
        [
            *TRAINS,
            (6, "state.changed", SUCCEEDED),
            (10, "failure"),
            *AGAIN,
            (17, "launcher.finished"),
        ],
        {"starting": 2, "waiting": 6, "training": 3, "lost": 6},
        1,
    ),
    # Late events of the previous round, during a rendezvous, do not change the phase.
    "a failure that is heard of late": (
        [*FAILS, AGAIN[0], (14, "failure"), (15, "launcher.finished")],
        {"starting": 2, "waiting": 4, "training": 6, "stopping": 3},
        0,
    ),
    "the beginning is missing": (
        [(4, "workers.started"), (6, "worker.exited", FAILED), (7, "launcher.finished")],
        {"training": 2, "stopping": 1},
        0,
    ),
    "a worker that ends well ends nothing": (
        [*TRAINS, (6, "worker.exited", WELL), (9, "launcher.finished")],
        {"starting": 2, "waiting": 2, "training": 5},
        0,
    ),
    "a clock that goes back": (
        [
            (0, "launcher.started"),
            (5, "rendezvous.begun"),
            (3, "rendezvous.completed"),
            (6, "workers.started"),
        ],
        {"starting": 6},
        0,
    ),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_histories(name):
    history, seconds, restarts = HISTORIES[name]
    assert seconds_of(*history) == seconds
    assert account_of(*history).restarts == restarts


def test_times_continue_between_events():
    account = account_of(*TRAINS)
    account.advance(1010.0)
    assert account.seconds["training"] == 6
    assert account.seconds["total"] == 10
    assert account.phase.value == "training"


def test_seconds_are_a_copy():
    account = account_of(*TRAINS)
    account.seconds["training"] = 99
    assert account.seconds["training"] == 0


NAMES = [
    ("launcher.started", {}),
    ("rendezvous.begun", {}),
    ("rendezvous.completed", {}),
    ("rendezvous.failed", {}),
    ("workers.started", {}),
    ("worker.exited", FAILED),
    ("worker.exited", WELL),
    ("failure", {}),
    ("restart", {"cause": "failure"}),
    ("signal.received", {"action": "stop"}),
    ("stop.step", {"step": "killed"}),
    ("state.changed", SUCCEEDED),
    ("state.changed", {"old": "HEALTHY", "new": "STOPPED"}),
    ("launcher.finished", {}),
    ("of.another.kind", {}),
]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**6),  # milliseconds since the event before; whole, so sums are exact
            st.sampled_from(NAMES),
        )
    )
)
def test_the_phases_sum_to_the_time_from_the_first_event_to_the_last(steps):
    account, now, first = TimeAccount(), 0, None
    trained = 0
    for wait, (name, metadata) in steps:
        now += wait
        first = now if first is None else first
        before = account.seconds
        account.note(FakeEvent(f"plaunch.{name}", now, metadata))
        seconds = account.seconds
        assert seconds["total"] == now - first
        assert seconds["total"] == sum(seconds[key] for key in seconds if key != "total")
        assert min(seconds.values()) >= 0
        # Training and lost time are final; other time may still be counted as lost.
        assert seconds["training"] >= before["training"]
        assert seconds["lost"] >= before["lost"]
        trained += name == "workers.started"
        assert account.restarts <= max(trained - 1, 0)
        assert account.restarts or not seconds["lost"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.44, "0.4 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (3599.6, "1 h"),
        (72 * 60 + 14, "1 h 12 min"),
        (86399, "1 d"),
        (51 * 3600 + 60, "2 d 3 h"),
    ],
)
def test_durations_in_words(seconds, text):
    assert describe_seconds(seconds) == text


def test_the_account_in_one_line():
    seconds = {"waiting": 41, "starting": 3, "training": 4200, "stopping": 6, "lost": 52}
    seconds["total"] = sum(seconds.values())
    assert describe_times(seconds, 2) == (
        "1 h 12 min: 41 s waiting for nodes, 3 s starting, 1 h 10 min training, "
        "6 s stopping, 52 s lost to 2 restarts"
    )


def test_categories_without_time_are_left_out():
    assert account_of((0, "launcher.started"), (0.01, "rendezvous.begun")).describe() == ""
    assert account_of(*TRAINS, (5, "launcher.finished")).describe() == (
        "5 s: 2 s waiting for nodes, 2 s starting, 1 s training"
    )
    seconds = {"waiting": 0, "starting": 1, "training": 1, "stopping": 0, "lost": 0.01, "total": 2}
    assert describe_times(seconds, 1) == "2 s: 1 s starting, 1 s training, 1 restart"
    assert account_of(*FAILS, *AGAIN).describe().endswith("6 s lost to 1 restart")
