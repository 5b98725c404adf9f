"""What workers that run have written about an exception."""

from __future__ import annotations

import os

import pytest
from plaunch.process import ExitPlace, HeldProcesses, LogsDest, WorkerInfo, WorkerResults
from plaunch.process.exit_evidence import ExitEvidence
from plaunch.process.outcomes import WorkerOutcomes
from plaunch.process.watches import OutOfMemoryCounter

from helpers.clock import Clock
from helpers.tracebacks import HEADER, frames

CRASH = [HEADER, *frames("/home/me/train.py", 7), "RuntimeError: bad batch"]
REPORT = '{"message": {"message": "ValueError: no data", "extraInfo": {}}}'


class Handle:
    """A worker that runs."""

    pid = os.getpid()

    def poll(self):
        return None


class Output:
    """Streams of one worker; a test sets them."""

    lines = CRASH
    time = None

    def last_lines(self, rank):
        return self.lines

    def traceback_time(self, rank):
        return self.time


@pytest.fixture
def clock():
    return Clock(1e9)


@pytest.fixture
def output():
    return Output()


@pytest.fixture
def file(tmp_path):
    return tmp_path / "error.json"


@pytest.fixture
def read(tmp_path, clock, output, file):
    """Read the evidence of the only worker."""
    outcomes = WorkerOutcomes(
        "t",
        1,
        LogsDest(error_files={0: str(file)}),
        WorkerResults(),
        lambda rank, pid: WorkerInfo(rank, rank, rank, 1, 1, pid),
    )
    outcomes.begin(OutOfMemoryCounter(str(tmp_path)))
    outcomes.workers = {0: Handle()}

    def read(known=None, *, wanted=(), spared=(), find=None, hold=""):
        holds = HeldProcesses(describe=lambda pid: hold)
        evidence = ExitEvidence(outcomes, output, find, holds, clock)
        return evidence.read({0: os.getpid()}, {} if known is None else {0: known}, wanted, spared)

    return read


def find(pids):
    return {rank: ExitPlace(True, True, "there", hold="at a prompt of pdb") for rank in pids}


def test_nothing_is_known_of_a_worker_that_has_written_nothing(read):
    signs = read(find=find)
    assert (signs.written, signs.places, signs.has_failed) == ({}, {}, False)


def test_a_traceback_on_stderr(read, clock, output):
    output.time = clock() - 3
    one = read().written[0]
    assert one == (clock() - 3, 3.0, False, CRASH, "RuntimeError: bad batch (train.py:7)")
    assert read(known=one.at).written == {}


@pytest.mark.parametrize("skew", [-1000.0, 0.0, 1000.0])
def test_an_error_file_has_no_age_because_its_clock_may_be_that_of_a_server(
    read, clock, output, file, skew
):
    output.time = clock()
    file.write_text(REPORT)
    os.utime(file, (clock() + skew, clock() + skew))
    one = read().written[0]
    assert (one.at, one.age, one.is_report) == (clock() + skew, 0.0, True)
    assert one.what.startswith("ValueError: no data")


def test_a_traceback_from_the_future_has_no_age(read, clock, output):
    output.time = clock() + 5
    assert read().written[0].age == 0.0


def test_the_place_is_read_once_an_interpreter_has_had_time_to_exit(read, clock, output):
    output.time = clock()
    assert read(find=find).places == {}
    clock.advance(1.5)
    signs = read(find=find)
    assert signs.places[0].place == "there"
    assert signs.activity[0]
    assert read(find=find, spared={0}).places == {}
    assert read(find=find, spared={0}, wanted={0}).places[0].place == "there"


def test_what_the_kernel_holds_comes_before_what_the_stack_shows(read):
    assert read(find=find, wanted={0}).holds == {0: "at a prompt of pdb"}
    assert read(find=find, wanted={0}, hold="suspended").holds == {0: "suspended"}
    assert read(wanted={0}).holds == {0: ""}


def test_a_bug_costs_only_the_look(read):
    assert read(find=lambda pids: 1 / 0, wanted={0}).has_failed
