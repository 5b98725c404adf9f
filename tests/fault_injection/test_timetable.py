"""When faults are due, with the test's clock, files and seeds."""

from __future__ import annotations

import pytest
from plaunch_fault_injection.faults import parse_faults
from plaunch_fault_injection.timetable import CHECK_INTERVAL, Due, Round, Timetable, get_file_state

FIRST = Round(number=0, attempt=0, world_size=4, group_world_size=2)
SECOND = FIRST._replace(number=1, attempt=1)


def timetable(text, files=None):
    return Timetable(parse_faults(text), ({} if files is None else files).get)


def run(table, until, since=0.0):
    """The faults that are due until a time, in steps of a second; each one is counted."""
    found = []
    while (now := max(table.next_at(), since)) <= until:
        for due in table.take(now):
            table.count(due.position)
            found.append((round(now, 3), due))
    return found


def begun(text, round_=FIRST, now=100.0):
    table = timetable(text)
    table.begin(round_, now)
    return table


def test_nothing_is_due_without_workers():
    table = timetable("kill:rank=1")
    assert (table.next_at(), table.take(1e9)) == (float("inf"), [])
    table.begin(FIRST, 100.0)
    table.end()
    assert (table.next_at(), table.take(1e9)) == (float("inf"), [])


@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("kill:rank=1", [(100.0, Due(0, 1))]),
        ("kill:rank=1,after=30s", [(130.0, Due(0, 1))]),
        ("kill:rank=1,every=30s", [(130.0, Due(0, 1))]),
        ("kill:rank=1,every=30s,times=2", [(130.0, Due(0, 1)), (160.0, Due(0, 1))]),
        ("kill:rank=1,every=300s,times=inf", [(t, Due(0, 1)) for t in (400.0, 700.0, 1000.0)]),
        ("kill:rank=1,after=30s,times=5", [(130.0, Due(0, 1))]),  # once in a round
        ("kill:rank=1,attempt=1", []),
        ("stop:agent,for=1s", [(100.0, Due(0, None))]),
        ("stop:agent,for=1s,node=a", [(100.0, Due(0, None))]),
        ("stop:agent,for=1s,group-rank=1", [(100.0, Due(0, 1))]),
        ("hang:rank=1,after=2s;hang:rank=3,after=1s", [(101.0, Due(1, 3)), (102.0, Due(0, 1))]),
    ],
)
def test_a_round(text, due):
    assert run(begun(text), until=1000.0) == due


@pytest.mark.parametrize(
    ("text", "rounds"),
    [
        ("kill:rank=1,after=30s", [1, 0, 0]),
        ("kill:rank=1,after=30s,times=2", [1, 1, 0]),
        ("kill:rank=1,after=30s,times=inf", [1, 1, 1]),
        ("kill:rank=1,after=30s,attempt=1", [0, 1, 0]),
    ],
)
def test_times_and_attempts(text, rounds):
    table = timetable(text)
    for number, count in enumerate(rounds):
        table.begin(FIRST._replace(number=number, attempt=number), 100.0)
        assert len(run(table, until=1000.0)) == count
        table.end()


def test_a_round_that_ends_early_does_not_count():
    table = begun("kill:rank=1,after=30s")
    assert run(table, until=120.0) == []
    table.end()
    table.begin(SECOND, 200.0)
    assert run(table, until=1000.0) == [(230.0, Due(0, 1))]


def test_faults_not_injected_on_this_node_do_not_count():
    table = begun("kill:rank=1,every=10s")
    assert [table.take(now) for now in (110.0, 120.0)] == [[Due(0, 1)]] * 2


def test_a_suspended_launcher_misses_all_occasions_but_the_last():
    table = begun("kill:rank=1,every=10s,times=inf")
    assert table.take(145.0) == [Due(0, 1)]
    assert table.next_at() == 150.0


def test_a_step_file():
    files = {"step": 1}
    table = timetable("exit:rank=0,code=3,step-file=step,times=inf", files)
    table.record_files()
    table.begin(FIRST, 100.0)
    seen = []
    for at, state in enumerate([1, 2, 2, None, None, 2, 3], start=1):
        files["step"] = state
        seen.append(len(table.take(100.0 + at * 2 * CHECK_INTERVAL)))
    assert seen == [0, 1, 0, 0, 0, 1, 1]


def test_a_step_file_that_changes_between_rounds():
    files = {}
    table = timetable("kill:rank=0,step-file=step", files)
    table.record_files()
    table.begin(FIRST, 100.0)
    table.end()
    files["step"] = 1
    table.record_files()
    table.begin(SECOND, 200.0)
    assert table.take(200.0) == []
    files["step"] = 2
    assert table.take(201.0) == [Due(0, 0)]


def test_another_fault_does_not_consume_a_step_file():
    files = {}
    table = timetable("kill:rank=0,step-file=step;hang:rank=1,after=0.05s", files)
    table.begin(FIRST, 100.0)
    assert table.take(100.0) == []
    files["step"] = 1
    assert table.take(100.05) == [Due(1, 1)]
    assert table.take(100.0 + CHECK_INTERVAL) == [Due(0, 0)]


def test_created_and_replaced_files(tmp_path):
    path = tmp_path / "step"
    states = [get_file_state(str(path))]
    for text in ("1", "12"):
        path.write_text(text)
        states.append(get_file_state(str(path)))
    other = tmp_path / "other"
    other.write_text("12")
    other.rename(path)
    states.append(get_file_state(str(path)))
    assert states[0] is None
    assert len(set(states)) == 4
    assert get_file_state(str(path)) == states[-1]


def drawn(text, rounds=1):
    table = timetable(text)
    found = []
    for number in range(rounds):
        table.begin(FIRST._replace(number=number), 0.0)
        found += [(number, *each) for each in run(table, until=2000.0)]
    return found


def test_a_seed_gives_the_same_choices_on_any_python_and_node():
    table = begun("kill:rank=any,every=1s,chance=0.5,seed=7,times=inf", now=0.0)
    drawn_once = [(2.0, 2), (3.0, 2), (5.0, 3), (8.0, 2), (10.0, 1)]
    assert [(at, due.rank) for at, due in run(table, until=10.0)] == drawn_once


def test_seeds_rounds_and_occasions_give_different_choices():
    text = "kill:rank=any,every=10s,chance=0.3,times=inf,seed="
    assert drawn(text + "1") == drawn(text + "1")
    assert drawn(text + "1") != drawn(text + "2")
    found = drawn(text + "1", rounds=2)
    moments = [{at: due.rank for number, at, due in found if number == n} for n in (0, 1)]
    assert moments[0] != moments[1]
    assert {rank for each in moments for rank in each.values()} == {0, 1, 2, 3}
    assert 60 < len(found) < 180  # of 400 occasions


def test_a_random_node_is_below_the_number_of_nodes():
    found = drawn("kill:agent,group-rank=any,every=10s,times=inf,seed=1")
    assert {due.rank for _, _, due in found} == {0, 1}
    assert len(found) == 200


def test_a_suspended_launcher_makes_the_same_choices():
    text = "kill:rank=any,every=1s,times=inf,seed=3"
    ranks = [due.rank for _, due in run(begun(text), until=130.0)]
    assert [due.rank for due in begun(text).take(130.0)] == ranks[-1:]
    assert len(set(ranks[-4:])) > 1
