"""Failures as nodes send them to each other."""

from __future__ import annotations

import json
import math
import pickle
import re

import pytest
from plaunch.process.child_failed import ChildFailedError
from plaunch.process.failure import ProcessFailure
from plaunch_membership.failures import (
    FailureGroup,
    FailureSummary,
    JobFailure,
    merge,
    summarize,
)
from plaunch_membership.process_failures import (
    MAX_BRIEF_BYTES,
    MAX_DETAILED,
    MAX_LINES,
    MAX_TEXT_BYTES,
    describe_groups,
    from_job_failures,
    to_job_failures,
)
from plaunch_membership.records import StoreRecord

STACK = 'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: bad\n'


def make(rank, exitcode=1, at=100.0, *, text="", stack="", **more):
    message = {"message": text, "extraInfo": {"py_callstack": stack, "timestamp": "1"}}
    facts = {"host": "b", "timestamp": at, "global_rank": rank, **more}
    if text:
        facts["error_file_data"] = {"message": message}
    file = "/logs/error.json" if text else ""
    return ProcessFailure(rank % 2, 40 + rank, exitcode, file, **facts)


def over_the_wire(failures):
    """Encode and decode failures, as between two nodes."""
    return [
        JobFailure(f.rank, f.began, f.summary, json.loads(json.dumps(f.detail))) for f in failures
    ]


def report_of(sent, known=None):
    """Return all failures that a node knows, and the error of the job."""
    failures, first = from_job_failures(sent, known or {})
    return failures, ChildFailedError("train.py", failures, first=first)


def launcher(text, exitcode=1, host="b"):
    return make(-1, exitcode, host=host, error_file_data={"message": text})


FAILURES = {
    "exit code": make(3, exitcode=17),
    "signal": make(3, exitcode=-11, last_lines=["loading", "oh no"], lifetime=2.5),
    "out of memory": make(3, exitcode=-9, oom_killed=True),
    "exception": make(3, text="ValueError: bad", stack=STACK),
    "hang": make(3, exitcode=116, text="rank 3 load (train.py:6)\nrank 0 step", hung=True),
    "files": make(3, log_files=["/logs/stdout.log", "/logs/stderr.log"]),
    "message without a traceback": make(3, text="no memory on card 3"),
}


def elsewhere(report):
    lines = report.replace(" /logs/", " b:/logs/").splitlines()
    return "\n".join(line for line in lines if "error file:" not in line)


@pytest.mark.parametrize("name", FAILURES)
def test_another_node_prints_the_same_report(name):
    failure = FAILURES[name]
    there, first = from_job_failures(over_the_wire(to_job_failures({3: failure})), {})
    assert first == 3
    own = ChildFailedError("train.py", {3: failure})
    other = ChildFailedError("train.py", there, first=first)
    # A file on another host is marked as such; its error file, often temporary, was sent instead.
    assert str(other) == elsewhere(str(own))
    assert other.for_console() == elsewhere(own.for_console())
    assert other.exit_code == own.exit_code
    assert there[3].lifetime == failure.lifetime
    assert there[3].global_rank == 3
    assert there[3].has_reply == failure.has_reply


def test_the_first_failure_is_sent_in_full_and_others_in_brief():
    failures = {
        0: make(0, at=101.0, text="RuntimeError: closed by peer " * 99, stack=STACK),
        1: make(1, at=101.5, exitcode=-9, last_lines=["a", "b"]),
    }
    first, second = to_job_failures(failures)
    assert (first.rank, first.began) == (1, 100.5)  # detected late
    assert first.summary == "rank 1 on b (pid 41) failed: killed by SIGKILL (signal 9)"
    assert first.detail["last_lines"] == ["a", "b"]
    assert second.rank == 0
    assert "traceback" not in second.detail
    assert len(second.detail["message"]) <= MAX_BRIEF_BYTES


def test_failures_are_bounded():
    long = "é" * MAX_TEXT_BYTES
    failures = {
        rank: make(rank, text=long, stack=long + "the end", last_lines=[long] * 99)
        for rank in range(99)
    }
    sent = to_job_failures(failures)
    assert [failure.rank for failure in sent] == list(range(99)), "all of them are counted"
    assert [failure.detail for failure in sent[MAX_DETAILED:]] == [{}] * (99 - MAX_DETAILED)
    first = sent[0].detail
    assert first["traceback"].endswith("the end")
    for text in (first["message"], first["traceback"], "\n".join(first["last_lines"])):
        assert len(text.encode()) <= MAX_TEXT_BYTES + len("... ")
    assert len(first["last_lines"]) <= MAX_LINES
    assert sum(len(json.dumps(f.detail, ensure_ascii=False).encode()) for f in sent[1:]) < 40 << 10


def test_text_that_is_not_unicode_can_be_sent():
    (sent,) = to_job_failures({0: make(0, last_lines=["a\udcff"])})
    assert json.loads(json.dumps(sent.detail))["last_lines"] == ["a\\udcff"]


def test_text_is_not_cut_twice():
    own = make(3, text="x" * 9000, stack="y" * 9000)
    there, _ = from_job_failures(over_the_wire(to_job_failures({3: own})), {})
    further, _ = from_job_failures(over_the_wire(to_job_failures(there)), {})
    assert further[3].message == there[3].message
    text = there[3].message["message"]
    assert len(text) == MAX_TEXT_BYTES
    assert re.fullmatch("x+ ... x+", text)


def test_a_long_message_keeps_the_exception_on_other_nodes():
    own = make(3, text=f"ValueError: bad batch {'é' * 9000} at the end", stack=STACK)
    there, _ = from_job_failures(over_the_wire(to_job_failures({3: own})), {})
    assert there[3].headline.startswith("ValueError: bad batch é")
    assert there[3].message["message"].endswith("é at the end")


@pytest.mark.parametrize(
    ("group", "known", "words"),
    [
        (FailureGroup("exit code 1", 3, ((5, 7),)), (), {"ranks 5-7 (exit code 1)": 3}),
        (FailureGroup("exit code 1", 1, ((5, 5),)), (), {"rank 5 (exit code 1)": 1}),
        (FailureGroup("", 3, ((5, 7),)), (), {"ranks 5-7": 3}),
        (FailureGroup("launchers", 12), (), {"launchers": 12}),
        (FailureGroup("e", 3, ((5, 7),)), (6,), {"ranks 5,7 (e)": 2}),
        (FailureGroup("e", 3, ((5, 7),)), (5, 7, 8), {"rank 6 (e)": 1}),
        (FailureGroup("e", 3, ((5, 7),)), (5, 6, 7), {}),
        (FailureGroup("e", 99, ((5, 7),)), (5, 6, 7), {"e": 96}),  # there are more ranges
        (FailureGroup("a\x1b[2J", 2), (), {"a\\x1b[2J": 2}),
        (
            FailureGroup("e", 50, tuple((2 * i, 2 * i) for i in range(50))),
            (),
            {f"ranks {','.join(str(2 * i) for i in range(16))},... (e)": 50},
        ),
    ],
)
def test_groups_are_described(group, known, words):
    assert describe_groups([group], dict.fromkeys(known)) == words


def test_a_report_counts_grouped_failures():
    failures = {0: make(0), 1: make(1)}
    counted = {"ranks 2-9 (exit code 1)": 8, "launchers": 2}
    error = ChildFailedError("train.py", failures, first=0, counted=counted)
    report = str(pickle.loads(pickle.dumps(error)))
    assert "\nOther failures (11):\n  rank 1" in report
    assert report.endswith("\n  and 8 more: ranks 2-9 (exit code 1)\n  and 2 more: launchers")
    alone = str(ChildFailedError("train.py", {0: make(0)}, counted=counted))
    assert "\nOther failures (10):\n  and 8 more" in alone


HOSTILE = [
    {},
    {"host": 3, "pid": "x", "exit_code": "0", "timestamp": "soon", "last_lines": "abc"},
    {"host": None, "local_rank": True, "exit_code": None, "timestamp": 1e999, "last_lines": [1]},
    {"message": ["m"], "traceback": 5, "has_reply": "yes", "log_files": {"a": 1}},
]


@pytest.mark.parametrize("detail", HOSTILE)
def test_details_of_a_wrong_type_are_left_out(detail):
    failures, error = report_of([JobFailure(5, 100.0, "rank 5 on b failed", detail)])
    assert error.exit_code == 1
    assert "an unknown host" in str(error) or failures[5].host
    assert failures[5].timestamp == 100.0
    assert failures[5].last_lines == []


def test_control_characters_of_other_nodes_are_escaped():
    """In the report, and in other outputs such as events."""
    evil = "\x1b]0;title\x07\x9b2J\rb\nc\u202e\x7f"
    detail = {
        "host": evil, "log_files": [evil], "message": evil,
        "traceback": evil, "last_lines": [evil], "has_reply": True, "exit_code": 1,
    }  # fmt: skip
    for detail["has_reply"] in (True, False):
        sent = [JobFailure(5, 100.0, evil, detail), JobFailure(6, 101.0, evil, detail)]
        failures, first = from_job_failures(sent, {})
        counted = describe_groups([FailureGroup(evil, 2)], failures)
        error = ChildFailedError("train.py", failures, first=first, counted=counted)
        report = f"{error}\n{error.for_console()}"
        assert report.replace("\n", "").isprintable(), report
        assert failures[5].host.isprintable()
        assert failures[5].log_files[0].isprintable()


@pytest.mark.parametrize("number", [10**400, -(10**400), 1e308, -1e308, 9e11, -1e12, 2**63, -1])
def test_no_number_breaks_the_report(number):
    names = ("local_rank", "pid", "exit_code", "timestamp", "lifetime")
    sent = JobFailure(5, number if abs(number) < 1e308 else 1e308, "", dict.fromkeys(names, number))
    failures, error = report_of([sent])
    assert error.exit_code in range(1, 256)
    assert len(str(error)) < 1000
    assert len(error.for_console()) < 1000
    assert failures[5].timestamp_isoformat()


@pytest.mark.parametrize("timestamp", [1e300, -1e300, 9e11, math.inf, -math.inf])
def test_an_invalid_time_is_reported_as_unknown(timestamp):
    failures = {0: make(0, at=timestamp), 1: make(1, at=timestamp)}
    report = str(ChildFailedError("train.py", failures, first=0))
    assert "  time:       an unknown time\n" in report
    assert "at an unknown time: exit code 1" in report
    assert failures[0].timestamp_isoformat() == "<N/A>"


def test_texts_of_other_nodes_are_cut():
    detail = {"message": "x" * 99_999, "traceback": "y" * 99_999, "last_lines": ["z" * 99_999] * 99}
    detail |= {"host": "h" * 99_999, "log_files": ["l"] * 999, "has_reply": True}
    failures, _ = from_job_failures([JobFailure(5, 100.0, "", detail)], {})
    assert len(failures[5].message["message"]) == MAX_TEXT_BYTES
    assert len("".join(failures[5].last_lines)) <= MAX_TEXT_BYTES + len("... ")
    assert len(failures[5].host) == 400
    assert len(failures[5].log_files) == MAX_LINES


def test_the_first_failure_is_the_agreed_one_even_if_clocks_differ():
    sent = to_job_failures({3: make(3, at=200.0)})
    own = {0: make(0, at=100.0)}  # this host's clock is behind
    failures, error = report_of(sent, own)
    assert (error.get_first_failure()[0], list(failures)) == (3, [3, 0])
    assert str(error).startswith("train.py FAILED: rank 3 on b: exit code 1")
    assert "Other failures (1):\n  rank 0" in str(error)


def test_own_failures_have_all_details():
    own = make(3, text="ValueError: bad", stack=STACK)
    failures, _ = from_job_failures(to_job_failures({3: own}), {3: own})
    assert failures[3] is own


def test_a_node_that_failed_itself():
    broken = launcher("plugin 'x' is broken\nas you see", 110)
    (sent,) = to_job_failures({-2: broken})
    assert sent.rank == -1
    assert sent.summary == "the launcher on b failed: plugin 'x' is broken"
    _, report = report_of(over_the_wire([sent]))
    assert report.exit_code == 110
    assert str(report).startswith("train.py FAILED: the launcher on b failed\n")
    assert "    plugin 'x' is broken\n    as you see" in str(report)


def test_several_nodes_that_failed_themselves_and_a_worker():
    sent = [
        *to_job_failures({-1: launcher("no more processes")}),
        *to_job_failures({3: make(3)}),
        *to_job_failures({-1: launcher("KeyError('oops')", host="c")}),
    ]
    failures, error = report_of(sent)
    report = str(error)
    assert (error.get_first_failure()[0], list(failures)) == (-1, [-1, 3, -2])
    assert "the launcher on c, pid" in report
    assert "KeyError('oops')" in report
    assert "rank -" not in report


def test_a_failed_own_launcher_is_listed_once():
    """Whatever its number here: the first failure is the same on all nodes."""
    other, mine = launcher("the disk is full", host="c"), launcher("the store is lost " * 99)
    sent = [failure for one in (other, mine) for failure in to_job_failures({-1: one})]
    for known, texts in ((sent, [other.text, mine.text]), (sent[:1], [other.text, mine.text])):
        failures, first = from_job_failures(known, {-1: mine, 3: make(3)})
        assert (first, [failures[rank].text for rank in (-1, -2)]) == (-1, texts)
        assert set(failures) == {-1, -2, 3}
    # If there are more failures than are listed, it is among the counted ones.
    many = [failure for n in range(33) for failure in to_job_failures({-1: launcher(f"no {n}")})]
    assert set(from_job_failures(many, {-1: mine})[0]) == set(range(-33, 0))


def test_a_launchers_failure_is_sent_in_full_even_if_it_is_not_the_first():
    failures = {rank: make(rank, at=1.0) for rank in range(MAX_DETAILED)}
    *_, last = to_job_failures({**failures, -1: launcher("x" * 1000)})
    assert (last.rank, last.detail["message"]) == (-1, "x" * 1000)


GLOO = "RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:5"


def test_a_consequence_is_sorted_after_its_cause_on_any_node():
    """The clocks do not matter: the leader sorts as the node does."""
    victim = to_job_failures({0: make(0, at=100.0, text=GLOO)})
    cause = to_job_failures({1: make(1, at=102.0, text="ValueError: bad", stack=STACK)})
    merged = merge([summarize(victim), summarize(cause)])
    assert [failure.rank for failure in merged.failures] == [1, 0]
    failures, first = from_job_failures(merged.failures, {})
    assert first == 1
    assert failures[1].headline == "ValueError: bad (a.py:1)"
    assert failures[0].headline == "RuntimeError: Connection closed by peer [::1]:5"
    assert failures[0].is_consequence
    assert merged.failures[1].summary == f"rank 0 on b (pid 40) lost a peer: {failures[0].headline}"
    late = to_job_failures({1: make(1, at=200.0, text="ValueError: bad")})
    assert merge([summarize(victim), summarize(late)]).failures[0].rank == 0


def test_a_silent_peer_is_not_lost_on_any_node():
    for text in ("E: wait timeout after 2000ms, keys: /never", GLOO):
        own = make(0, text=text)
        there, _ = from_job_failures(over_the_wire(to_job_failures({0: own})), {})
        assert there[0].verb == own.verb == ("lost a peer" if text == GLOO else "failed")
        assert there[0].consequence == own.consequence


def test_the_flag_survives_a_record():
    sent = summarize(to_job_failures({0: make(0, text=GLOO), 1: make(1, text="E: no")}))
    record = StoreRecord("key", json.loads(json.dumps(sent.to_record())))
    assert FailureSummary.from_record(record) == sent
    assert [failure.is_consequence for failure in sent.failures] == [False, True]
