from __future__ import annotations

import os
import time
import types
from dataclasses import replace

import pytest
from plaunch.numbers import format_ranks
from plaunch.process import ChildFailedError, Consequence, ProcessFailure

NOON = time.mktime((2026, 1, 31, 12, 0, 0, 0, 0, -1))
ZONE = time.strftime("%z", time.localtime(NOON))


def make(exitcode=1, at=0.0, local_rank=0, pid=4242, error_file="", **more):
    failure = ProcessFailure(local_rank, pid, exitcode, str(error_file), host="gpu-07", **more)
    return replace(failure, timestamp=NOON + at)


def nested(text, stack):
    return {"message": {"message": text, "extraInfo": {"py_callstack": stack, "timestamp": "1"}}}


def report(failures, stopped=None, **rules):
    return ChildFailedError("train.py", failures, stopped=stopped).format_msg(**rules)


def test_the_whole_report():
    failures = {
        2: make(exitcode=-9, at=0.5, local_rank=0, pid=11),
        5: make(exitcode=-11, at=0.25, local_rank=1, last_lines=["loading", "oh no"]),
    }
    assert report(failures, {0: -15, 1: -15, 4: -15, 3: -9}) == (
        f"""\
train.py FAILED: rank 5 on gpu-07: killed by SIGSEGV (signal 11)

First failure:
  host:       gpu-07
  rank:       5 (local rank 1)
  pid:        4242
  time:       2026-01-31 12:00:00.250000 {ZONE}
  ended:      killed by SIGSEGV (signal 11)
  hint:       with PYTHONFAULTHANDLER=1 in its environment, python shows where it crashed
  last lines of its stderr:
    loading
    oh no

Other failures (1):
  rank 2 (local rank 0) on gpu-07, pid 11, at 12:00:00.500000: killed by SIGKILL (signal 9)

Stopped by plaunch: ranks 0-1,4 (SIGTERM), rank 3 (SIGKILL)"""
    )


def test_files_are_named_where_there_are_some(tmp_path):
    files = [str(tmp_path / "stdout.log"), str(tmp_path / "stderr.log")]
    text = report({0: make(log_files=files)})
    assert f"  log file:   {files[0]}\n  log file:   {files[1]}\n" in text
    assert "error file" not in text
    assert "log file" not in report({0: make()})
    assert "N/A" not in report({0: make(), 1: make(exitcode=-45)})


def test_a_traceback_replaces_the_stderr_lines(child_file):
    stack = 'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: bad\n'
    path = child_file(nested("ValueError: bad", stack))
    text = report({0: make(error_file=path, last_lines=["noise"])})
    assert (
        "  Python traceback:\n"
        "    Traceback (most recent call last):\n"
        '      File "a.py", line 1\n'
        "    ValueError: bad" in text
    )
    assert "noise" not in text
    assert f"error file: {path}" in text


@pytest.mark.parametrize(
    "data", [{"message": "no memory\non card 3"}, nested("no memory\non card 3", "")]
)
def test_a_message_without_a_traceback_is_shown_with_the_stderr_lines(child_file, data):
    text = report({0: make(error_file=child_file(data), last_lines=["last words"])})
    assert "  what it reported:\n    no memory\n    on card 3\n" in text
    assert "  last lines of its stderr:\n    last words" in text


def test_an_unreadable_error_file_is_reported(tmp_path):
    path = tmp_path / "error.json"
    path.write_text("{")
    text = report({0: make(error_file=path, last_lines=["last words"])})
    assert "not valid JSON, or was cut off" in text
    assert "    last words" in text


@pytest.mark.parametrize(
    ("failure", "hint"),
    [
        ({"exitcode": -9}, "SIGKILL comes from outside"),
        ({"exitcode": -9, "oom_killed": True}, None),
        ({"exitcode": -6, "last_lines": ["terminate called"]}, "PYTHONFAULTHANDLER=1"),
        ({"exitcode": -11, "last_lines": ["Fatal Python error: Segmentation fault"]}, None),
        ({"exitcode": 1, "log_files": ["/dev/full", "other:/logs/stderr.log"]}, None),
        ({"exitcode": 1, "log_files": ["/proc/full/stderr.log"]}, "log files is full"),
        ({"exitcode": 1, "log_files": ["/uncounted/stderr.log"]}, None),
        ({"exitcode": 1, "log_files": ["/proc/full/a"], "last_lines": ["No space left"]}, None),
    ],
)
def test_hints_for_failures_without_a_report(monkeypatch, failure, hint):
    def statvfs(path):
        if ":" in path:
            raise FileNotFoundError(path)
        has_room = not path.startswith(("/proc/full/", "/uncounted/"))
        blocks = 0 if path.startswith("/uncounted/") else 9
        return types.SimpleNamespace(f_bavail=int(has_room), f_blocks=blocks)

    monkeypatch.setattr(os, "statvfs", statvfs)
    hints = [line for line in report({0: make(**failure)}).splitlines() if "hint:" in line]
    assert len(hints) == (hint is not None)
    assert hint is None or hint in hints[0]


@pytest.mark.parametrize(
    ("is_gone", "hint"), [(True, "was gone"), (False, "did not answer in time")]
)
def test_a_hint_for_the_loss_of_a_peer(is_gone, hint):
    known = Consequence("no peer", is_gone=is_gone)
    failure = make(last_lines=["..."], known_consequence=known)
    text = report({0: failure})
    assert f"hint:       a peer {hint}; no other failure is known" in text


def test_empty_stderr_is_reported():
    assert "It wrote nothing to stderr." in report({0: make()})


def test_stderr_that_was_not_kept_is_not_called_empty(monkeypatch):
    monkeypatch.setenv("PLAUNCH_CAPTURE_STDERR", "0")
    assert "was not kept (PLAUNCH_CAPTURE_STDERR=0)" in report({0: make()})
    assert "wrote nothing" not in report({0: make()})
    assert "It wrote nothing to stderr." in report({0: make(log_files=["/logs/stderr.log"])})


def test_at_most_twenty_stderr_lines_are_shown():
    text = report({0: make(last_lines=[f"line {n}" for n in range(30)])})
    assert "line 9\n" not in text
    assert "    line 10\n" in text
    assert "    line 29" in text


def test_a_long_traceback_keeps_its_head_the_users_lines_and_its_end(child_file):
    header, own = "Traceback (most recent call last):", '  File "/home/me/train.py", line 39, in f'
    frame = '  File "/venv/lib/python3.11/site-packages/torch/x.py", line {}, in g'
    stack = "\n".join([header, own, *map(frame.format, range(1000)), "E: no"])
    text = report({0: make(error_file=child_file(nested("E: no", stack)))})
    assert text.startswith("train.py FAILED: rank 0 on gpu-07: E: no (train.py:39)\n")
    assert f"    {header}\n    {own}\n" in text
    assert "line 999, in g\n    E: no" in text
    assert " lines left out ...\n" in text
    assert "line 500, in g\n" not in text


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain\n", "plain"),
        ("\x1b[1;35mValueError\x1b[0m: \x1b[35mbad\x1b[0m", "ValueError: bad"),
        ("\x1b]0;title\x07text", "text"),
        (" 10%|#   \r 50%|##  \r100%|####", "100%|####"),
        ("windows\r\n", "windows"),
        ("bell\x07 and null\x00", "bell\\x07 and null\\x00"),
        ("tab\there", "tab\there"),
        ("ünïcödé \udcff", "ünïcödé \\udcff"),
    ],
)
def test_lines_are_shown_as_a_terminal_would(raw, shown):
    assert f"\n    {shown}" in report({0: make(last_lines=[raw])})
    assert report({0: make(last_lines=[raw])}).endswith(shown)


def test_an_out_of_memory_kill_is_described():
    text = report({0: make(exitcode=-9, oom_killed=True)})
    assert text.startswith(
        "train.py FAILED: rank 0 on gpu-07: killed by the kernel's out-of-memory killer (SIGKILL)"
    )


def test_other_failures_are_one_line_each_in_order_of_time(child_file):
    failures = {
        9: make(at=3.0, last_lines=["", "first", "last words  ", ""]),
        4: make(at=2.0, exitcode=3, error_file=child_file(nested("KeyError: x\nmore", "stack"))),
        1: make(at=1.0),
    }
    lines = report(failures).splitlines()
    others = lines[lines.index("Other failures (2):") + 1 :]
    assert others == [
        "  rank 4 (local rank 0) on gpu-07, pid 4242, at 12:00:02.000000: exit code 3: KeyError: x",
        "  rank 9 (local rank 0) on gpu-07, pid 4242, at 12:00:03.000000: exit code 1: last words",
    ]


def test_a_long_cause_is_cut_in_the_list_of_others():
    failures = {0: make(), 1: make(at=1.0, last_lines=["x" * 1000])}
    assert report(failures).splitlines()[-1].endswith("x" * 157 + "...")


def test_very_many_failures_are_summed_up():
    failures = {rank: make(at=rank) for rank in range(1000)}
    text = report(failures)
    assert text.splitlines()[-1] == "  and 967 more: ranks 33-999"
    assert len(text.splitlines()) < 60


def test_stopped_ranks_that_exited_are_grouped_by_code():
    text = report({0: make()}, {3: 0, 1: 0, 2: 3, 7: -15})
    assert text.splitlines()[-1] == (
        "Stopped by plaunch: ranks 1,3 (exit code 0), rank 2 (exit code 3), rank 7 (SIGTERM)"
    )


def test_rules_are_optional():
    plain = report({0: make()}, {1: -15})
    assert "===" not in plain
    assert "---" not in plain
    ruled = report({0: make()}, {1: -15}, boarder_delim="=", section_delim="-").splitlines()
    width = len(ruled[1])
    assert ruled[0] == ruled[-1] == "=" * width
    assert ruled.count("-" * width) == 2
    assert [line for line in ruled[1:-1] if set(line) != {"-"}] == [
        line for line in plain.splitlines() if line
    ]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([0, 1], "0-1"),
        ([7, 3, 1, 2, 2], "1-3,7"),
        ([10, 8, 9, 12], "8-10,12"),
    ],
)
def test_ranks_in_short(ranks, text):
    assert format_ranks(ranks) == text
