"""Function workers that misbehave: the right result or a clear failure, never a hang."""

from __future__ import annotations

import fcntl
import importlib
import os
import re
import signal
import subprocess
import sys
import termios
from dataclasses import dataclass

import pytest
from plaunch.process import Std

from helpers.processes import is_gone
from helpers.waiting import wait_until

BOUND = 60.0  # seconds; enough for everything here on a busy machine

FUNCTIONS = os.path.join(os.path.dirname(__file__), "modules")

pytestmark = pytest.mark.filterwarnings(
    # Python 3.12 on; the threads are those of the test runner's own time-out.
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)


@pytest.fixture
def behave(functions, start):
    """Start one worker for each tuple: the name of its function, and the arguments."""
    chaos = importlib.import_module("chaos_functions")

    def behave(*behaviours, **options):
        envs = {rank: {"LOCAL_RANK": rank} for rank in range(len(behaviours))}
        return start(chaos.behave, *behaviours, envs=envs, **options)

    return behave


@dataclass(frozen=True)
class Failing:
    """What a worker does, and how its failure must be reported."""

    does: tuple
    exitcode: int | None  # any but 0
    says: str = ""  # a pattern in the message
    reports: str = ""  # and nothing else

    def __str__(self) -> str:
        return "-".join(str(part).replace(" ", "_") for part in self.does)[:60]


FAILING = [
    # Values
    Failing(("unpicklable",), 1, "<function behave at .* cannot be sent to the launcher"),
    Failing(("nested",), 1, "cannot be sent to the launcher"),
    Failing(
        ("raises_when_unpickled", ValueError, "not here"),
        1,
        reports="the worker's return value cannot be unpickled in the launcher: "
        "ValueError: not here",
    ),
    Failing(("raises_when_unpickled", RecursionError), 1, "RecursionError"),
    # Exceptions
    Failing(("raise_holds_lock",), 1, reports="HoldsLockError: it holds a lock"),
    Failing(("raise_needs_two",), 1, reports="NeedsTwoError: two things 2"),
    Failing(("raise_unprintable",), 1, "UnprintableError"),
    Failing(("raise_unusual",), 1, "not an Exception"),
    Failing(("raise_at_length", 8), 1, "begin xxx"),
    Failing(("raise_bytes_and_surrogates",), 1, "a lone surrogate"),
    Failing(("recurse",), 1, "RecursionError"),
    Failing(("run_out_of_memory",), 1, "MemoryError"),
    Failing(("raise_without_a_place_for_the_report",), 1, "nowhere to write"),
    Failing(("raise_with_a_full_disk",), 1, "no room to write"),
    # Ends
    Failing(("exit_at_once", 0), 1, "without a return value"),
    Failing(("exit_at_once", 7), 7),
    Failing(("exit_with", 7), 7),
    Failing(("exit_with", True), 1),
    Failing(("exit_with", 256), 1),  # the system truncates it to 0
    Failing(("exit_with", "in words"), 1, "'in words']"),  # it is the last line
    Failing(("kill_self", signal.SIGTERM), -signal.SIGTERM, "SIGTERM"),
    Failing(("kill_self", signal.SIGKILL), -signal.SIGKILL, "SIGKILL"),
    Failing(("kill_self", signal.SIGSEGV), -signal.SIGSEGV, "SIGSEGV"),
    Failing(("become", "/bin/true"), 1, "without a return value"),
    Failing(("become", "/bin/false"), 1),
    Failing(("close_everything_and", "give", 1), None),  # an interpreter may have its own
    Failing(("close_the_streams_and", "raise_holds_lock"), 1, "it holds a lock"),
    Failing(("refuse_signals_and", "exit_at_once", 7), 7),
    Failing(("write_then", 4, "exit_at_once", 7), 7),
    Failing(("write_then", 4, "kill_self", signal.SIGKILL), -signal.SIGKILL),
]


def check_failure(context, failing):
    """Worker 1 has failed as expected, its sibling was stopped, and both are gone."""
    pids = context.pids()
    result = context.wait(BOUND)
    assert result is not None, "it hangs"
    assert result.is_failed()
    assert result.return_values == {}
    assert list(result.failures) == [1]
    failure = result.failures[1]
    assert failure.exitcode == failing.exitcode or failing.exitcode is None
    message = failure.message
    text = message["message"] if isinstance(message, dict) else message
    assert failing.reports in ("", text)
    report = f"{failure.message}\n{failure.describe_exit()}\n{failure.last_lines}"
    assert re.search(failing.says, report)
    assert list(result.stopped) == [0]
    assert all(is_gone(pid) for pid in pids.values())
    return failure


@pytest.mark.parametrize("failing", FAILING, ids=str)
def test_a_bad_end_is_a_clear_failure(behave, tmp_path, failing, start_method):
    options = {"start_method": start_method, "log_dir": tmp_path, "redirects": Std.OUT}
    check_failure(behave(("sleep",), failing.does, **options), failing)


def test_a_value_that_raises_system_exit_does_not_end_the_launcher(behave):
    failing = Failing(("raises_when_unpickled", SystemExit, 5), 1, "SystemExit")
    check_failure(behave(("sleep",), failing.does), failing)


def test_hundreds_of_megabytes_are_returned(behave, start_method):
    values = (("megabytes", 200), ("give", "small"), ("megabytes", 32))
    result = behave(*values, start_method=start_method).wait(BOUND)
    assert result is not None, "it hangs"
    assert not result.is_failed(), result.failures
    assert len(result.return_values[0]) == 200 << 20
    assert result.return_values[1] == "small"
    assert len(result.return_values[2]) == 32 << 20


def test_a_failure_does_not_wait_for_a_large_value(behave):
    """Worker 0 is sending a value that is never read completely."""
    context = behave(("megabytes", 200), ("exit_at_once", 7))
    result = context.wait(BOUND)
    assert result.failures[1].exitcode == 7
    assert result.return_values == {}
    assert all(is_gone(pid) for pid in context.pids().values())


def test_a_worker_killed_while_it_writes_its_value_is_a_failure(behave, start_method):
    context = behave(("sleep",), ("megabytes", 64), start_method=start_method)
    # The value is not read, so the worker blocks in the middle of it.
    pipe = context._values._pipes[1].fd
    wait_until(
        lambda: fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)) != bytes(4), "it has begun to write"
    )
    os.kill(context.pids()[1], signal.SIGKILL)
    check_failure(context, Failing((), -signal.SIGKILL, "SIGKILL"))


def test_a_worker_may_close_its_streams(behave, start_method, tmp_path):
    result = behave(
        ("close_the_streams_and", "give", 1),
        ("close_the_streams_and", "give", 2),
        start_method=start_method,
        log_dir=tmp_path,
        redirects=Std.ALL,
    ).wait(BOUND)
    assert result is not None, "it hangs"
    assert result.return_values == {0: 1, 1: 2}


def test_many_workers_return_at_once(behave):
    result = behave(*[("megabytes", 4)] * 16).wait(BOUND)
    assert result is not None, "it hangs"
    assert {len(value) for value in result.return_values.values()} == {4 << 20}
    assert len(result.return_values) == 16


# A separate launcher, as the test checks its console.
WRITE = """\
import json, os, sys
from plaunch.process import Std, start_processes
import chaos_functions
if __name__ == "__main__":
    method, log_dir, megabytes = sys.argv[1], sys.argv[2], int(sys.argv[3])
    args = {rank: ("write_then", megabytes, "give", rank) for rank in range(2)}
    context = start_processes(
        "w", chaos_functions.behave, args, {rank: {"LOCAL_RANK": rank} for rank in range(2)},
        start_method=method, log_dir=log_dir, tee=Std.OUT, log_line_prefixes={0: "", 1: ""},
    )
    result = context.wait()
    os.write(2, json.dumps([result.return_values, list(result.failures)]).encode())
"""
MEBIBYTES = int(os.environ.get("CHAOS_MEBIBYTES", "64"))  # by both workers together


def count_in_order(stream, nprocs):
    """Read lines to the end, which must be whole and in order; their number by rank."""
    expected = [0] * nprocs
    for line in stream:
        assert len(line) == 64, line
        rank, number = int(line[:1]), int(line[2:14])
        assert number == expected[rank], f"rank {rank} lost a line"
        expected[rank] += 1
    return expected


@pytest.mark.parametrize(
    ("start_method", "megabytes"), [("fork", MEBIBYTES), ("spawn", 16), ("forkserver", 16)]
)
def test_much_output_before_the_value_is_complete(tmp_path, start_method, megabytes):
    script = tmp_path / "write.py"
    script.write_text(WRITE)
    with subprocess.Popen(
        [sys.executable, script, start_method, tmp_path / "logs", str(megabytes // 2)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([FUNCTIONS, *sys.path])},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as launcher:
        try:
            counts = count_in_order(launcher.stdout, 2)
            said = launcher.stderr.read()
            launcher.wait(BOUND)
        except BaseException:
            launcher.kill()
            raise
    notice = rb"(waiting for stdout, .*\n)?"  # after some seconds, on a busy machine
    assert re.sub(notice, b"", said, count=1) == b'[{"0": 0, "1": 1}, []]'
    assert counts == [megabytes // 2 * 16384] * 2
    files = sorted((tmp_path / "logs").glob("*/attempt_0/*/stdout.log"))
    assert [path.stat().st_size for path in files] == [megabytes // 2 << 20] * 2


def test_a_line_without_an_end_is_passed_on(behave, tmp_path):
    context = behave(("write_without_a_line_end", 8), log_dir=tmp_path, tee=Std.OUT)
    result = context.wait(BOUND)
    assert result is not None, "it hangs"
    assert result.return_values == {0: "written"}
    assert os.path.getsize(context.stdouts[0]) == (8 << 20) + len("begin")
