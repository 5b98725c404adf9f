"""Whether workers move, from made-up samples: against a naive model, and case by case."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plaunch_hang.watch import ChildSample, HangFinding, HangWatch, WorkerSample, pause_for

TIMEOUT = 100.0
PAUSE = pause_for(TIMEOUT)


def child(place):
    return ChildSample(place, "same variables")


class Node:
    """Workers that a test moves; samples are in time by default."""

    def __init__(self, count=3):
        self.watch = HangWatch()
        self.now = 1000.0
        self.samples = {
            rank: WorkerSample(100 + rank, "a", timeout=TIMEOUT) for rank in range(count)
        }
        self.sample()

    def sample(self, passed=PAUSE, **changes):
        """Take a sample; `changes` are of single workers, as `r2=dict(place="b")`."""
        for name, change in changes.items():
            rank = int(name[1:])
            self.samples[rank] = self.samples[rank]._replace(**change)
        self.now += passed
        return self.watch.sample(self.now, self.samples, PAUSE)

    def until(self, most=100):
        """Take samples until something new is found; return their number, and the finding."""
        for number in range(1, most + 1):
            found = self.sample()
            if found.still and self.watch.is_reported:
                continue
            if found.still:
                self.watch.note_reported(is_hang=True)
            if found != HangFinding():
                return number, found
        return None


def test_no_worker_moves():
    node = Node()
    assert node.until() == (20, HangFinding(still=TIMEOUT))
    assert node.until() is None  # it is said once
    assert node.sample(r1={"place": "b"}) == HangFinding(recovered=(1,))
    assert node.until()[1].recovered == ()  # the others may hang on


def test_all_recover_and_hang_again():
    node = Node()
    node.until()
    moved = {f"r{rank}": {"place": "b"} for rank in range(3)}
    assert node.sample(**moved) == HangFinding(recovered=(0, 1, 2))
    assert node.until() == (20, HangFinding(still=TIMEOUT))


def test_one_that_moves_is_enough():
    node = Node()
    for number in range(19):
        assert node.sample(r0={"place": number}) == HangFinding()
    assert node.sample(r0={"place": "x"}) == HangFinding(stragglers=(1, 2))
    for number in range(100):
        assert node.sample(r0={"place": number}) == HangFinding()
    assert node.sample(r0={"place": "y"}, r2={"place": "b"}) == HangFinding(recovered=(2,))


def test_a_process_that_a_worker_waits_for_moves():
    node = Node(1)
    for number in range(50):
        assert node.sample(r0={"children": {7: child(number), 8: child("idle")}}) == HangFinding()
    assert node.until()[1] == HangFinding(still=TIMEOUT)


def test_a_new_child_process_is_movement():
    node = Node(1)
    for number in range(50):
        assert node.sample(r0={"children": {number: child("begins")}}) == HangFinding()


def test_a_process_that_is_not_in_each_sample_does_not_move():
    node = Node(1)
    for number in range(19):
        seen = {7: child("a")} if number % 2 else {}
        assert node.sample(r0={"children": seen if number % 3 else None}) == HangFinding()
    assert node.sample(r0={"children": {7: child("a")}}).still


def test_a_hold_of_a_child_process_is_not_movement():
    node = Node(1)
    for number in range(19):
        seen = child("a")._replace(hold="waiting for process 7, which is suspended" * (number % 2))
        assert node.sample(r0={"children": {7: seen}}) == HangFinding()
    assert node.sample().still


def test_a_program_that_a_worker_waits_for_moves_while_it_uses_something():
    node = Node(1)
    for number in range(50):
        assert node.sample(r0={"children": {7: ChildSample(use=number)}}) == HangFinding()
    assert node.until()[1] == HangFinding(still=TIMEOUT)


def test_a_process_with_a_stack_that_is_not_always_readable():
    """Each kind of data is compared with the last known data of that kind."""
    samples = [child("a"), ChildSample(use=1), ChildSample("a"), child("a")]
    node = Node(1)
    for number in range(19):
        assert node.sample(r0={"children": {7: samples[number % 4]}}) == HangFinding()
    assert node.sample(r0={"children": {7: child("a")}}).still
    assert node.sample(r0={"children": {7: ChildSample("a", "c")}}) == HangFinding()
    assert node.sample(r0={"children": {7: ChildSample(use=2)}}) == HangFinding()
    assert node.until() == (20, HangFinding(still=TIMEOUT))


def test_they_stop_moving_one_after_the_other():
    """Workers that have just stopped too do not count as moving."""
    node = Node()
    for number in range(10):
        node.sample(r0={"place": number})
    assert node.until() == (20, HangFinding(still=TIMEOUT))


def test_output_is_movement_of_its_worker():
    node = Node()
    for number in range(1, 20):
        assert node.sample(r0={"output": number}) == HangFinding()
    assert node.sample(r0={"output": 20}) == HangFinding(stragglers=(1, 2))
    for number in range(21, 100):
        assert node.sample(r0={"output": number}) == HangFinding()
    assert node.until() == (20, HangFinding(still=TIMEOUT))


def test_with_heartbeats_nothing_else_counts():
    node = Node()
    for number in range(1, 30):
        assert node.sample(**{f"r{rank}": {"beats": number} for rank in range(3)}) == HangFinding()
    for number in range(19):
        moved = {"place": number, "output": number}
        assert node.sample(**{f"r{rank}": moved for rank in range(3)}) == HangFinding()
    assert node.sample() == HangFinding(still=TIMEOUT)


def test_a_section_of_one_worker_delays_the_hang():
    node = Node()
    node.sample(r0={"timeout": 3 * TIMEOUT})
    assert node.until() == (59, HangFinding(still=3 * TIMEOUT))
    endless = Node()
    endless.sample(r0={"timeout": math.inf})
    assert endless.until(1000) is None


@pytest.mark.parametrize("what", ["held", "other process", "another comes", "one ends"])
def test_histories_without_a_hang(what):
    node = Node()
    for _ in range(19):
        node.sample()
    if what == "held":
        for _ in range(100):
            assert node.sample(r1={"is_held": True}) == HangFinding()
        assert node.sample(r1={"is_held": False}) == HangFinding(still=TIMEOUT)
        return
    if what == "other process":
        assert node.sample(r1={"pid": 999}) == HangFinding()
    elif what == "another comes":
        node.samples[3] = WorkerSample(103, "a", timeout=TIMEOUT)
        assert node.sample() == HangFinding()
    else:
        del node.samples[1]
        assert node.sample() == HangFinding()
    assert node.until() == (20, HangFinding(still=TIMEOUT))


def test_without_workers_nothing_hangs():
    node = Node(0)
    assert node.until(1000) is None


def test_time_in_which_the_launcher_was_suspended_does_not_count():
    node = Node()
    for _ in range(15):
        assert node.sample(passed=10 * TIMEOUT) == HangFinding()
    assert node.sample(passed=10 * TIMEOUT).still == TIMEOUT
    back = Node()
    assert all(back.sample(passed=-1.0) == HangFinding() for _ in range(100))


def test_a_few_samples_are_not_enough():
    """On a busy machine there are long pauses between them."""
    watch, now, samples = HangWatch(), 1000.0, {0: WorkerSample(100, "a", timeout=TIMEOUT)}
    watch.sample(now, samples, 5 * PAUSE)
    found = [watch.sample(now + n * 5 * PAUSE, samples, 5 * PAUSE).still for n in range(1, 14)]
    assert not any(found[:11])
    assert found[12]


def test_incomplete_samples_are_not_enough():
    node = Node(1)
    for _ in range(10):
        assert node.sample(r0={"place": None}) == HangFinding()
    node.sample(r0={"place": "b"})  # it has moved between two samples
    for _ in range(10):
        node.sample(r0={"place": None})
        node.sample(r0={"place": "b"})
    assert node.sample().still == 0.0
    assert node.until() is not None


def test_a_loop_on_one_line_is_not_a_hang():
    node = Node(2)
    found, deep = [], 0
    for number in range(200):
        suspects = node.watch.suspects()
        deep += bool(suspects)
        for rank in (0, 1):
            node.samples[rank] = node.samples[rank]._replace(
                variables=number if rank in suspects else None
            )
        found.append(node.sample())
    assert set(found) == {HangFinding()}
    assert 0 < deep < 30  # which cost more


def test_the_same_variables_are_a_hang():
    node = Node(1)
    node.samples[0] = node.samples[0]._replace(variables="same")
    assert node.until() == (20, HangFinding(still=TIMEOUT))


def test_computing_on_one_line_is_not_a_hang():
    node = Node(2)
    for _ in range(10):
        node.sample()
    assert node.sample(r0={"computes": True}) == HangFinding()
    assert node.watch.suspects() == {1}
    node.sample(r0={"computes": False})
    assert node.until() == (19, HangFinding(still=TIMEOUT))


def test_computing_does_not_replace_heartbeats():
    node = Node(1)
    node.sample(r0={"beats": 1, "computes": True})
    assert node.until() == (20, HangFinding(still=TIMEOUT))


def test_workers_are_suspects_after_half_of_their_timeout():
    """Those with heartbeats too: they may be in a debugger."""
    node = Node(3)
    node.sample(r0={"beats": 1})
    for number in range(15):
        node.sample(r2={"place": number})
    assert node.watch.suspects() == {0, 1}


# --- against a model ------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(
        st.sampled_from([PAUSE, PAUSE, PAUSE, 0.0, 3 * PAUSE, 1000.0]),
        st.lists(
            st.sampled_from(["stay", "stay", "stay", "move", "blind", "held", "beat", "write"]),
            min_size=2,
            max_size=2,
        ),
        st.integers(1, 25),
    ),
    max_size=30,
)


@given(steps)
def test_any_history(history):
    """A hang is found if and only if no worker moved for long enough."""
    watch, now = HangWatch(), 0.0
    places, beats, written = [0, 0], [0, 0], [0, 0]
    still = [0.0, 0.0]  # by the model
    known = [0, 0]  # the places seen last
    is_reported, is_first = False, True
    for passed, moves, times in history:
        for _ in range(times):
            now += passed
            samples = {}
            for rank, move in enumerate(moves):
                places[rank] += move == "move"
                beats[rank] += move == "beat"
                written[rank] += move == "write"
                place = None if move == "blind" else places[rank]
                samples[rank] = WorkerSample(
                    rank,
                    place,
                    beats=beats[rank],
                    is_held=move == "held",
                    timeout=TIMEOUT,
                    output=written[rank],
                )
            found = watch.sample(now, samples, PAUSE)
            if is_first:
                is_first = False
                known = [samples[0].place, samples[1].place]
                assert found == HangFinding()
                continue
            counted = 0.0 if "held" in moves else min(passed, 1.25 * PAUSE)
            has_moved = False
            for rank, seen in samples.items():
                beating = beats[rank] > 0
                is_seen = None not in (seen.place, known[rank])
                moves_place = is_seen and seen.place != known[rank]
                if moves[rank] == "beat" or (
                    not beating and (moves_place or moves[rank] == "write")
                ):
                    still[rank], has_moved = 0.0, True
                elif beating or is_seen:
                    still[rank] += counted
                known[rank] = known[rank] if seen.place is None else seen.place
            hangs = min(still) >= TIMEOUT
            assert bool(found.still) == hangs
            assert not (found.still and has_moved)
            if hangs:
                watch.note_reported(is_hang=True)
            is_reported = hangs or (is_reported and not found.recovered)
            assert watch.is_reported == is_reported
            assert not set(found.stragglers) & set(found.recovered)
