"""Whether workers move, from made-up looks: against a naive model, and case by case."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plaunch_hang.watch import ChildSight, Finding, HangWatch, Sight, pause_for

TIMEOUT = 100.0
PAUSE = pause_for(TIMEOUT)


def child(place):
    return ChildSight(place, "same variables")


class Node:
    """Workers that a test moves, looked at in time unless it says otherwise."""

    def __init__(self, count=3):
        self.watch = HangWatch()
        self.now = 1000.0
        self.sights = {rank: Sight(100 + rank, "a", timeout=TIMEOUT) for rank in range(count)}
        self.look()

    def look(self, passed=PAUSE, **changes):
        """Look once more; `changes` are of single workers, as `r2=dict(place="b")`."""
        for name, change in changes.items():
            rank = int(name[1:])
            self.sights[rank] = self.sights[rank]._replace(**change)
        self.now += passed
        return self.watch.look(self.now, self.sights, PAUSE)

    def until(self, most=100):
        """Look until something is found that was not told: the number of looks, and that."""
        for number in range(1, most + 1):
            found = self.look()
            if found.still and self.watch.is_told:
                continue
            if found.still:
                self.watch.note_told(is_hang=True)
            if found != Finding():
                return number, found
        return None


def test_nobody_moves():
    node = Node()
    assert node.until() == (20, Finding(still=TIMEOUT))
    assert node.until() is None  # it is said once
    assert node.look(r1={"place": "b"}) == Finding(recovered=(1,))
    assert node.until()[1].recovered == ()  # the others may hang on


def test_all_recover_and_hang_again():
    node = Node()
    node.until()
    moved = {f"r{rank}": {"place": "b"} for rank in range(3)}
    assert node.look(**moved) == Finding(recovered=(0, 1, 2))
    assert node.until() == (20, Finding(still=TIMEOUT))


def test_one_that_moves_is_enough():
    node = Node()
    for number in range(19):
        assert node.look(r0={"place": number}) == Finding()
    assert node.look(r0={"place": "x"}) == Finding(stragglers=(1, 2))
    for number in range(100):
        assert node.look(r0={"place": number}) == Finding()
    assert node.look(r0={"place": "y"}, r2={"place": "b"}) == Finding(recovered=(2,))


def test_a_process_that_a_worker_waits_for_moves():
    node = Node(1)
    for number in range(50):
        assert node.look(r0={"children": {7: child(number), 8: child("idle")}}) == Finding()
    assert node.until()[1] == Finding(still=TIMEOUT)


def test_a_new_process_that_a_worker_waits_for_is_a_movement():
    node = Node(1)
    for number in range(50):
        assert node.look(r0={"children": {number: child("begins")}}) == Finding()


def test_a_process_that_is_not_seen_at_each_look_does_not_move():
    node = Node(1)
    for number in range(19):
        seen = {7: child("a")} if number % 2 else {}
        assert node.look(r0={"children": seen if number % 3 else None}) == Finding()
    assert node.look(r0={"children": {7: child("a")}}).still


def test_a_program_that_a_worker_waits_for_moves_while_it_uses_something():
    node = Node(1)
    for number in range(50):
        assert node.look(r0={"children": {7: ChildSight(use=number)}}) == Finding()
    assert node.until()[1] == Finding(still=TIMEOUT)


def test_a_process_whose_stack_cannot_always_be_read_moves_if_that_was_seen():
    """What is seen of it in one way is compared with what was seen in that way before."""
    sights = [child("a"), ChildSight(use=1), ChildSight("a"), child("a")]
    node = Node(1)
    for number in range(19):
        assert node.look(r0={"children": {7: sights[number % 4]}}) == Finding()
    assert node.look(r0={"children": {7: child("a")}}).still
    assert node.look(r0={"children": {7: ChildSight("a", "c")}}) == Finding()
    assert node.look(r0={"children": {7: ChildSight(use=2)}}) == Finding()
    assert node.until() == (20, Finding(still=TIMEOUT))


def test_they_stop_moving_one_after_the_other():
    """The last ones are no others that move, if they have just stopped as well."""
    node = Node()
    for number in range(10):
        node.look(r0={"place": number})
    assert node.until() == (20, Finding(still=TIMEOUT))


def test_output_is_a_movement_of_the_worker_that_writes_it():
    node = Node()
    for number in range(1, 20):
        assert node.look(r0={"output": number}) == Finding()
    assert node.look(r0={"output": 20}) == Finding(stragglers=(1, 2))
    for number in range(21, 100):
        assert node.look(r0={"output": number}) == Finding()
    assert node.until() == (20, Finding(still=TIMEOUT))


def test_heartbeats_count_alone():
    node = Node()
    for number in range(1, 30):
        assert node.look(**{f"r{rank}": {"beats": number} for rank in range(3)}) == Finding()
    for number in range(19):
        moved = {"place": number, "output": number}
        assert node.look(**{f"r{rank}": moved for rank in range(3)}) == Finding()
    assert node.look() == Finding(still=TIMEOUT)


def test_a_section_of_one_keeps_the_job():
    node = Node()
    node.look(r0={"timeout": 3 * TIMEOUT})
    assert node.until() == (59, Finding(still=3 * TIMEOUT))
    endless = Node()
    endless.look(r0={"timeout": math.inf})
    assert endless.until(1000) is None


@pytest.mark.parametrize("what", ["held", "other process", "another comes", "one ends"])
def test_what_is_no_hang(what):
    node = Node()
    for _ in range(19):
        node.look()
    if what == "held":
        for _ in range(100):
            assert node.look(r1={"is_held": True}) == Finding()
        assert node.look(r1={"is_held": False}) == Finding(still=TIMEOUT)
        return
    if what == "other process":
        assert node.look(r1={"pid": 999}) == Finding()
    elif what == "another comes":
        node.sights[3] = Sight(103, "a", timeout=TIMEOUT)
        assert node.look() == Finding()
    else:
        del node.sights[1]
        assert node.look() == Finding()
    assert node.until() == (20, Finding(still=TIMEOUT))


def test_without_workers_nothing_hangs():
    node = Node(0)
    assert node.until(1000) is None


def test_a_launcher_that_did_not_run_has_not_waited():
    node = Node()
    for _ in range(15):
        assert node.look(passed=10 * TIMEOUT) == Finding()
    assert node.look(passed=10 * TIMEOUT).still == TIMEOUT
    back = Node()
    assert all(back.look(passed=-1.0) == Finding() for _ in range(100))


def test_a_few_looks_are_no_proof():
    """On a busy machine there are long pauses between them."""
    watch, now, sights = HangWatch(), 1000.0, {0: Sight(100, "a", timeout=TIMEOUT)}
    watch.look(now, sights, 5 * PAUSE)
    found = [watch.look(now + n * 5 * PAUSE, sights, 5 * PAUSE).still for n in range(1, 14)]
    assert not any(found[:11])
    assert found[12]


def test_what_could_not_be_seen_is_no_proof():
    node = Node(1)
    for _ in range(10):
        assert node.look(r0={"place": None}) == Finding()
    node.look(r0={"place": "b"})  # it has moved while nobody saw
    for _ in range(10):
        node.look(r0={"place": None})
        node.look(r0={"place": "b"})
    assert node.look().still == 0.0
    assert node.until() is not None


def test_a_loop_that_is_always_on_one_line_is_no_hang():
    node = Node(2)
    found, deep = [], 0
    for number in range(200):
        suspects = node.watch.suspects()
        deep += bool(suspects)
        for rank in (0, 1):
            node.sights[rank] = node.sights[rank]._replace(
                variables=number if rank in suspects else None
            )
        found.append(node.look())
    assert set(found) == {Finding()}
    assert 0 < deep < 30  # which are dearer looks


def test_the_same_variables_are_a_hang():
    node = Node(1)
    node.sights[0] = node.sights[0]._replace(variables="same")
    assert node.until() == (20, Finding(still=TIMEOUT))


def test_computing_on_one_line_is_no_hang():
    node = Node(2)
    for _ in range(10):
        node.look()
    assert node.look(r0={"computes": True}) == Finding()
    assert node.watch.suspects() == {1}
    node.look(r0={"computes": False})
    assert node.until() == (19, Finding(still=TIMEOUT))


def test_computing_does_not_replace_heartbeats():
    node = Node(1)
    node.look(r0={"beats": 1, "computes": True})
    assert node.until() == (20, Finding(still=TIMEOUT))


def test_those_with_heartbeats_are_no_suspects():
    node = Node(2)
    node.look(r0={"beats": 1})
    for _ in range(15):
        node.look()
    assert node.watch.suspects() == {1}


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
    """A hang is told if and only if each worker was seen not to move for long enough."""
    watch, now = HangWatch(), 0.0
    places, beats, written = [0, 0], [0, 0], [0, 0]
    still = [0.0, 0.0]  # by the model
    known = [0, 0]  # the places seen last
    is_told, is_first = False, True
    for passed, moves, times in history:
        for _ in range(times):
            now += passed
            sights = {}
            for rank, move in enumerate(moves):
                places[rank] += move == "move"
                beats[rank] += move == "beat"
                written[rank] += move == "write"
                place = None if move == "blind" else places[rank]
                sights[rank] = Sight(
                    rank,
                    place,
                    beats=beats[rank],
                    is_held=move == "held",
                    timeout=TIMEOUT,
                    output=written[rank],
                )
            found = watch.look(now, sights, PAUSE)
            if is_first:
                is_first = False
                known = [sights[0].place, sights[1].place]
                assert found == Finding()
                continue
            counted = 0.0 if "held" in moves else min(passed, 1.25 * PAUSE)
            has_moved = False
            for rank, seen in sights.items():
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
                watch.note_told(is_hang=True)
            is_told = hangs or (is_told and not found.recovered)
            assert watch.is_told == is_told
            assert not set(found.stragglers) & set(found.recovered)
