"""Workers that have raised an exception, or are the last ones, and do not exit."""

from __future__ import annotations

import itertools
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest
from plaunch.process import (
    ExitPlace,
    ExitRules,
    HeldProcesses,
    LogsDest,
    WorkerInfo,
    WorkerResults,
    exit_evidence,
)
from plaunch.process.late_exits import LateExits
from plaunch.process.outcomes import WorkerOutcomes
from plaunch.process.watches import OutOfMemoryCounter

from helpers.clock import Clock
from helpers.tracebacks import HEADER, frames

PAGE = Path(__file__).parents[2] / "docs" / "debugging.md"
CRASH = [HEADER, *frames("/home/me/train.py", 7), "RuntimeError: bad batch"]
OF_THREAD = ["Exception in thread Thread-1 (pump):", *CRASH]
OF_CHILD = ["Process SpawnProcess-1:2:", *CRASH]
OF_DESTRUCTOR = ["Exception ignored in: <function Group.__del__ at 0x7f>", *CRASH]
OF_ATEXIT = ["Error in atexit._run_exitfuncs:", *CRASH]
SHUTDOWN = "threading._shutdown"


class Handle:
    """A worker that runs until it has an exit code."""

    def __init__(self, pid):
        self.pid = pid
        self.exitcode = None

    def poll(self):
        return self.exitcode


class Output:
    """Streams that keep the last lines of each rank."""

    def __init__(self, clock):
        self._clock = clock
        self._lines = {}
        self._times = {}

    def write(self, rank, lines):
        self._lines[rank] = lines
        if any("Traceback (most recent call last)" in line for line in lines):
            self._times[rank] = self._clock()

    def last_lines(self, rank):
        return self._lines.get(rank, [])

    def traceback_time(self, rank):
        return self._times.get(rank)


class Call:
    """A call that has been made at once."""

    def __init__(self, name, function):
        function()

    def wait(self, seconds):
        return True


class Node:
    """Two workers, or more, whose exits are watched with a clock that the test sets."""

    def __init__(self, tmp_path, monkeypatch, count=2, *, can_look=True, **rules):
        self.clock = Clock(1e9)
        self.places = {}
        self.runs = {}
        self.holds = {}
        self.looks = []
        self.files = {rank: str(tmp_path / f"error-{rank}.json") for rank in range(count)}
        self.outcomes = WorkerOutcomes(
            "t", count, LogsDest(error_files=self.files), WorkerResults(), self._describe
        )
        self.outcomes.begin(OutOfMemoryCounter(str(tmp_path)))
        self.outcomes.workers = {rank: Handle(100 + rank) for rank in range(count)}
        self.output = Output(self.clock)
        self.held = HeldProcesses(
            describe=lambda pid: self.holds.get(pid - 100, ""),
            clock=self.clock,
            wall_clock=self.clock,
        )
        find = self._find if can_look else None
        self.watch = LateExits(
            self.outcomes,
            self.output,
            ExitRules(find_places=find, **rules),
            lambda: None,
            holds=self.held,
            clock=self.clock,
            wall_clock=self.clock,
            run=Call,
        )
        monkeypatch.setattr(
            exit_evidence,
            "read_proc",
            lambda name: b"voluntary_ctxt_switches: %d" % self._run(name),
        )

    @staticmethod
    def _describe(rank, pid):
        return WorkerInfo(rank, 4 + rank, rank, 8, 8, pid)

    def _find(self, pids):
        self.looks.append(sorted(pids))
        return {rank: self.places[rank] for rank in pids if rank in self.places}

    def _run(self, name):
        """How often a worker has run: once more at each read, unless it is stuck."""
        rank = int(name.partition("/")[0]) - 100
        self.runs[rank] = self.runs.get(rank, 0) + (rank not in self.stuck)
        return self.runs[rank]

    stuck = frozenset()

    def report(self, rank):
        """Write the error file of a worker."""
        with open(self.files[rank], "w") as file:
            file.write('{"message": {"message": "RuntimeError: bad batch", "extraInfo": {}}}')
        os.utime(self.files[rank], (self.clock(), self.clock()))

    def exit(self, rank, exitcode=0):
        self.outcomes.workers[rank].exitcode = exitcode
        seen = replace(self.outcomes.note(rank), timestamp=self.clock())
        self.outcomes.exits[rank] = seen
        return seen

    def pass_time(self, seconds):
        """Let time pass, and call `update` whenever it is due."""
        until = self.clock() + seconds
        while True:
            self.held.sample_if_due([100 + rank for rank in range(len(self.files))])  # the agent
            if self.outcomes.failures or self.watch.update():
                return
            due = self.watch.due()
            step = until - self.clock() if due is None else min(due, until - self.clock())
            if step <= 0 and self.clock() >= until:
                return
            self.clock.advance(max(step, 0.001))


@pytest.fixture
def create(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.WARNING, "plaunch")
    return lambda *args, **options: Node(tmp_path, monkeypatch, *args, **options)


def test_an_exception_is_reported_once_with_the_place_after_ten_seconds(create, caplog):
    node = create(advice="the job waits for it")
    node.places[1] = ExitPlace(True, True, SHUTDOWN)
    node.output.write(1, CRASH)
    node.pass_time(9.9)
    assert caplog.messages == []
    node.pass_time(60)
    assert caplog.messages == [
        "rank 5 raised RuntimeError: bad batch (train.py:7) 10 s ago and has not exited; it is in "
        "threading._shutdown; the job waits for it"
    ]
    assert node.outcomes.failures == {}


def test_the_exception_is_the_failure_however_the_worker_ends(create):
    node = create()
    node.places[1] = ExitPlace(True, True, SHUTDOWN)
    raised_at = node.clock()
    node.output.write(1, CRASH)
    node.pass_time(12)
    node.output.write(1, ["Exception ignored in: <module 'threading'>", "KeyboardInterrupt: "])
    node.outcomes.begin_stop()
    node.exit(0, -15)
    node.exit(1, -15)
    failures = node.outcomes.result(node.output).failures
    assert list(failures) == [1]
    assert (failures[1].exitcode, failures[1].timestamp) == (1, raised_at)
    assert failures[1].headline == "RuntimeError: bad batch (train.py:7)"


def test_it_is_the_first_failure_when_others_fail_because_of_it(create):
    node = create()
    node.places[1] = ExitPlace(True, True, SHUTDOWN)
    node.output.write(1, CRASH)
    node.pass_time(300)
    node.exit(0, 1)
    failures = node.outcomes.result(node.output).failures
    assert min(failures, key=lambda rank: failures[rank].order) == 1


def test_a_worker_that_exits_after_all_has_its_own_exit_code(create):
    node = create()
    node.places[1] = ExitPlace(True, True, SHUTDOWN)
    node.output.write(1, CRASH)
    node.pass_time(12)
    assert node.exit(1, 3).failure.exitcode == 3


@pytest.mark.parametrize("timeout", [2.0, 12.0, 40.0])
def test_after_the_timeout_the_worker_has_failed(create, caplog, timeout):
    node = create(exception_timeout=timeout)
    node.places[1] = ExitPlace(True, True, SHUTDOWN)
    node.output.write(1, CRASH)
    node.pass_time(timeout - 0.1)
    assert node.outcomes.failures == {}
    node.pass_time(0.2)
    assert node.outcomes.failures[1].exitcode == 1
    assert f"has not exited {timeout:g} s after its exception" in caplog.messages[-1]
    assert sum("and counts as failed" in one for one in caplog.messages) == 1


def _rows():
    """The rows of the table in the docs: what is known, and what follows."""
    text = PAGE.read_text().partition("| exception in | main thread |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines()[2:]]
    assert rows
    return rows


WRITTEN = {
    "error file": [None],
    "stderr": [CRASH],
    "stderr, of a thread, a destructor or a child": [
        OF_THREAD,
        OF_CHILD,
        OF_DESTRUCTOR,
        OF_ATEXIT,
    ],
}
MAIN_THREADS = {
    "ends the interpreter": (True, SHUTDOWN),
    "stays on one line of the program": (False, "destroy_process_group <- main (train.py:9)"),
    "runs the program": (False, "train_step (train.py:5)"),
    "unknown": (None, ""),
}
UNCAUGHT = {"yes": True, "no": False, "unknown": None}


def test_the_table_in_the_docs_has_each_combination_once():
    known = set()
    for written, thread, uncaught, result in _rows():
        assert result in ("raised", "nothing", "may have raised")
        threads = MAIN_THREADS if thread == "any" else [thread]
        answers = UNCAUGHT if uncaught == "any" else [uncaught]
        new = set(itertools.product([written], threads, answers))
        assert not known & new
        known |= new
    assert known == set(itertools.product(WRITTEN, MAIN_THREADS, UNCAUGHT))


@pytest.mark.parametrize(
    ("written", "thread", "uncaught"), [*itertools.product(WRITTEN, MAIN_THREADS, UNCAUGHT)]
)
def test_each_combination_has_the_result_of_the_table(create, caplog, written, thread, uncaught):
    (expected,) = [
        row[3]
        for row in _rows()
        if row[0] == written and row[1] in (thread, "any") and row[2] in (uncaught, "any")
    ]
    for rank, lines in enumerate(WRITTEN[written]):
        caplog.clear()
        node = create(8)
        is_exiting, place = MAIN_THREADS[thread]
        node.places[rank] = ExitPlace(is_exiting, UNCAUGHT[uncaught], place)
        node.stuck = {rank} if thread != "runs the program" else set()
        if lines is None:
            node.report(rank)
        else:
            node.output.write(rank, lines)
        node.pass_time(100)
        said = {
            "raised": [" raised "],
            "nothing": [],
            "may have raised": [" wrote the traceback of "],
        }[expected]
        messages = [one for one in caplog.messages if "the end of its program" not in one]
        assert len(messages) == len(said)
        assert all(words in one for words, one in zip(said, messages, strict=True))
        assert node.outcomes.fail_raised() is (expected == "raised")


def test_a_traceback_of_which_nothing_is_known_is_no_failure(create, caplog):
    reason = "py-spy is not installed (pip install 'plaunch[stacks]')"
    node = create(exception_timeout=11.0)
    node.places[1] = ExitPlace(None, None, "", reason)
    node.stuck = {1}
    node.output.write(1, CRASH)
    node.pass_time(60)
    assert caplog.messages == [
        "rank 5 wrote the traceback of RuntimeError: bad batch (train.py:7) 10 s ago, and its main "
        "thread has not run since; whether it ends is not known; its stack cannot be read: "
        f"{reason}"
    ]
    assert node.outcomes.failures == {}


def test_without_stacks_and_proc_only_what_is_known_is_said(create, caplog, monkeypatch):
    node = create(can_look=False)
    monkeypatch.setattr(exit_evidence, "read_proc", lambda name: b"")
    node.output.write(1, CRASH)
    node.pass_time(60)
    assert caplog.messages == [
        "rank 5 wrote the traceback of RuntimeError: bad batch (train.py:7) 10 s ago; whether it "
        "ends is not known"
    ]


def test_an_exit_of_which_the_cause_is_unknown_is_no_failure(create, caplog):
    node = create(exception_timeout=11.0)
    node.places[1] = ExitPlace(True, None, "the exit of the interpreter")
    node.stuck = {1}
    node.output.write(1, CRASH)
    node.pass_time(60)
    assert caplog.messages == [
        "rank 5 wrote the traceback of RuntimeError: bad batch (train.py:7) 10 s ago, and its main "
        "thread has not run since; whether it ends because of that is not known; it is in the exit "
        "of the interpreter"
    ]
    assert node.outcomes.failures == {}


@pytest.mark.parametrize("skew", [-1000.0, 1000.0])
def test_the_clock_of_a_file_server_does_not_change_the_timeout(create, skew):
    node = create(exception_timeout=12.0)
    node.places[1] = ExitPlace(True, True, SHUTDOWN)
    node.report(1)
    os.utime(node.files[1], (node.clock() + skew,) * 2)
    node.pass_time(11.9)
    assert node.outcomes.failures == {}
    node.pass_time(6.0)
    assert node.outcomes.failures[1].exitcode == 1


@pytest.mark.parametrize("kind", ["kernel", "stack"])
@pytest.mark.parametrize("begin", [1.0, 7.0, 11.8, 25.0])
def test_while_a_worker_is_held_its_time_stands_still(create, caplog, kind, begin):
    node = create(exception_timeout=30.0)
    place = node.places[1] = ExitPlace(True, True, SHUTDOWN)
    node.output.write(1, CRASH)
    node.pass_time(begin)
    if kind == "kernel":
        node.holds[1] = "suspended"
    else:
        node.places[1] = place._replace(hold="at a prompt of pdb")
    node.pass_time(500)
    assert node.outcomes.failures == {}
    assert sum("has not exited" in one for one in caplog.messages) == (begin > 10)
    assert node.outcomes._has_reported(1)  # the cause of a stop
    node.holds.clear()
    node.places[1] = place
    node.pass_time(min(25.0 - begin, 10.0) if begin < 20 else 0.5)
    assert node.outcomes.failures == {}
    node.pass_time(36)
    assert node.outcomes.failures[1].exitcode == 1


def test_a_suspended_worker_is_not_taken_for_one_that_is_stuck(create, caplog):
    node = create(exception_timeout=12.0)
    node.places[1] = ExitPlace(False, None, "train_step (train.py:5)")
    node.stuck, node.holds[1] = {1}, "suspended"
    node.report(1)
    node.pass_time(100)
    node.stuck, node.holds = set(), {}
    node.pass_time(100)
    assert caplog.messages == []
    assert node.outcomes.failures == {}


def test_a_program_that_catches_exceptions_is_looked_at_more_and_more_rarely(create, caplog):
    node = create()
    node.places[1] = ExitPlace(False, None, "train_step (train.py:5)")
    for _ in range(600):
        node.output.write(1, CRASH)
        node.pass_time(1)
    assert caplog.messages == []
    assert len(node.looks) < 18
    node.places[1] = ExitPlace(True, True, SHUTDOWN)
    node.output.write(1, CRASH)
    node.pass_time(120)
    assert len(caplog.messages) == 1


def test_what_follows_the_exception_is_not_taken_for_it(create, caplog):
    node = create()
    node.places[1] = ExitPlace(True, True, SHUTDOWN)
    node.output.write(1, CRASH)
    node.pass_time(7)
    for _ in range(20):
        node.output.write(1, [HEADER, *frames("/home/me/pump.py", 3), "OSError: of a thread"])
        node.pass_time(1)
    assert len(caplog.messages) == 1
    assert "RuntimeError: bad batch (train.py:7)" in caplog.messages[0]


def test_a_traceback_in_another_form_is_an_exception_without_a_name(create, caplog):
    node = create()
    node.places[1] = ExitPlace(True, True, SHUTDOWN)
    node.output.write(1, ["+--- Traceback (most recent call last) ---+", "| train.py:7 in main |"])
    node.pass_time(20)
    assert caplog.messages[0].startswith("rank 5 raised an exception 10 s ago and has not exited")


# --- the end of a job -----------------------------------------------------------------------------


def test_ranks_that_are_later_than_the_others_are_named_once_by_place(create, caplog):
    node = create(6)
    node.places = {
        rank: ExitPlace(rank > 1, None, place)
        for rank, place in enumerate(["", "save (train.py:9)", SHUTDOWN, SHUTDOWN])
    }
    node.pass_time(60)
    for rank in (0, 4, 5):
        node.exit(rank)
    node.pass_time(9.9)
    assert caplog.messages == []
    node.pass_time(30)
    node.exit(3)
    node.pass_time(60)
    assert caplog.messages == [
        "rank 5 has not exited, 10 s after the others; it is in save (train.py:9)",
        "ranks 6-7 have not exited, 10 s after the others; they are in threading._shutdown",
    ]


def test_ranks_are_not_late_because_a_few_have_ended_early(create, caplog):
    node = create(4)
    node.exit(0)
    node.pass_time(60)
    assert caplog.messages == []


def test_a_rank_that_raised_is_not_named_as_late_too(create, caplog):
    node = create()
    node.places[1] = ExitPlace(True, True, SHUTDOWN)
    node.output.write(1, CRASH)
    node.pass_time(7)
    node.exit(0)
    node.pass_time(60)
    assert len(caplog.messages) == 1
    assert " raised " in caplog.messages[0]


def test_the_reason_is_said_if_the_place_of_late_ranks_cannot_be_read(create, caplog):
    node = create(4)
    node.places = {rank: ExitPlace(reason="py-spy is not installed") for rank in (1, 2)}
    node.exit(0)
    node.exit(3)
    node.pass_time(20)
    assert caplog.messages == [
        "ranks 5-6 have not exited, 10 s after the others; their stacks cannot be read: py-spy is "
        "not installed"
    ]


def test_what_holds_a_late_rank_is_named(create, caplog):
    node = create()
    node.places[1] = ExitPlace(False, None, "save (train.py:9)")
    node.holds[1] = "suspended"
    node.exit(0)
    node.pass_time(20)
    assert caplog.messages == ["rank 5 has not exited, 10 s after the others; it is suspended"]


def test_a_rank_that_has_ended_its_program_is_named_although_no_other_has_ended(create, caplog):
    node = create(1)
    node.stuck = {0}
    node.places[0] = ExitPlace(True, False, SHUTDOWN)
    node.pass_time(60)
    assert caplog.messages == [
        "rank 4 has not exited, 10 s after the end of its program; it is in threading._shutdown"
    ]
    assert node.outcomes.failures == {}


def test_all_ranks_that_have_ended_their_programs_are_named_together(create, caplog):
    node = create(3)
    node.stuck = {0, 1, 2}
    node.places = dict.fromkeys(range(3), ExitPlace(True, None, SHUTDOWN))
    node.pass_time(60)
    assert caplog.messages == [
        "ranks 4-6 have not exited, 10 s after the end of their programs; they are in "
        "threading._shutdown"
    ]


def test_the_stacks_of_ranks_that_run_are_not_read(create, caplog):
    node = create(2)
    node.places = dict.fromkeys(range(2), ExitPlace(True, None, SHUTDOWN))
    node.pass_time(600)
    assert (node.looks, caplog.messages) == ([], [])


def test_the_stack_of_a_rank_that_waits_is_read_once(create, caplog):
    node = create(2)
    node.stuck = {0}
    node.places[0] = ExitPlace(False, None, "recv (train.py:9)")
    node.pass_time(3600)
    assert (node.looks, caplog.messages) == ([[0]], [])


def test_a_program_that_waits_again_and_again_is_looked_at_more_and_more_rarely(create, caplog):
    node = create(1)
    node.places[0] = ExitPlace(False, None, "poll (serve.py:9)")
    for _ in range(120):  # an hour
        node.stuck = {0}
        node.pass_time(29.5)
        node.stuck = set()
        node.pass_time(0.5)
    assert 10 <= len(node.looks) <= 20
    node.stuck = {0}
    node.places[0] = ExitPlace(True, None, SHUTDOWN)
    node.pass_time(400)
    assert len(caplog.messages) == 1


def test_a_look_at_many_ranks_that_wait_reads_a_few_stacks(create):
    node = create(20)
    node.stuck = {*range(20)}
    node.places = dict.fromkeys(range(20), ExitPlace(False, None, "all_reduce (train.py:9)"))
    node.pass_time(60)
    assert sorted(rank for look in node.looks for rank in look) == [*range(20)]
    assert max(map(len, node.looks)) == 8


def test_without_stacks_nothing_is_said_of_a_rank_that_waits(create, caplog):
    node = create(1)
    node.stuck = {0}
    node.places[0] = ExitPlace(reason="py-spy is not installed")
    node.pass_time(60)
    assert caplog.messages == []


def test_a_rank_is_late_if_most_other_nodes_have_succeeded(create, caplog):
    node = create(1)
    node.places[0] = ExitPlace(False, None, "save (train.py:9)")
    node.pass_time(60)
    node.watch.note_peers_ended(5.0)
    node.pass_time(4.9)
    assert caplog.messages == []
    node.watch.note_peers_ended(5.0)  # another leader
    node.pass_time(60)
    assert caplog.messages == [
        "rank 4 has not exited, 10 s after the others; it is in save (train.py:9)"
    ]


def test_without_threads_looks_are_tried_again_later(create, caplog):
    node = create()
    node.exit(0)
    calls = []

    def refuse(name, function):
        calls.append(name)
        raise RuntimeError("can't start new thread")

    node.watch._run = refuse
    node.pass_time(60)
    assert 1 < len(calls) < 20
    node.watch._run = Call
    node.pass_time(20)
    assert len(caplog.messages) == 1


def test_it_wakes_nobody_once_workers_are_stopped(create):
    node = create()
    node.output.write(1, CRASH)
    node.pass_time(2)
    assert node.watch.due() is not None
    node.outcomes.begin_stop()
    node.clock.advance(60)
    assert node.watch.due() is None


def test_it_wakes_nobody_once_a_worker_has_failed(create):
    node = create()
    node.exit(0, 1)
    node.clock.advance(60)
    assert node.watch.due() is None


def test_a_look_that_fails_is_not_repeated_at_once(create):
    node = create()
    node.output.write(1, CRASH)
    looks = []

    def fail(pids):
        looks.append(pids)
        raise RuntimeError("a bug")

    node.watch._evidence._find_places = fail
    node.pass_time(20)
    assert 1 <= len(looks) <= 5


def test_the_time_after_an_exception_ends_also_while_a_look_does_not(create):
    node = create(exception_timeout=12.0)
    node.places[1] = ExitPlace(True, True, SHUTDOWN)
    node.output.write(1, CRASH)
    node.pass_time(11)
    node.watch._run = lambda name, function: PendingCall()
    node.watch._suspects[1].is_settled = False
    node.clock.advance(0.5)
    node.watch.update()
    node.clock.advance(2)
    assert node.watch.due() == 0.0
    assert node.watch.update()


class PendingCall:
    """A call that does not return."""

    def wait(self, seconds):
        return False
