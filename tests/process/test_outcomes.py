"""Which exits of workers are failures, and why."""

from __future__ import annotations

import signal

from plaunch.process import LogsDest, WorkerResults
from plaunch.process.components import unranked_worker
from plaunch.process.outcomes import WorkerOutcomes
from plaunch.process.watches import OutOfMemoryCounter


class Ended:
    """A worker that has ended."""

    def __init__(self, pid, exitcode):
        self.pid = pid
        self.exitcode = exitcode

    def poll(self):
        return self.exitcode


def test_only_a_sigkill_from_outside_may_be_the_out_of_memory_killers(tmp_path):
    """The counter is of all processes, so it says nothing about workers that ended otherwise."""
    counter = tmp_path / "proc" / "vmstat"
    counter.parent.mkdir()
    counter.write_text("oom_kill 0\n")
    outcomes = WorkerOutcomes("t", 4, LogsDest(), WorkerResults(), unranked_worker)
    outcomes.begin(OutOfMemoryCounter(str(tmp_path)))

    def end(rank, exitcode):
        outcomes.workers[rank] = Ended(100 + rank, exitcode)
        return outcomes.note(rank)

    assert end(0, -signal.SIGKILL).failure.oom_killed is False
    counter.write_text("oom_kill 1\n")
    assert end(1, 1).failure.oom_killed is False
    assert end(2, -signal.SIGKILL).failure.oom_killed is True
    outcomes.workers[3] = Ended(103, -signal.SIGKILL)
    outcomes.begin_stop()
    assert outcomes.note(3).failure is None


def test_the_space_of_shared_memory_is_read_after_a_bus_error_only(tmp_path):
    shared = str(tmp_path)
    outcomes = WorkerOutcomes(
        "t", 2, LogsDest(), WorkerResults(), unranked_worker, "/bin/python", shared
    )
    outcomes.workers[0] = Ended(100, -signal.SIGBUS)
    outcomes.workers[1] = Ended(101, -signal.SIGSEGV)
    failure = outcomes.note(0).failure
    free, total = failure.shared_memory
    assert 0 <= free <= total
    assert total > 0
    assert failure.program == "/bin/python"
    assert outcomes.note(1).failure.shared_memory is None


def test_a_worker_that_returned_nothing_valid_has_not_ended_with_0():
    class Invalid(WorkerResults):
        def take(self, local_rank, exitcode):
            return "its result cannot be read"

    outcomes = WorkerOutcomes("t", 1, LogsDest(), Invalid(), unranked_worker)
    outcomes.workers[0] = Ended(100, 0)
    failure = outcomes.note(0).failure
    assert failure.exitcode == 1
    assert failure.message == "its result cannot be read"
