"""Tracebacks into which other threads of the worker have written."""

from __future__ import annotations

import pytest
from plaunch.process.interleaved import find_interleaved

from helpers.tracebacks import HEADER, failure_with, frames

OTHER = "epoch 3 of the loader"
CALL = '  File "/home/me/train.py", line 7, in main'
SOURCE = '    raise RuntimeError("bad batch")'
RAISED = [HEADER, *frames("/home/me/train.py", 12), CALL, SOURCE, "RuntimeError: bad batch"]
DIVIDED = [
    HEADER,
    *frames("/home/me/train.py", 12),
    CALL,
    "    return total / 0",
    "           ~~~~~~^~~",
    "ZeroDivisionError: division by zero",
]
HEADLINES = {
    "RuntimeError: bad batch (train.py:7)": RAISED,
    "ZeroDivisionError: division by zero (train.py:7)": DIVIDED,
}
OTHERS = [
    OTHER,
    "done",
    "INFO: loaded",
    "2026-11-28 10:00:00 loaded",
    "retrying after ConnectionError: refused",
]
NAME = "Epoch: 3"  # an exception may have this name
CASES = [(expected, other) for expected in HEADLINES for other in OTHERS]
CASES.append(("RuntimeError: bad batch (train.py:7)", NAME))


def headline(lines, exitcode=1):
    return failure_with(lines, exitcode).headline


@pytest.mark.parametrize(("expected", "other"), CASES)
def test_a_line_of_another_thread_is_anywhere_in_a_traceback(expected, other):
    lines = HEADLINES[expected]
    for place in range(len(lines) + 1):
        assert headline([OTHER, *lines[:place], other, *lines[place:]]) == expected, place


@pytest.mark.parametrize("count", [2, 3])
def test_lines_of_another_thread_are_between_all_lines(count):
    lines = [text for line in RAISED for text in (line, *[OTHER] * count)]
    assert headline(lines) == "RuntimeError: bad batch (train.py:7)"


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ([f"{OTHER}RuntimeError: bad batch", ""], "RuntimeError: bad batch"),
        ([f"RuntimeError{OTHER}", ": bad batch"], "RuntimeError"),
        ([f"RuntimeError{OTHER}: bad batch"], "RuntimeError"),
        ([OTHER, f"RuntimeError: {OTHER}", "bad batch"], f"RuntimeError: {OTHER}"),
    ],
)
def test_another_thread_has_written_into_the_line_of_the_exception(written, text):
    assert headline([*RAISED[:-1], *written]).startswith(f"{text} (train.py:7)")


@pytest.mark.parametrize("number", range(len(RAISED) - 1))
def test_another_thread_has_written_in_front_of_a_line(number):
    lines = [*RAISED]
    lines[number : number + 1] = [f"{OTHER}{lines[number]}", ""]
    assert headline(lines) == "RuntimeError: bad batch (train.py:7)"


def test_an_exception_of_the_script_has_any_name():
    lines = [*RAISED[:-2], "    raise mine.Full(3)", OTHER, "mine.Full: 3"]
    assert headline(lines) == "mine.Full: 3 (train.py:7)"


def test_the_beginning_of_the_traceback_may_be_missing():
    assert headline([CALL, OTHER, SOURCE, OTHER, "RuntimeError: bad batch"]) == (
        "RuntimeError: bad batch (train.py:7)"
    )


# --- what is uncertain, and remains an exit code --------------------------------------------------


@pytest.mark.parametrize(
    "lines",
    [
        [HEADER],
        [HEADER, OTHER],
        [HEADER, OTHER, "RuntimeError: bad batch"],  # no call
        [*RAISED[:-1], OTHER],  # no exception
        [*DIVIDED[:-1], *[OTHER] * 4, DIVIDED[-1]],  # may be of something else
        [*RAISED[:-2], "    raise error", *[OTHER] * 4, "error: bad batch"],
    ],
)
def test_without_enough_of_it_there_is_no_exception(lines):
    assert headline(lines) == "exit code 1"


@pytest.mark.parametrize("aside", ["Exception in thread Thread-1 (pump):", "Process Process-3:"])
@pytest.mark.parametrize("between", [[], [OTHER], [OTHER] * 2])
def test_the_traceback_of_a_thread_is_none_of_the_process(aside, between):
    lines = [aside, *between, *RAISED[:-1], OTHER, RAISED[-1]]
    assert find_interleaved(lines, "") is None
    if not between:
        assert headline(lines) == "exit code 1"


@pytest.mark.parametrize("exitcode", [2, -6])
def test_after_another_exit_code_a_traceback_was_caught(exitcode):
    lines = [*RAISED[:-1], OTHER, RAISED[-1]]
    assert "RuntimeError" not in headline(lines, exitcode)
