"""Programs as workers: from start to result, with real processes."""

from __future__ import annotations

import functools
import gc
import logging
import math
import os
import select
import signal
import sys
import threading
import time
import warnings

import pytest
from plaunch.errors import (
    ProgramNotFoundError,
    SignalException,
    UnkillableWorkerError,
    UsageError,
    WorkerStartError,
)
from plaunch.process import ContextComponents, SubprocessContext, children, outcomes, supervised
from plaunch.process import context as context_module
from plaunch.process.late_exits import LateExits
from plaunch.process.proc import read_state
from plaunch.process.stopping.stop_sequence import StopSequence, WorkerSession
from plaunch.process.stopping.tree import ProcessTree
from plaunch.process.streams import LastOutput, OutputStats

from helpers.calls import Call
from helpers.logs_specs import NoFiles
from helpers.processes import is_gone, wait_for_end
from helpers.waiting import BOUND, wait_for_files, wait_until


@pytest.fixture(params=["pidfd", "looking"])
def kernel(request, monkeypatch):
    """Both ways to notice an end."""
    monkeypatch.setenv("PLAUNCH_NO_PIDFD", "1" if request.param == "looking" else "0")


@pytest.fixture
def contexts():
    opened = []
    yield opened
    for context in opened:
        context.close(signal.SIGKILL)


@pytest.fixture
def run(contexts):
    def run(*codes, start=True, kind=SubprocessContext, error_dir=None, **options):
        """One Python program per local rank, from its source code; error files if asked for."""
        args = {rank: ("-c", code) for rank, code in enumerate(codes)}
        envs = {rank: {} for rank in args}
        errors = {rank: str(error_dir / f"{rank}.json") for rank in args if error_dir is not None}
        specs = NoFiles(error_files=errors)
        options = {"handle_signals": False, **options}
        context = kind("trainer", sys.executable, args, envs, specs, **options)
        contexts.append(context)
        if start:
            context.start()
        return context

    return run


@pytest.fixture
def run_deaf(run, tmp_path):
    """A worker that ignores SIGTERM, and others that begin with it."""

    def run_deaf(*others, **options):
        context = run(f"{IGNORE}; {sleep_once_ready(tmp_path / '0')}", *others, **options)
        wait_for_files(tmp_path / "0")
        return context

    return run_deaf


def wait_for_ends(context, *ranks):
    """Let these workers end, without the context having looked."""
    for rank in ranks:
        wait_for_end(context.pids()[rank])


def touch(path):
    return f"open({str(path)!r}, 'w').close()"


SLEEP = "import time; time.sleep(600)"
IGNORE = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"


def sleep_once_ready(path):
    return f"{touch(path)}; {SLEEP}"


def wait_for(path):
    return f"import os, time\nwhile not os.path.exists({str(path)!r}): time.sleep(0.002)\n"


# --- results --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("kernel")
def test_all_succeed(run):
    context = run("", "", "")
    result = context.wait(BOUND)
    assert not result.is_failed()
    assert result.return_values == {0: None, 1: None, 2: None}
    assert result.failures == result.stopped == {}
    assert result.stdouts == result.stderrs == {0: "", 1: "", 2: ""}
    assert context.wait(0) is result


@pytest.mark.usefixtures("kernel")
def test_one_fails_and_the_others_are_stopped(run, tmp_path):
    ready = tmp_path / "ready"
    context = run(SLEEP, f"{wait_for(ready)}raise SystemExit(17)", sleep_once_ready(ready))
    result = context.wait(BOUND)
    assert result.is_failed()
    assert list(result.failures) == [1]
    failure = result.failures[1]
    assert (failure.local_rank, failure.exitcode) == (1, 17)
    assert failure.pid == context.pids()[1]
    assert result.stopped == {0: -signal.SIGTERM, 2: -signal.SIGTERM}
    assert result.return_values == {}


def test_a_signal_that_kills_a_worker_is_its_exit_code(run):
    result = run("import os; os.kill(os.getpid(), 11)").wait(BOUND)
    assert result.failures[0].exitcode == -11
    assert result.failures[0].signal_name() == "SIGSEGV"


def test_two_that_fail_at_the_same_time_are_both_failures(run):
    context = run("raise SystemExit(3)", SLEEP, "raise SystemExit(5)")
    wait_for_ends(context, 0, 2)
    result = context.wait(BOUND)
    assert {rank: failure.exitcode for rank, failure in result.failures.items()} == {0: 3, 2: 5}
    assert list(result.stopped) == [1]


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the order is the kernel's")
def test_failures_are_in_the_order_in_which_they_happened(run, tmp_path):
    gates = [tmp_path / str(rank) for rank in range(3)]
    context = run(*(f"{wait_for(gate)}raise SystemExit(9)" for gate in gates))
    for rank in (2, 0, 1):
        gates[rank].touch()
        wait_for_ends(context, rank)
    result = context.wait(BOUND)
    assert list(result.failures) == [2, 0, 1]
    times = [failure.timestamp for failure in result.failures.values()]
    assert times == sorted(times)


def test_an_early_success_is_no_event(run):
    context = run("", SLEEP)
    wait_for_ends(context, 0)
    assert context.wait(0) is None
    assert [seen.local_rank for seen in context.take_exits()] == [0]
    assert context.wait(0.02) is None


def test_a_worker_that_has_reported_its_exception_failed_by_itself(run, tmp_path):
    """Rank 0 fails first but its interpreter takes its time; our signal hastens what has begun."""
    error_file = tmp_path / "0.json"
    report = '{"message": {"message": "ValueError: first", "extraInfo": {"timestamp": "5"}}}'
    context = run(
        f"open({str(error_file)!r}, 'w').write({report!r}); {SLEEP}",
        f"{wait_for(error_file)}time.sleep(0.01); raise SystemExit(3)",
        SLEEP,
        error_dir=tmp_path,
    )
    wait_for_ends(context, 1)
    wait_until(lambda: error_file.read_text() == report, "the report is complete")
    result = context.wait(BOUND)
    assert {rank: failure.exitcode for rank, failure in result.failures.items()} == {0: 1, 1: 3}
    assert "ValueError: first" in str(result.failures[0].message)
    assert result.stopped == {2: -signal.SIGTERM}
    assert min(result.failures, key=lambda rank: result.failures[rank].timestamp) == 0


def test_the_error_file_of_an_earlier_worker_is_ignored(run, tmp_path):
    (tmp_path / "0.json").write_text('{"message": "of the start before"}')
    context = run(SLEEP, "raise SystemExit(1)", error_dir=tmp_path)
    result = context.wait(BOUND)
    assert list(result.failures) == [1]
    assert result.stopped == {0: -signal.SIGTERM}


def test_a_failure_has_the_last_lines_of_its_stderr(run):
    code = "import sys\nfor n in range(50): print('line', n, file=sys.stderr)\nsys.exit(1)"
    result = run(code).wait(BOUND)
    assert result.failures[0].last_lines[-2:] == ["line 48", "line 49"]


def test_the_capture_of_stderr_can_be_switched_off(run, monkeypatch):
    monkeypatch.setenv("PLAUNCH_CAPTURE_STDERR", "0")
    result = run("raise SystemExit('not seen')").wait(BOUND)
    assert result.failures[0].last_lines == []


# --- waiting --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("kernel")
def test_waiting_ends_with_the_worker_and_not_with_the_period(run):
    context = run("import time; time.sleep(0.05)")
    began = time.monotonic()
    assert context.wait(-1, period=600) is not None
    assert time.monotonic() - began < BOUND


@pytest.mark.usefixtures("kernel")
def test_waiting_returns_none_when_its_time_is_over(run):
    context = run(SLEEP)
    assert context.wait(0) is None
    began = time.monotonic()
    assert context.wait(0.05, period=600) is None
    assert 0.04 < time.monotonic() - began < BOUND


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfds")
def test_exit_fds_wake_another_loop(run, tmp_path):
    gate = tmp_path / "gate"
    context = run(wait_for(gate), wait_for(gate))
    [fd] = context.exit_fds()
    assert select.select([fd], [], [], 0)[0] == []
    gate.touch()
    deadline = time.monotonic() + BOUND
    while (result := context.wait(0)) is None:
        assert select.select([fd], [], [], deadline - time.monotonic())[0]
        assert context.exit_fds() in ([fd], [])
    assert result.return_values == {0: None, 1: None}
    assert context.exit_fds() == []


def test_without_pidfds_there_are_no_exit_fds(run, monkeypatch):
    monkeypatch.setenv("PLAUNCH_NO_PIDFD", "1")
    assert run(SLEEP).exit_fds() is None


def test_exits_are_returned_once_with_whether_the_worker_was_stopped(run):
    context = run("raise SystemExit(4)", SLEEP)
    before = time.time()
    context.wait(BOUND)
    first, second = context.take_exits()
    assert (first.local_rank, first.exitcode, first.stopped) == (0, 4, False)
    assert (second.local_rank, second.exitcode, second.stopped) == (1, -signal.SIGTERM, True)
    assert before <= first.timestamp <= second.timestamp <= time.time()
    assert first.pid == context.pids()[0]
    assert context.take_exits() == []


# --- stopping -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("death_sig", [None, signal.SIGUSR1, signal.SIGKILL])
def test_close_stops_all_workers_with_the_requested_signal(run, tmp_path, death_sig):
    context = run(sleep_once_ready(tmp_path / "0"), sleep_once_ready(tmp_path / "1"))
    wait_for_files(tmp_path / "0", tmp_path / "1")
    context.close(death_sig)
    code = -(death_sig or signal.SIGTERM)
    assert [(seen.exitcode, seen.stopped) for seen in context.take_exits()] == [(code, True)] * 2


@pytest.mark.usefixtures("kernel")
def test_workers_that_are_closed_have_failed(run, tmp_path):
    context = run(sleep_once_ready(tmp_path / "0"), sleep_once_ready(tmp_path / "1"))
    wait_for_files(tmp_path / "0", tmp_path / "1")
    context.close()
    result = context.wait(0)
    assert result.is_failed()
    assert {rank: failure.exitcode for rank, failure in result.failures.items()} == {0: -15, 1: -15}
    assert (result.stopped, result.return_values) == ({}, {})


def test_a_closed_worker_that_ends_with_exit_code_0_has_not_failed(run, tmp_path):
    saves = f"import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); {SLEEP}"
    context = run(saves.replace(SLEEP, sleep_once_ready(tmp_path / "0")))
    wait_for_files(tmp_path / "0")
    context.close()
    result = context.wait(0)
    assert not result.is_failed()
    assert result.stopped == {0: 0}


@pytest.mark.usefixtures("kernel")
def test_another_thread_may_close_what_is_waited_for(run, tmp_path):
    names = [tmp_path / str(rank) for rank in range(4)]
    context = run(*map(sleep_once_ready, names))
    wait_for_files(*names)
    waiting = Call(context.wait)
    context.close()
    assert sorted(waiting.get().failures) == [0, 1, 2, 3]


@pytest.mark.usefixtures("kernel")
def test_a_worker_that_ignores_the_signal_is_killed_after_the_timeout(run_deaf):
    context = run_deaf(SLEEP)
    began = time.monotonic()
    context.close(timeout=0.2)
    assert 0.19 < time.monotonic() - began < BOUND
    assert {seen.local_rank: seen.exitcode for seen in context.take_exits()} == {0: -9, 1: -15}


def test_a_failure_of_another_gives_the_same_grace(run_deaf, tmp_path):
    context = run_deaf(f"{wait_for(tmp_path / '0')}raise SystemExit(1)", shutdown_timeout=0.2)
    began = time.monotonic()
    result = context.wait(BOUND)
    assert 0.19 < time.monotonic() - began < BOUND
    assert list(result.failures) == [1]
    assert result.stopped == {0: -signal.SIGKILL}


def test_a_worker_may_use_its_grace(run, tmp_path):
    """It writes a checkpoint with the help of a child that no signal has reached."""
    saved = tmp_path / "saved"
    code = f"""
import os, signal, subprocess, sys
helper = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def stop(*_):
    out, _ = helper.communicate(b"checkpoint")
    open({str(saved)!r}, "wb").write(out)
    sys.exit(0 if helper.returncode == 0 else 9)
signal.signal(signal.SIGTERM, stop)
{touch(tmp_path / "ready")}
while True: signal.pause()
"""
    context = run(code)
    wait_for_files(tmp_path / "ready")
    context.close()
    assert saved.read_bytes() == b"checkpoint"
    assert [seen.exitcode for seen in context.take_exits()] == [0]


def test_a_suspended_worker_gets_the_signal(run, tmp_path):
    handle = "import sys, signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))"
    code = f"{handle}; {sleep_once_ready(tmp_path / 'ready')}"
    context = run(code)
    wait_for_files(tmp_path / "ready")
    pid = context.pids()[0]
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: read_state(pid) == "T", "it is suspended")
    context.close()
    assert [seen.exitcode for seen in context.take_exits()] == [7]


def test_a_worker_that_ended_before_close_was_not_stopped(run):
    context = run("raise SystemExit(5)", SLEEP)
    wait_for_ends(context, 0)
    context.close()
    assert {seen.local_rank: seen.stopped for seen in context.take_exits()} == {0: False, 1: True}
    assert list(context.wait(0).failures) == [0]


def test_close_may_be_called_again_and_before_the_start(run):
    context = run(SLEEP, start=False)
    context.close()
    context.start()
    context.close()
    context.close()
    assert [seen.exitcode for seen in context.take_exits()] == [-signal.SIGTERM]


def test_escalating_skips_the_grace_in_progress(run_deaf, caplog):
    context = run_deaf()

    def escalate():
        # From here on there is nothing to do for the rest of the grace.
        wait_until(lambda: "waiting for local rank 0" in caplog.text, "the grace has begun")
        context.escalate()

    waker = threading.Thread(target=escalate)
    waker.start()
    context.close(timeout=600)
    waker.join()
    assert [seen.exitcode for seen in context.take_exits()] == [-signal.SIGKILL]


def test_escalating_before_the_stop_is_remembered(run_deaf):
    context = run_deaf()
    context.escalate()
    context.close(timeout=600)
    assert [seen.exitcode for seen in context.take_exits()] == [-signal.SIGKILL]


def test_an_interrupted_stop_leaves_no_process(run_deaf):
    context = run_deaf()
    pid = context.pids()[0]

    def interrupt(signum, frame):
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            context.close(timeout=600)
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert is_gone(pid)
    assert [seen.exitcode for seen in context.take_exits()] == [-signal.SIGKILL]


class InterruptAtLine(BaseException):
    pass


def close_interrupted(context, number):
    """Close, with an interrupt at the given one of the lines that are executed; None if after."""
    lines = set()
    files = {module.__file__ for module in (context_module, supervised, children, outcomes)}
    at = None

    def trace(frame, event, arg):
        nonlocal at
        if frame.f_code.co_filename not in files:
            return None
        if event == "line" and at is None:
            lines.add((frame.f_code, frame.f_lineno))
            if len(lines) > number:
                at = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise InterruptAtLine
        return trace

    sys.settrace(trace)
    try:
        context.close(timeout=0.01)
    except InterruptAtLine:
        assert at is not None
    finally:
        sys.settrace(None)
    return at


@pytest.mark.slow
def test_an_interrupt_at_any_line_of_close_leaves_no_process(contexts):
    """The first line is before the context can notice an interrupt."""
    number, at = 1, ""
    while at is not None:
        args, specs = {0: ("100",)}, NoFiles(error_files={})
        context = SubprocessContext("job", "sleep", args, {0: {}}, specs, handle_signals=False)
        contexts.append(context)
        context.start()
        (pid,) = context.pids().values()
        at = close_interrupted(context, number)
        assert is_gone(pid), at
        number += 1
    del context
    contexts.clear()
    with warnings.catch_warnings():  # Popen was not always told of the end
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def test_an_unkillable_worker_is_named_and_not_waited_for(run, caplog, monkeypatch):
    """Signals reach nobody, and the wait after SIGKILL is short."""
    monkeypatch.setattr(WorkerSession, "ask_to_end", lambda self, signum: False)
    monkeypatch.setattr(WorkerSession, "kill", lambda self: set())
    impatient = functools.partial(StopSequence, kill_wait=0.05)
    monkeypatch.setattr(supervised, "StopSequence", impatient)
    context = run("raise SystemExit(3)", SLEEP, shutdown_timeout=0.05)
    pid = context.pids()[1]
    with pytest.raises(UnkillableWorkerError) as caught:
        context.wait(BOUND)
    assert f"local rank 1: pid {pid} (state S" in str(caught.value)
    assert "because local rank 0 " in str(caught.value)
    assert "exit code 3" in str(caught.value)
    assert caught.value.exit_code == 114
    assert "needs a restart" not in str(caught.value), "it is not in the kernel"
    errors = [text for _, level, text in caplog.record_tuples if level == logging.ERROR]
    assert errors == [str(caught.value)]
    result = context.wait(0)
    assert list(result.failures) == [0]
    context.close()
    os.kill(pid, signal.SIGKILL)
    worker = context._outcomes.workers[1]
    wait_until(lambda: worker.poll() is not None, "its end")
    worker.reap()


def test_all_ranks_get_sigkill_before_orphans_are_searched(run, tmp_path, monkeypatch):
    """Looking takes a while on a host with many processes."""
    code = (
        "import subprocess; "
        "subprocess.Popen(['sleep', '600'], start_new_session=True, stderr=subprocess.DEVNULL); "
    )
    context = run(*[code + sleep_once_ready(tmp_path / str(rank)) for rank in (0, 1)])
    wait_for_files(tmp_path / "0", tmp_path / "1")
    done = []
    killpg, find_new = os.killpg, ProcessTree.find_new

    def kill(pid, signum):
        done.append(pid)
        killpg(pid, signum)

    def find(tree):
        done.append("find")
        return find_new(tree)

    monkeypatch.setattr(os, "killpg", kill)
    monkeypatch.setattr(ProcessTree, "find_new", find)
    context.close(signal.SIGKILL)
    assert set(done[:4]) > set(context.pids().values())
    assert done[4:6] == ["find", "find"]


def test_no_processes_are_searched_if_the_workers_started_none(run, tmp_path, monkeypatch):
    context = run(*[sleep_once_ready(tmp_path / str(rank)) for rank in (0, 1)])
    wait_for_files(tmp_path / "0", tmp_path / "1")
    stop = context.begin_stop(signal.SIGKILL, 0)
    searches = []
    monkeypatch.setattr(ProcessTree, "find_new", lambda tree: searches.append(1) or ({}, False))
    stop.step()
    assert searches == []
    monkeypatch.undo()
    context.close()


# --- signals --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("kernel")
def test_a_signal_raises_out_of_wait_and_close_restores_the_handlers(run):
    before = signal.getsignal(signal.SIGTERM)
    context = run(SLEEP, handle_signals=True)
    assert signal.getsignal(signal.SIGTERM) is not before
    alarm = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))
    alarm.start()
    with pytest.raises(SignalException) as caught:
        context.wait(BOUND)
    alarm.join()
    context.close(caught.value.sigval)
    assert signal.getsignal(signal.SIGTERM) is before
    assert [seen.exitcode for seen in context.take_exits()] == [-signal.SIGTERM]


def test_the_second_signal_skips_the_grace(run_deaf):
    context = run_deaf(handle_signals=True)
    with pytest.raises(SignalException):
        os.kill(os.getpid(), signal.SIGTERM)
    alarm = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    alarm.start()
    context.close(signal.SIGTERM, timeout=600)
    alarm.join()
    assert [seen.exitcode for seen in context.take_exits()] == [-signal.SIGKILL]


def test_a_signal_during_the_stop_of_the_others_is_raised_after_it(run_deaf, tmp_path):
    fail = f"{wait_for(tmp_path / '0')}raise SystemExit(1)"
    context = run_deaf(fail, handle_signals=True, shutdown_timeout=0.5)
    wait_for_ends(context, 1)
    alarm = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM))
    alarm.start()
    with pytest.raises(SignalException):
        context.wait(BOUND)
    alarm.join()
    result = context.wait(0)
    assert list(result.failures) == [1]
    assert result.stopped == {0: -signal.SIGKILL}


def test_handlers_are_back_after_the_result(run):
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT)}
    run("", handle_signals=True).wait(BOUND)
    assert {signum: signal.getsignal(signum) for signum in before} == before


def test_an_agent_owns_its_signals(run):
    before = signal.getsignal(signal.SIGTERM)
    context = run(SLEEP, handle_signals=False)
    assert signal.getsignal(signal.SIGTERM) is before
    context.close()


@pytest.fixture
def ignored_sigchld():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def test_an_ignored_sigchld_does_not_lose_exit_codes(run, ignored_sigchld, caplog):
    result = run("raise SystemExit(6)").wait(BOUND)
    assert result.failures[0].exitcode == 6
    assert "SIGCHLD was ignored" in caplog.text


def test_an_ignored_sigchld_is_refused_where_it_cannot_be_changed(run, ignored_sigchld):
    start = Call(run, "raise SystemExit(6)")
    assert start.ended()
    assert isinstance(start.error, WorkerStartError)
    assert "SIGCHLD is ignored" in str(start.error)


# --- starting -------------------------------------------------------------------------------------


def test_a_worker_that_cannot_be_started_stops_those_before_it(contexts):
    envs = {0: {}, 1: {"PATH": "/nowhere"}}
    context = SubprocessContext("s", "sleep", {0: "600", 1: "600"}, envs, NoFiles())
    contexts.append(context)
    with pytest.raises(ProgramNotFoundError, match="'sleep' for local rank 1"):
        context.start()
    assert [seen.exitcode for seen in context.take_exits()] == [-signal.SIGTERM]
    assert is_gone(context.pids()[0])


def test_a_start_that_fails_does_not_wait_for_workers_that_ignore_the_signal(run, tmp_path):
    """Nobody can shorten the grace then: an agent listens to signals again after the start."""

    class SecondFails(SubprocessContext):
        def _start_worker(self, local_rank, stdout, stderr):
            if local_rank == 1:
                wait_for_files(tmp_path / "deaf")
                raise WorkerStartError("the device is gone")
            return super()._start_worker(local_rank, stdout, stderr)

    code = f"{IGNORE}; {sleep_once_ready(tmp_path / 'deaf')}"
    context = run(code, code, kind=SecondFails, start=False, shutdown_timeout=math.inf)
    with pytest.raises(WorkerStartError, match="the device is gone"):
        context.start()
    assert [seen.exitcode for seen in context.take_exits()] == [-signal.SIGKILL]
    assert is_gone(context.pids()[0])


def test_a_context_is_started_once_and_then_waited_for(run):
    context = run(SLEEP, start=False)
    with pytest.raises(UsageError, match="were not started"):
        context.wait(0)
    context.start()
    with pytest.raises(UsageError, match="already started"):
        context.start()
    assert context.wait(0) is None, "the workers were harmed"


def test_a_negative_timeout_is_refused(run):
    with pytest.raises(UsageError, match="shutdown_timeout is -1"):
        run(SLEEP, shutdown_timeout=-1)


def test_nothing_stays_behind_in_the_launcher(run):
    """No descriptor, no thread, no zombie."""
    run("").wait(BOUND)  # what is loaded on first use is loaded
    before = set(os.listdir("/proc/self/fd"))
    threads = threading.active_count()
    for codes in (("", ""), ("raise SystemExit(1)", SLEEP), (SLEEP,)):
        context = run(*codes)
        if codes == (SLEEP,):
            context.close()
        else:
            context.wait(BOUND)
        assert all(read_state(pid) == "" for pid in context.pids().values())
    wait_until(lambda: threading.active_count() == threads, "the threads have ended")
    assert set(os.listdir("/proc/self/fd")) == before


def test_many_workers(run):
    result = run(*["import os; os._exit(0)"] * 40).wait(BOUND)
    assert len(result.return_values) == 40


def test_streams_that_cannot_say_their_last_lines_do_not_change_the_result(caplog):
    class Specs(NoFiles):
        def open_streams(self, dest, nprocs, **options):
            streams = super().open_streams(dest, nprocs, **options)
            streams.last_lines = streams.is_shown = lambda local_rank: {}[local_rank]
            return streams

    context = SubprocessContext("odd", "sh", {0: ("-c", "exit 3")}, {0: {}}, Specs())
    context.start()
    assert context.wait().failures[0].exitcode == 3
    assert "WorkerStreams failed in last_lines: KeyError: 0" in caplog.text


def test_a_look_at_a_late_exit_is_awaited_at_the_end(run, monkeypatch):
    closed = []

    def close(late_exits):
        closed.append(late_exits)

    monkeypatch.setattr(LateExits, "close", close)
    context = run("pass")
    assert not context.wait(BOUND).is_failed()
    assert closed == [context.late_exits]


@pytest.mark.parametrize("has_stats", [False, True])
def test_a_caller_with_counts_of_the_output_shows_the_rest_itself(run, monkeypatch, has_stats):
    shown = []

    class Output(LastOutput):
        def __init__(self, streams, wake, *, shows_rest):
            shown.append(shows_rest)
            super().__init__(streams, wake, shows_rest=shows_rest)

    monkeypatch.setattr(supervised, "LastOutput", Output)
    components = ContextComponents(stats=OutputStats() if has_stats else None)
    assert not run("pass", components=components).wait(BOUND).is_failed()
    assert shown == [not has_stats]
