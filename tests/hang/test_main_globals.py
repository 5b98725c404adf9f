"""Globals of real processes, read from their memory."""

from __future__ import annotations

import os
import subprocess

import pytest
from plaunch_hang.stacks import variables
from plaunch_hang.stacks.variables import has_uncaught_exception, read_main_globals

from helpers.programs import running_python

pytestmark = pytest.mark.usefixtures("readable_stacks")

# Changes something each time that it reads a line.
CHANGING = """\
import sys
import threading
number, ratio, items, table, text = 1, 1.5, [], {}, "a"
lock = threading.Lock()
for line in sys.stdin:
    exec(line)
    print(flush=True)
"""


@pytest.fixture
def process():
    with running_python("-c", f"print(flush=True)\n{CHANGING}") as process:
        process.stdout.readline()
        yield process


def run(process, line):
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    process.stdout.readline()
    found = read_main_globals(process.pid)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "line",
    [
        "number += 10**6",
        "ratio *= 1.1",
        "items.append(items)",
        "table[len(table)] = table",
        "text = sys.version",
        "new = sys",
        "del table",
    ],
)
def test_a_global_that_changes(process, line):
    before = run(process, "line = pass_ = None")
    assert run(process, "line = pass_ = None") == before
    assert run(process, f"{line}; line = None") != before


def test_locks_and_references_do_not_count(process):
    """Another thread may use them while the main thread hangs."""
    before = run(process, "line = None")
    assert run(process, "lock.acquire(); sys.kept = [items] * 9; line = None") == before


def test_many_globals(process):
    before = run(process, "vars().update({f'n{n}': n for n in range(70_000)}); line = None")
    assert run(process, "n9 += 10**6; line = None") != before


def test_unreadable_processes():
    with subprocess.Popen(["sleep", "1000"]) as other:
        assert read_main_globals(other.pid) is None
        other.kill()
    assert read_main_globals(other.pid) is None
    assert read_main_globals(os.getpid()) is not None


def test_the_layout_of_this_build_is_found_once(process, monkeypatch):
    assert has_uncaught_exception(process.pid) is False
    monkeypatch.setattr(variables, "_read_build", lambda: pytest.fail("searched again"))
    assert has_uncaught_exception(process.pid) is False
    assert read_main_globals(process.pid) is not None


def test_another_layout_is_noticed_once(process, monkeypatch):
    calls = []

    def refuse():
        calls.append("read")
        raise ValueError("another layout")

    monkeypatch.setattr(variables, "_read_build", refuse)
    variables._find_build.cache_clear()
    try:
        assert has_uncaught_exception(process.pid) is None
        assert read_main_globals(process.pid) is None
    finally:
        variables._find_build.cache_clear()
    assert calls == ["read"]
