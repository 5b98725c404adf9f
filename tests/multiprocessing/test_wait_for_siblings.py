"""Function workers that have returned wait for the others, as in torchrun."""

from __future__ import annotations

import os
import signal

import pytest

from helpers.processes import is_gone
from helpers.waiting import wait_for_files, wait_until

BOUND = 60.0  # seconds; enough for everything here
GRACE = 300.0  # seconds; no test uses it up

pytestmark = pytest.mark.filterwarnings(
    # Python 3.12 on; the threads are those of the test runner's own time-out.
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)


@pytest.fixture
def returning(functions, start, tmp_path, start_method):
    """Start workers that return when the file `go.<rank>` exists, rank 0 at once."""

    def returning(*codes):
        args = [
            (str(tmp_path / f"up.{rank}"), rank and str(tmp_path / f"go.{rank}"), code)
            for rank, code in enumerate(codes)
        ]
        options = {"start_method": start_method, "shutdown_timeout": GRACE}
        context = start(functions.return_when, *args, **options)
        wait_for_files(*(tmp_path / f"up.{rank}" for rank in range(len(codes))))
        wait_until_returned(context, 0)
        return context

    return returning


def wait_until_returned(context, rank):
    """Wait until the value of a worker has been received."""
    wait_until(
        lambda: context.wait(0) is None and rank in context._values._problems,
        f"a value of rank {rank}",
    )


def test_a_returned_worker_waits_for_the_others(returning, tmp_path):
    context = returning(0, 0, 0)
    pids = context.pids()
    (tmp_path / "go.1").touch()
    wait_until_returned(context, 1)
    assert not is_gone(pids[0])
    assert not is_gone(pids[1])
    (tmp_path / "go.2").touch()
    result = context.wait(BOUND)
    assert result is not None, "it hangs"
    assert result.return_values == pids
    assert not result.failures
    assert not result.stopped


def test_a_failure_releases_the_waiting_workers(returning, tmp_path):
    context = returning(0, 7)
    (tmp_path / "go.1").touch()
    result = context.wait(BOUND)
    assert result is not None, "it hangs"
    assert {rank: failure.exitcode for rank, failure in result.failures.items()} == {1: 7}
    assert result.stopped == {}  # rank 0 has succeeded before


def test_a_stop_releases_the_waiting_workers_with_success(returning):
    """They end before the grace is over."""
    context = returning(0, 0)
    context.close(signal.SIGTERM, GRACE)
    exits = {seen.local_rank: seen for seen in context.take_exits()}
    assert (exits[0].exitcode, exits[0].stopped) == (0, False)
    assert exits[1].stopped


def test_the_end_of_the_launcher_releases_the_waiting_workers(returning):
    """Simulated by closing its end of the pipe."""
    context = returning(0, 0)
    context._values.gate.close()
    pid = context.pids()[0]
    wait_until(lambda: context.wait(0) is not None or is_gone(pid), "the end of rank 0")


def test_a_returned_worker_that_ends_slowly_has_not_failed(returning, tmp_path):
    context = returning(0, 7)
    os.kill(context.pids()[0], signal.SIGSTOP)
    (tmp_path / "go.1").touch()
    results = []
    wait_until(lambda: results.append(context.check()) or results[-1] is not None, "a failure")
    assert set(results[-1].failures) == {1}


def test_a_returned_worker_that_is_killed_was_stopped(returning):
    context = returning(0, 0)
    context.close(signal.SIGKILL)
    exits = {seen.local_rank: (seen.exitcode, seen.stopped) for seen in context.take_exits()}
    assert exits[0] == (-signal.SIGKILL, True)
    assert not context.check().failures


def test_two_simultaneous_stop_signals_are_not_a_failure(returning):
    context = returning(0, 0)
    pid = context.pids()[0]
    for signum in (signal.SIGSTOP, signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        os.kill(pid, signum)
    wait_until(
        lambda: context.check() is None and 0 in context._outcomes.exits, "the end of rank 0"
    )
    assert context._outcomes.exits[0].exitcode == 0
