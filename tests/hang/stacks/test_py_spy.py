"""Parsing the output of py-spy."""

from __future__ import annotations

import json
import sys

import pytest
from plaunch_hang.stacks import StackFrame, find_py_spy, py_spy
from plaunch_hang.stacks.py_spy import UnreadableError, explain, parse_threads, read_threads


def thread(number, name, *functions):
    frames = [{"name": one, "filename": f"{one}.py", "line": 1} for one in functions]
    return {"pid": 7, "thread_name": name, "os_thread_id": number, "frames": frames}


@pytest.mark.parametrize(
    "shown",
    [
        [thread(9, "loader", "run"), thread(7, "MainThread", "inner", "outer")],
        [thread(None, "loader", "run"), thread(None, "MainThread", "inner", "outer")],
        [thread(None, None, "inner", "outer")],
    ],
)
def test_the_main_thread_comes_first(shown):
    main = parse_threads(json.dumps(shown).encode(), 7)[0]
    assert main.is_main
    assert main.frames == (StackFrame("inner", "inner.py", 1), StackFrame("outer", "outer.py", 1))


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[1]", b'[{"os_thread_id": 7}]', b"[" * 100_000, b"\xff"]
)
def test_invalid_output_is_refused(text):
    with pytest.raises(UnreadableError, match="py-spy has written"):
        parse_threads(text, 7)


@pytest.mark.parametrize(
    ("said", "reason", "is_lasting"),
    [
        (
            "Error: Permission Denied: Try running again with sudo",
            "the system does not allow",
            True,
        ),
        ("Error: Failed to copy\nCaused by: Operation not permitted", "the system does not", True),
        ("Error: Failed to find python version from target process", "it is not Python", True),
        ("Error: x\nCaused by: No such file or directory (os error 2)", "it has ended", True),
        ("Error: Failed to copy PyCodeObject\nStack backtrace:\n 0: y", "py-spy: Failed to", False),
        ("", "py-spy: failed without a message", False),
    ],
)
def test_why_a_process_cannot_be_read(said, reason, is_lasting):
    error = explain(said)
    assert str(error).startswith(reason)
    assert "backtrace" not in str(error)
    assert error.is_lasting is is_lasting


def test_py_spy_may_be_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"pip install 'plaunch\[stacks\]'"):
        find_py_spy()


def test_a_py_spy_that_hangs_is_killed(tmp_path):
    program = tmp_path / "py-spy"
    program.write_text(
        "#!/bin/sh\necho $$ > pid\nexec sleep 60\n".replace("pid", f"{tmp_path}/pid")
    )
    program.chmod(0o755)
    with pytest.raises(UnreadableError, match=r"not read within 0\.3 s"):
        read_threads(str(program), 1, 0.3)


def test_a_py_spy_that_cannot_be_run(tmp_path):
    with pytest.raises(UnreadableError, match="py-spy cannot be run"):
        read_threads(str(tmp_path), 1, py_spy._KILL_WAIT)
