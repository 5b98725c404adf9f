"""Which nodes are lost, over histories of heartbeats; and the clock that judges them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plaunch_membership.liveness import AwakeClock, LivenessObserver

from helpers.calls import at_once
from helpers.clock import Clock


def run(history, *, interval=1.0, max_misses=3, own=None):
    """Return the lost nodes at each step of `history`, a list of (seconds passed, heartbeats)."""
    clock = Clock(1000.0)
    observer = LivenessObserver(interval, max_misses, clock)
    found = []
    for seconds, beats in history:
        clock.now += seconds
        found.append(observer.observe(beats, own=own))
    return found


def beats_of(text):
    """Heartbeats of node `a` from a word: equal letters are equal heartbeats, a dot is none."""
    return [{"a": None if letter == "." else letter.encode()} for letter in text]


def word(found):
    """Whether a node is lost at each step: "-" no, "L" yes."""
    return "".join("L" if nodes else "-" for nodes in found)


HISTORIES = {
    # name: (max_misses, heartbeats, whether it is lost at each step: "-" no, "L" yes)
    "alive": (3, "abcdefgh", "--------"),
    "silent": (3, "abbbbb", "----LL"),
    "slow, but not dead": (3, "aaabbbccc", "---------"),
    "silent once, then again": (3, "aabbbb", "-----L"),
    "back from the dead": (3, "aaaaabbbb", "---LL---L"),
    "one miss is one too many": (1, "abb", "--L"),
    "never seen": (3, "....", "---L"),
    "never seen, one miss": (1, "...", "--L"),
    "seen late": (3, "..abc", "-----"),
    "gone": (5, "ab...", "----L"),
    "gone, but back": (5, "ab..cdef", "--------"),
    "gone twice, but back": (5, "ab..c..d", "--------"),
    "gone, and back as it was": (5, "aa..aa", "------"),
    "gone, two misses": (2, "ab..", "---L"),
    "gone, never at once": (1, "ab..", "---L"),
    "silent, then gone": (3, "aab...", "-----L"),
    "silent for long, then gone": (5, "abbbb..", "------L"),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_histories(name):
    max_misses, beats, lost = HISTORIES[name]
    assert word(run([(1.0, beat) for beat in beats_of(beats)], max_misses=max_misses)) == lost


@pytest.mark.parametrize(
    ("steps", "lost"),
    [
        ([1] * 4 + [60] + [1] * 3, "---L---L"),  # a suspension revives lost nodes
        ([2.5] * 8, "------LL"),  # always slow: three late observations, then three that count
        ([2.5, 1.0] * 20, "-" * 40),  # suspensions, with an observation in time between them
    ],
)
def test_pauses(steps, lost):
    assert word(run([(seconds, {"a": b"0"}) for seconds in steps])) == lost


def test_nodes_are_judged_one_by_one():
    history = [(1.0, {"a": b"%d" % n, "b": b"0", "c": b"0", "d": None}) for n in range(4)]
    assert run(history) == [[], [], [], ["b", "c", "d"]]


@pytest.mark.parametrize(
    ("interval", "pause", "is_late"),
    [(1.0, 2.0, False), (1.0, 2.1, True), (0.1, 0.9, False), (0.1, 1.1, True), (10, 20.5, True)],
)
def test_after_a_suspension_all_counts_restart(interval, pause, is_late):
    still = {"a": b"0"}
    steps = [interval] * 3 + [pause] + [interval] * 3
    found = run([(seconds, still) for seconds in steps], interval=interval)
    lost_at = next(step for step, nodes in enumerate(found) if nodes)
    assert lost_at == (6 if is_late else 3)


def test_an_observer_without_its_own_heartbeat_judges_no_node():
    # As after a store was suspended for so long that it has revoked all leases.
    gone, back = {"me": None, "a": None}, {"me": b"1", "a": None}
    steps = [{"me": b"0", "a": b"0"}, gone, gone, gone, gone, back, back, back]
    found = run([(1.0, beats) for beats in steps], own="me")
    assert found == [[], [], [], [], [], [], [], ["a"]]


def test_an_observer_is_never_lost_itself():
    assert run([(1.0, {"me": b"0"})] * 10, own="me") == [[]] * 10


def test_observations_in_quick_succession_count_once():
    still = {"a": b"0"}
    # Ten observations within two seconds, then one each second.
    assert run([(0.2, still)] * 10) == [[]] * 10
    found = run([(0.2, still)] * 50, max_misses=5)
    first = next(step for step, nodes in enumerate(found) if nodes)
    assert first * 0.2 > 3.75  # and not after five observations, one second


def test_an_early_observation_registers_a_new_heartbeat():
    found = run([(1, {"a": b"0"}), (0.9, {"a": b"0"}), (0.1, {"a": b"1"})] + [(1, {"a": b"1"})] * 3)
    assert found == [[], [], [], [], [], ["a"]]


def test_silence_starts_at_the_last_new_heartbeat():
    clock = Clock(1000.0)
    observer = LivenessObserver(1.0, 5, clock)
    for beat, silent in ((b"0", 0), (b"1", 0), (b"1", 1), (b"1", 2), (None, 3), (b"2", 0)):
        clock.now += 1
        observer.observe({"a": beat})
        assert observer.describe_loss("a") == f"no heartbeat for {silent}.0 s"


def test_a_store_that_deletes_heartbeats_of_dead_processes_proves_the_loss():
    observer = LivenessObserver(1.0, 5, Clock(1000.0), absence_is_loss=True)
    assert observer.observe({"a": b"0", "b": None, "me": b"0"}, own="me") == ["b"]
    assert observer.observe({"a": None, "b": b"1", "me": b"0"}, own="me") == ["a"]
    assert observer.describe_loss("a") == "its connection to the store has ended"
    assert observer.observe({"a": b"2", "b": b"1", "me": b"0"}, own="me") == []


@pytest.mark.parametrize("own", [b"1", None])
def test_after_a_late_observation_other_nodes_have_an_interval_to_connect_again(own):
    """The store was suspended: one node after the other notices that, and sends a heartbeat."""
    clock = Clock(1000.0)
    observer = LivenessObserver(5.0, 5, clock, absence_is_loss=True)
    assert observer.observe({"a": b"0", "b": b"0", "me": b"0"}, own="me") == []
    clock.now += 30.0 if own else 5.0
    assert observer.observe({"a": None, "b": None, "me": own}, own="me") == []
    clock.now += 2.0  # as others have lost their connections
    assert observer.observe({"a": b"1", "b": None, "me": b"1"}, own="me") == []
    clock.now += 3.0
    assert observer.observe({"a": b"1", "b": None, "me": b"1"}, own="me") == ["b"]


def test_a_store_that_is_always_slow_hides_no_dead_process():
    clock = Clock(1000.0)
    observer = LivenessObserver(1.0, 5, clock, absence_is_loss=True)
    found = []
    for _ in range(5):
        found.append(observer.observe({"a": None, "me": b"0"}, own="me"))
        clock.now += 4.0
    assert found[1:] == [[], [], [], ["a"]]


def test_nodes_that_are_not_named_keep_their_counts():
    history = [{"a": b"0"}, {"a": b"0"}, {}, {}, {"a": b"0"}, {"a": b"0"}]
    found = run([(1.0, beats) for beats in history])
    assert found == [[], [], [], [], [], ["a"]]


@given(
    seed=st.integers(0, 2**32),
    interval=st.sampled_from([0.2, 1.0, 5.0]),
    max_misses=st.integers(3, 6),
)
def test_a_node_that_beats_is_never_lost_and_one_that_stopped_always_is(seed, interval, max_misses):
    """Both in time, for any phase, with jitter of a quarter of an interval."""
    rng = random.Random(seed)

    def moments(until):
        now = rng.uniform(0, interval)
        while now < until:
            yield now
            now += interval * rng.uniform(1.0, 1.25)

    end = 60 * interval
    death = rng.uniform(5, 30) * interval
    beats = {"well": list(moments(end)), "dead": [at for at in moments(end) if at < death]}
    clock = Clock(1000.0)
    observer = LivenessObserver(interval, max_misses, clock)
    lost_at = None
    for now in moments(end):
        clock.now = 1000 + now
        seen = {
            node: (b"%d" % count) if (count := sum(at <= now for at in times)) else None
            for node, times in beats.items()
        }
        lost = observer.observe(seen)
        assert "well" not in lost
        assert now >= death or not lost
        if lost and lost_at is None:
            lost_at = now
    assert lost_at is not None
    silence = lost_at - beats["dead"][-1]
    assert interval * (max_misses - 1) < silence <= interval * 1.25 * (max_misses + 2)


@given(st.lists(st.tuples(st.floats(0.01, 5), st.sampled_from("ab.")), max_size=40))
def test_no_node_is_lost_before_its_time(steps):
    clock = Clock(1000.0)
    observer = LivenessObserver(1.0, 3, clock)
    first = last_new = None
    for seconds, letter in steps:
        clock.now += seconds
        (beats,) = beats_of(letter)
        if first is None:
            first = clock.now
        if beats["a"] not in (None, last_new):
            last_new, first = beats["a"], clock.now
        if observer.observe(beats):
            assert clock.now - first >= 3 * 0.75 - 1e-6


# --- a clock of processes that may be suspended ---------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "counted"),
    [
        ([1.0, 1.0, 0.5], 2.5),
        ([3.0], 3.0),
        ([65.0], 3.0),
        ([1.0, 86400.0, 1.0], 5.0),
        ([4.0, 4.0], 6.0),
        ([0.0, 0.0], 0.0),
    ],
)
def test_a_suspension_counts_at_most_the_maximum(steps, counted):
    real = Clock(1e6)
    clock = AwakeClock(3.0, real)
    began = clock()
    for step in steps:
        real.now += step
        now = clock()
    assert now - began == pytest.approx(counted)


def test_concurrent_readers_count_no_time_twice():
    real = Clock()
    clock = AwakeClock(3.0, real)
    began = clock()
    real.now += 2.0
    at_once(*[lambda: [clock() for _ in range(500)]] * 4)
    assert clock() - began == pytest.approx(2.0)
