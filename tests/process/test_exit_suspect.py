"""Whether a worker that has written about an exception has ended with it."""

from __future__ import annotations

import math

import pytest
from plaunch.process import ExitPlace
from plaunch.process.exit_evidence import REPORT_AFTER, WrittenException
from plaunch.process.exit_suspect import ExitSuspect, has_raised

ENDED = ExitPlace(True, True, "threading._shutdown")


def suspect(*, is_report=False, timeout=None):
    written = WrittenException(1e9, 0.0, is_report, ["lines"], "RuntimeError: bad batch")
    return ExitSuspect(written, 100.0, 101.0, timeout)


@pytest.mark.parametrize(
    ("place", "of_stderr", "of_file"),
    [
        (ExitPlace(True, True), True, True),
        (ExitPlace(True, False), False, True),
        (ExitPlace(True, None), None, True),
        (ExitPlace(False, True), False, False),
        (ExitPlace(None, True), True, True),
        (ExitPlace(None, False), False, True),
        (ExitPlace(), None, True),
    ],
)
def test_it_has_raised_if_the_exception_has_ended_its_program(place, of_stderr, of_file):
    assert has_raised(place, is_report=False) is of_stderr
    assert has_raised(place, is_report=True) is of_file


def test_it_is_announced_once():
    one = suspect()
    assert not one.judge(ENDED, b"1", 105.0)
    assert (one.has_raised, one.next_look) == (True, 100.0 + REPORT_AFTER)
    assert one.judge(ENDED, b"1", 110.0)
    assert not one.judge(ENDED, b"1", 115.0)
    assert one.is_settled


def test_it_is_looked_at_until_it_counts_as_failed():
    one = suspect(timeout=30.0)
    looks = [105.0]
    while not one.is_settled:
        one.judge(ENDED, b"1", looks[-1])
        looks.append(one.next_look)
    assert looks == [105.0, 107.0, 110.0, 118.0, 129.0, math.inf]
    assert one.due_failure() == 130.0


def test_it_counts_as_failed_only_if_it_has_raised():
    one = suspect(timeout=30.0)
    assert one.due_failure() == math.inf
    one.judge(ExitPlace(True, None), b"", 150.0)
    assert one.due_failure() == math.inf


def test_a_hold_does_not_count():
    one = suspect(timeout=30.0)
    one.judge(ENDED, b"1", 105.0)
    one.note_hold("suspended", 110.0, 108.0)
    assert (one.age(200.0), one.due_failure()) == (8.0, math.inf)
    one.note_hold("suspended", 200.0)
    assert one.age(300.0) == 8.0
    one.note_hold("", 208.0)
    assert (one.age(210.0), one.due_failure()) == (10.0, 230.0)


@pytest.mark.parametrize("began", [-1e9, 1e9, None])
def test_a_hold_begins_after_the_exception_and_not_in_the_future(began):
    one = suspect()
    one.note_hold("suspended", 110.0, began)
    assert 0.0 <= one.age(200.0) <= 10.0


def test_a_main_thread_that_did_not_run_while_it_was_held_is_not_stuck():
    one = suspect(is_report=True)
    runs = ExitPlace(False, None, "train_step (train.py:5)")
    one.judge(runs, b"1", 105.0)
    one.note_hold("suspended", 106.0)
    one.judge(runs, b"1", 120.0)
    assert not one.is_stuck
    one.note_hold("", 130.0)
    one.judge(runs, b"1", 140.0)
    assert (one.is_stuck, one.has_raised) == (False, None)
    one.judge(runs, b"1", 145.0)
    assert (one.is_stuck, one.has_raised) == (True, True)
