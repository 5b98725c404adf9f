"""What an agent gives to its contexts: who observes them is notified of the same exits."""

from __future__ import annotations

import signal
import sys

import pytest
from plaunch.errors import WorkerStartError
from plaunch.process import ContextComponents, Starter, SubprocessContext, WorkerInfo

from helpers.logs_specs import NoFiles
from helpers.waiting import BOUND

SLEEP = "import time; time.sleep(600)"


class Observer:
    def __init__(self):
        self.exits = []
        self.steps = []

    def on_exit(self, exit):
        self.exits.append(exit)

    def on_stop_step(self, step):
        self.steps.append(step.step)


@pytest.fixture
def start():
    opened = []

    def start(components, *codes, kind=SubprocessContext):
        args = {rank: ("-c", code) for rank, code in enumerate(codes)}
        envs = {rank: {} for rank in args}
        context = kind(
            "t",
            sys.executable,
            args,
            envs,
            NoFiles(),
            handle_signals=False,
            components=components,
        )
        opened.append(context)
        context.start()
        return context

    yield start
    for context in opened:
        context.close(signal.SIGKILL)


def test_an_observer_gets_the_exits_that_the_context_keeps(start):
    observer = Observer()
    context = start(ContextComponents(observer=observer), "raise SystemExit(7)", SLEEP)
    result = context.wait(BOUND)
    first, second = exits = context.take_exits()
    seen = [(each.worker, each.exitcode, each.stopped, each.timestamp) for each in observer.exits]
    assert seen == [(each.worker, each.exitcode, each.stopped, each.timestamp) for each in exits]
    assert (first.local_rank, first.exitcode, first.stopped) == (0, 7, False)
    assert first.failure is result.failures[0]
    assert first.pid == context.pids()[0]
    assert not first.succeeded
    assert (second.local_rank, second.failure) == (1, None)
    assert observer.steps[-1] == "gone"


def test_observers_get_the_worker_of_an_exit(start):
    observer = Observer()
    infos = ContextComponents(
        observer=observer, worker_info=lambda rank, pid: WorkerInfo(rank, 4, 0, 8, 8, pid)
    )
    start(infos, "pass").wait(BOUND)
    (seen,) = observer.exits
    assert (seen.worker.global_rank, seen.worker.world_size) == (4, 8)
    assert seen.succeeded


def test_a_start_that_fails_is_not_observed(start):
    class OneOnly(SubprocessContext):
        def _start_worker(self, local_rank, stdout, stderr):
            if local_rank:
                raise OSError("no more processes")
            return super()._start_worker(local_rank, stdout, stderr)

    observer = Observer()
    with pytest.raises(WorkerStartError, match="cannot start local rank 1 of 't'"):
        start(ContextComponents(observer=observer), SLEEP, SLEEP, kind=OneOnly)
    assert (observer.exits, observer.steps) == ([], [])


def test_an_exit_can_become_a_failure_after_the_stop(start):
    observer = Observer()
    context = start(ContextComponents(observer=observer), SLEEP)
    context.close()
    context.fail_stopped()
    failures = context.check().failures
    (seen,) = context.take_exits()
    assert (seen.exitcode, seen.stopped) == (-signal.SIGTERM, True)
    assert seen.failure is failures[0]
    assert observer.exits[0].failure is None


class OwnStarter(Starter):
    """Starts workers in its own way, and does nothing else."""

    def start(self, local_rank, command, *, env, stdout, stderr, pass_fds=(), binding=None):
        return None


def test_a_starter_needs_only_to_start_workers():
    starter = OwnStarter()
    starter.begin(["train"], {})
    assert starter.wait() == {}
    starter.prepare({0: {}})
    assert starter.start_helper(["store"], env={}, stdin=0, stdout=1, stderr=2) is None
    assert [*starter.fds()] == []
    starter.close()
    starter.close()
