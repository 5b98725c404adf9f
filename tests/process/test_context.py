"""`PContext` as a base class: what a subclass that was written for torchrun gets from it."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import PurePosixPath as PurePath

import plaunch.process
import pytest
from plaunch.errors import PlaunchError, RankMappingError, SignalException, UsageError
from plaunch.process import PContext, RunProcsResult
from plaunch.process.context import validate_ranks, worker_args, worker_envs

from helpers.clock import Clock
from helpers.logs_specs import NoFiles
from helpers.waiting import BOUND


class ThreadContext(PContext):
    """Threads as workers; it has torchrun's four methods and nothing else."""

    def __init__(self, *args, polls=1, **kwargs):
        super().__init__(*args, **kwargs)
        self.polls_left = polls
        self.closed = []

    def _start(self):
        self.threads = [
            threading.Thread(target=self.entrypoint, args=self.args[rank])
            for rank in range(self.nprocs)
        ]
        for thread in self.threads:
            thread.start()

    def _poll(self):
        if any(thread.is_alive() for thread in self.threads):
            return None
        self.polls_left -= 1
        if self.polls_left > 0:
            return None
        self.close()
        return RunProcsResult(return_values=dict.fromkeys(range(self.nprocs)))

    def pids(self):
        return dict.fromkeys(range(self.nprocs), os.getpid())

    def _close(self, death_sig, timeout=30):
        self.closed.append((death_sig, timeout))
        for thread in getattr(self, "threads", []):
            thread.join()


def make(entrypoint=lambda: None, args=None, logs_specs=None, *, kind=ThreadContext, **options):
    args = args or {0: (), 1: ()}
    envs = {rank: {} for rank in args}
    return kind("t", entrypoint, args, envs, logs_specs or NoFiles(), **options)


def ended(polls):
    """A context whose workers have ended, and which tells so at the last of some looks."""
    context = make(polls=polls)
    context.start()
    for thread in context.threads:
        thread.join()
    return context


def test_it_is_started_polled_and_closed():
    done = []
    context = make(done.append, {0: ("a",), 1: ("b",)})
    context.start()
    result = context.wait(BOUND, period=0.001)
    assert sorted(done) == ["a", "b"]
    assert result.return_values == {0: None, 1: None}
    assert context.closed == [(signal.SIGTERM, 30.0)]


def test_it_takes_torchruns_arguments_by_position():
    context = ThreadContext(
        "t", print, {0: ()}, {0: {}}, NoFiles(), {0: "prefix"}, ["out"], ["err"]
    )
    assert (context.name, context.nprocs) == ("t", 1)
    assert (context.stdouts, context.error_files) == ({0: ""}, {})


def test_looking_does_not_wait():
    context = ended(3)
    assert [context.wait(0), context.wait(0)] == [None, None]
    assert context.wait(0) is not None


def test_it_is_polled_at_the_period(monkeypatch):
    sleeps = []
    monkeypatch.setattr(time, "sleep", sleeps.append)
    context = ended(4)
    assert context.wait(-1, period=0.25) is not None
    assert sleeps == [0.25, 0.25, 0.25]


def test_the_period_does_not_exceed_the_timeout(monkeypatch):
    clock = Clock()
    sleeps = []

    def sleep(seconds):
        sleeps.append(seconds)
        clock.now += seconds

    monkeypatch.setattr(time, "monotonic", clock)
    monkeypatch.setattr(time, "sleep", sleep)
    context = make(polls=100)
    context.threads = []
    assert context.wait(2.5, period=1) is None
    assert sleeps == [1, 1, 0.5]


def test_a_plain_context_has_no_descriptors_and_no_exits():
    context = make()
    assert context.exit_fds() is None
    assert context.take_exits() == []
    context.escalate()


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ((), (signal.SIGTERM, 12.5)),
        ((signal.SIGINT,), (signal.SIGINT, 12.5)),
        ((signal.SIGINT, 3), (signal.SIGINT, 3)),
        ((None, 0), (signal.SIGTERM, 0)),
        ((None, -1), (signal.SIGTERM, 0)),
    ],
)
def test_close_has_defaults(asked, given):
    context = make(shutdown_timeout=12.5)
    context.close(*asked)
    assert context.closed == [given]


def test_a_signal_raises_and_close_restores():
    before = signal.getsignal(signal.SIGTERM)
    release = threading.Event()
    context = make(release.wait)
    context.start()
    with pytest.raises(SignalException) as caught:
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.sigval is signal.SIGTERM
    release.set()
    context.close(caught.value.sigval)
    assert signal.getsignal(signal.SIGTERM) is before


def test_handlers_are_restored_even_if_close_fails():
    before = signal.getsignal(signal.SIGTERM)

    class Broken(ThreadContext):
        def _close(self, death_sig, timeout=30):
            raise RuntimeError("cannot close")

    context = make(kind=Broken)
    context.start()
    with pytest.raises(RuntimeError, match="cannot close"):
        context.close()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_start_on_another_thread_warns(caplog):
    context = make()
    starter = threading.Thread(target=context.start)
    starter.start()
    starter.join()
    assert "no signal handlers are installed" in caplog.text
    context.close()


def test_a_start_that_fails_is_cleaned_up():
    class Broken(ThreadContext):
        def _start(self):
            raise RuntimeError("no more threads")

    before = signal.getsignal(signal.SIGTERM)
    context = make(kind=Broken)
    with pytest.raises(RuntimeError, match="no more threads"):
        context.start()
    assert context.closed == [(signal.SIGTERM, 1.0)]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_during_the_start_leaves_the_workers_their_grace():
    class Interrupted(ThreadContext):
        def _start(self):
            os.kill(os.getpid(), signal.SIGTERM)

    context = make(kind=Interrupted)
    with pytest.raises(SignalException):
        context.start()
    assert context.closed == [(signal.SIGTERM, 30.0)]


def test_it_is_started_once():
    context = make()
    context.start()
    with pytest.raises(UsageError, match="already started"):
        context.start()
    context.close()


def test_every_public_name_loads():
    for name in plaunch.process.__all__:
        is_constant = isinstance(getattr(plaunch.process, name), (str, float))
        assert is_constant == name.isupper(), name
    assert set(plaunch.process.__all__) <= set(dir(plaunch.process))


# --- values by local rank -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({0: "hello", 1: "world"}, {0: ("hello",), 1: ("world",)}),
        ({0: (1, 2, 3)}, {0: (1, 2, 3)}),
        ({0: [1, [2]]}, {0: (1, [2])}),
        ({0: ()}, {0: ()}),
        ({0: b"raw"}, {0: (b"raw",)}),
        ({1: "b", 0: "a"}, {0: ("a",), 1: ("b",)}),
    ],
)
def test_arguments_become_tuples(given, expected):
    assert worker_args(given) == expected
    assert list(worker_args(given)) == sorted(given)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([0, 2], "what must name the local ranks 0 to 1 and no others; it lacks 1 and has 2"),
        ([1, 2], "what must name the local ranks 0 to 1 and no others; it lacks 0 and has 2"),
        ([0], "what must name the local ranks 0 to 1 and no others; it lacks 1"),
        ([0, 1, 7, -1], "what must name the local ranks 0 to 1 and no others; it has -1, 7"),
        ([0, "1"], "what must name the local ranks 0 to 1 and no others; it lacks 1 and has '1'"),
    ],
)
def test_a_wrong_set_of_ranks_is_spelt_out(ranks, message):
    with pytest.raises(RankMappingError) as error:
        validate_ranks("what", dict.fromkeys(ranks), 2)
    assert str(error.value) == message


def test_a_rank_mapping_error_has_the_types_of_torchrun_and_plaunch():
    with pytest.raises(RuntimeError) as error:
        validate_ranks("args", {}, 1)
    assert isinstance(error.value, PlaunchError)
    assert isinstance(error.value, UsageError)


def test_ranks_may_come_in_any_order():
    validate_ranks("args", {2: "", 0: "", 1: ""}, 3)


def test_no_worker_at_all_is_refused():
    with pytest.raises(RankMappingError, match="no worker to start"):
        worker_args({})


@pytest.mark.parametrize("given", [[("a",), ("b",)], "ab", None])
def test_arguments_that_are_no_mapping_are_refused(given):
    with pytest.raises(RankMappingError, match=r"args is .* must map each local rank"):
        worker_args(given)


def test_a_single_value_must_be_written_as_a_tuple():
    with pytest.raises(UsageError, match=r"args\[0\] is 5; write .* as a tuple, \(5,\)"):
        worker_args({0: 5})


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.5, "0.5"), (True, "True"), ("a b", "a b"), (b"x", "x"), (PurePath("/a"), "/a")],
)
def test_variables_become_strings(value, text):
    given = {0: {"NAME": value}}
    assert worker_envs(given, 1) == {0: {"NAME": text}}
    assert given == {0: {"NAME": value}}


def test_variables_are_a_copy():
    given = {0: {"A": "1"}}
    worker_envs(given, 1)[0]["B"] = "2"
    assert given == {0: {"A": "1"}}


def test_missing_variables_are_no_variables():
    assert worker_envs(None, 2) == {0: {}, 1: {}}


def test_variables_must_name_every_rank_once_they_are_given():
    with pytest.raises(RankMappingError, match=r"envs .* lacks 1"):
        worker_envs({0: {}}, 2)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"A": None}, r"envs\[0\]\['A'\] is None; leave the variable out or give a value"),
        ({"A=B": "1"}, r"envs\[0\] has the name 'A=B'"),
        ({"": "1"}, r"envs\[0\] has the name ''"),
        ({1: "1"}, r"envs\[0\] has the name 1"),
        ({"A": "x\0y"}, r"envs\[0\]\['A'\] has a NUL character"),
    ],
)
def test_what_no_environment_can_hold_is_refused(env, message):
    with pytest.raises(UsageError, match=message):
        worker_envs({0: env}, 1)
