"""The message about a failed job on the console."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from plaunch.process import ChildFailedError, EarlierAttempt, ProcessFailure

TRACEBACK = ["Traceback (most recent call last):", '  File "t.py", line 5, in <module>']
ERROR = "ValueError: bad config: lr missing"
STDERR = ["loading", *TRACEBACK, ERROR]
ABOVE = "  Its last lines on stderr are above."


def make(exitcode=1, local_rank=0, **more):
    more.setdefault("lifetime", 12.3)
    error_file = str(more.pop("error_file", ""))
    return ProcessFailure(local_rank, 4242, exitcode, error_file, host="node-b", **more)


def message(failures, **more):
    error = (
        failures if isinstance(failures, Exception) else ChildFailedError("t.py", failures, **more)
    )
    headline, *lines = error.for_console().splitlines()
    assert all(line.startswith("  ") for line in lines)
    return headline, lines


@pytest.mark.parametrize(
    ("failure", "headline"),
    [
        (make(last_lines=STDERR), f"rank 5 on node-b failed after 12 s: {ERROR} (t.py:5)"),
        (make(7), "rank 5 on node-b failed after 12 s: exit code 7"),
        (make(7, lifetime=None), "rank 5 on node-b failed: exit code 7"),
        (make(-11), "rank 5 on node-b failed after 12 s: killed by SIGSEGV (signal 11)"),
        (
            make(-9, oom_killed=True),
            "failed after 12 s: killed by the kernel's out-of-memory killer",
        ),
        (make(last_lines=["\x1b[31mred: not"]), "rank 5 on node-b failed after 12 s: exit code 1"),
    ],
)
def test_the_headline_has_the_worker_the_time_and_the_cause(failure, headline):
    assert headline in message({5: failure})[0]


def test_all_of_it():
    failures = {
        5: make(log_files=["/logs/5/stderr.log"], last_lines=STDERR, local_rank=1, timestamp=9.0),
        6: make(3, lifetime=12.4),
    }
    earlier = [EarlierAttempt(0, "rank 1, exit code 7", 3.0)]
    stopped = {0: -15, 1: -15, 2: -9}
    why = "all restarts are used (--max-restarts=1)"
    found = message(failures, earlier=earlier, stopped=stopped, no_restart=why)[1]
    found = [re.sub(r"\d\d\d\d-\S+ \d\d:\d\d:\d\d$", "TIME", line) for line in found]
    assert found == [
        f"  No restart: {why}",
        "  last lines of its stderr:",
        *(f"    {line}" for line in STDERR),
        "  process: t.py, local rank 1, pid 4242, exit code 1, TIME",
        "  log file: /logs/5/stderr.log",
        "  also failed: rank 6 on node-b: exit code 3",
        "  stopped because of it: ranks 0-1 (SIGTERM), rank 2 (SIGKILL)",
        "  attempt 0: rank 1, exit code 7, after 3 s",
    ]


def nested(*lines):
    extra = {"py_callstack": "\n".join(lines), "timestamp": "1"}
    return {"message": {"message": ERROR, "extraInfo": extra}}


def test_lines_on_the_console_are_not_repeated():
    lines = message({5: make(last_lines=STDERR, is_shown=True)})[1]
    assert ABOVE in lines
    assert not [line for line in lines if ERROR in line]


def test_empty_stderr_is_mentioned():
    lines = message({5: make(is_shown=True)})[1]
    assert ABOVE not in lines
    assert "  It wrote nothing to stderr." in lines


@pytest.mark.parametrize(
    ("last_lines", "is_above"),
    [
        (STDERR, True),
        ([f"[rank5]: {ERROR}"], True),  # as torch.distributed writes it
        (["\x1b[1;35mValueError\x1b[0m: \x1b[35mbad config: lr missing\x1b[0m"], True),
        (["loading"], False),  # somebody has caught it after it was recorded
    ],
)
def test_a_recorded_exception_is_shown_unless_it_was_on_stderr(child_file, last_lines, is_above):
    path = child_file(nested(*TRACEBACK, ERROR))
    lines = message({5: make(last_lines=last_lines, is_shown=True, error_file=path)})[1]
    assert (ABOVE in lines) == is_above
    assert (f"    {ERROR}" in lines) != is_above
    assert f"  error file: {path}" in lines


def test_the_sender_of_a_signal_is_shown_even_if_lines_are_above():
    failure = make(-9, last_lines=["at work"], is_shown=True)
    text = f"{failure.exit_sentence()}: its time for 'step' has expired"
    lines = message({5: replace(failure, message=text)})[1]
    assert [line for line in lines if "its time for 'step' has expired" in line]


def launcher(text):
    return make(113, -1, lifetime=None, error_file_data={"message": text})


@pytest.mark.parametrize(
    ("text", "block"),
    [
        ("the store is gone", []),
        ("it is gone\nfor good", ["  its error:", "    it is gone", "    for good"]),
    ],
)
def test_a_launcher_that_failed_itself(text, block):
    headline, lines = message({-1: launcher(text)})
    assert headline == f"the launcher on node-b failed: {text.splitlines()[0]}"
    assert lines[: len(block)] == block
    assert lines[len(block)].startswith("  process: t.py, launcher, pid 4242, ")


def test_of_many_attempts_the_last_ones_are_shown():
    earlier = [EarlierAttempt(n, "rank 0, exit code 1", 0.5) for n in range(60)]
    lines = message({5: make()}, earlier=earlier)[1]
    assert lines[-11] == "  50 attempts before these"
    assert lines[-10:] == [
        f"  attempt {n}: rank 0, exit code 1, after 0.5 s" for n in range(50, 60)
    ]


def test_counted_failures_are_shown():
    lines = message({5: make()}, counted={"ranks 40-99 (exit code 1)": 60})[1]
    assert "  also failed: 60 more: ranks 40-99 (exit code 1)" in lines


def test_workers_that_failed_alike_are_grouped():
    same, crash = {"last_lines": STDERR}, {"exitcode": -11}
    failures = {rank: make(**same if rank < 4 else crash) for rank in range(6)}
    failures[6] = launcher("its disk is full")
    failures = {rank: replace(each, timestamp=100.0 + rank) for rank, each in failures.items()}
    lines = message(failures)[1]
    assert [line for line in lines if "also" in line] == [
        "  also failed: ranks 1-3 on node-b: the same",
        "  also failed: ranks 4-5 on node-b: killed by SIGSEGV (signal 11)",
        "  also failed: rank 6 on node-b: exit code 113: its disk is full",
    ]


def test_of_very_many_failures_the_last_are_only_counted():
    failures = {rank: make(rank + 1, timestamp=100.0 + rank) for rank in range(60)}
    lines = [line for line in message(failures)[1] if "also" in line]
    assert lines[-2:] == [
        "  also failed: rank 16 on node-b: exit code 17",
        "  also failed: 43 more: ranks 17-59",
    ]


def test_the_text_of_the_exception_stays_whole():
    error = ChildFailedError("t.py", {5: make(last_lines=STDERR, is_shown=True)})
    assert str(error).startswith(f"t.py FAILED: rank 5 on node-b: {ERROR} (t.py:5)\n")
    assert f"    {ERROR}" in str(error)


@pytest.mark.parametrize("wrote", [[], ["step 7"]])
def test_of_a_hang_the_headline_has_the_first_group_and_the_others_follow(wrote):
    data = {"message": "no worker moves: 1 rank: 5 f (t.py:6)\n7 ranks: 0-4"}
    failure = make(116, hung=True, last_lines=wrote, error_file_data=data)
    headline, lines = message({5: failure})
    assert headline == "rank 5 on node-b failed after 12 s: no worker moves: 1 rank: 5 f (t.py:6)"
    assert lines[:2] == ["  where the others were:", "    7 ranks: 0-4"]
    assert lines[2:-1] == (["  last lines of its stderr:", "    step 7"] if wrote else [])
    assert lines[-1].startswith("  process: t.py, local rank 0, pid 4242, stopped, because")


def test_a_rank_that_had_ended_before_is_named_first():
    failure = make(7)
    early = [
        f"rank {rank} on node-{rank} had ended with exit code 0, 12 s before" for rank in (0, 1)
    ]
    lines = message({5: failure}, early_ends=early)[1]
    assert lines[:2] == [f"  {line}" for line in early]
    error = ChildFailedError("t.py", {5: failure}, early_ends=early)
    assert "".join(f"Ended before: {line}\n" for line in early) in f"{error}\n"
    hung = make(116, hung=True)
    assert "had ended" not in "".join(message({5: hung}, early_ends=early)[1])
