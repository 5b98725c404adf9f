"""Checks are independent, have a time limit, and are reported in order."""

from __future__ import annotations

import threading

import pytest
from plaunch.doctor import Finding, Status
from plaunch_doctor.checks import run_checks
from plaunch_doctor.context import NodeContext
from plaunch_doctor.findings import exit_code, format_findings


def good(context):
    return [Finding(Status.OK, "good", "fine")]


def test_checks_are_reported_in_order():
    second_is_done = threading.Event()

    def first(context):
        assert second_is_done.wait(10)
        return [Finding(Status.OK, "first", "")]

    def second(context):
        yield Finding(Status.OK, "second", "")
        second_is_done.set()

    found = run_checks({"first": first, "second": second}, NodeContext(), 20)
    assert [finding.what for finding in found] == ["first", "second"]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), TimeoutError("mine")])
def test_a_check_that_raises_is_broken_and_the_others_continue(error):
    def bad(context):
        yield Finding(Status.OK, "half", "")
        raise error

    found = run_checks({"bad": bad, "good": good}, NodeContext())
    assert [(finding.status, finding.what) for finding in found] == [
        (Status.BROKEN, "bad"),
        (Status.OK, "good"),
    ]
    assert type(error).__name__ in found[0].found


def test_a_hanging_check_is_abandoned(gate):
    checks = {"hangs": lambda context: gate.wait(60), "good": good}
    found = run_checks(checks, NodeContext(), 0.2)
    assert [finding.status for finding in found] == [Status.BROKEN, Status.OK]
    assert "did not finish within 0.2 s" in found[0].found


@pytest.mark.parametrize("threads", [0, 1])
def test_checks_run_without_more_threads(monkeypatch, threads):
    """The lack of threads may be the reason to run the doctor."""
    start = threading.Thread.start
    left = [None] * threads

    def refuse(self):
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        start(self)

    def bad(context):
        raise ValueError("no")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    found = run_checks({"first": good, "bad": bad, "last": good}, NodeContext())
    assert [finding.status for finding in found] == [Status.OK, Status.BROKEN, Status.OK]


@pytest.mark.parametrize("result", [["text"], "text", [None]])
def test_an_object_that_is_not_a_finding_is_a_broken_check(result):
    (finding,) = run_checks({"odd": lambda context: result}, NodeContext())
    assert finding.status is Status.BROKEN
    assert "not a Finding" in finding.found


def test_the_exit_code_is_one_for_problems_and_broken_checks():
    of = {status: exit_code([Finding(status, "x", "")]) for status in Status}
    assert of == {Status.OK: 0, Status.WARNING: 0, Status.PROBLEM: 1, Status.BROKEN: 1}


FINDINGS = [
    Finding(Status.OK, "clock", "it  ticks\nwell"),
    Finding(Status.WARNING, "open files", "few of them, " + "really " * 20, "raise the limit"),
]


def test_the_report_is_aligned_with_one_line_for_each_text_in_a_log():
    lines = format_findings(FINDINGS).splitlines()
    assert lines[0] == "ok       clock       it ticks well"
    assert lines[1].startswith("warning  open files  few of them, really")
    assert lines[2] == "                     -> raise the limit"
    assert lines[3:] == ["", "no problems, no broken checks, 1 warning, 1 ok"]


def test_the_report_is_wrapped_below_its_column_on_a_terminal():
    lines = format_findings(FINDINGS, 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[2].startswith(" " * 21 + "really")
