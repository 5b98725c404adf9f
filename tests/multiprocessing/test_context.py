"""Functions as workers: from start to return value, with real processes and every start method."""

from __future__ import annotations

import errno
import functools
import importlib
import logging
import multiprocessing.forkserver
import os
import signal
import threading
import time

import pytest
from plaunch.errors import RankMappingError, UsageError, WorkerStartError
from plaunch.process import LogsDest, LogsSpecs, Std, start_processes
from plaunch_multiprocessing import MultiprocessContext
from plaunch_multiprocessing.return_values import ReturnValues

from helpers.processes import is_gone
from helpers.programs import run_python
from helpers.waiting import wait_for_files, wait_until

BOUND = 60.0  # seconds; enough for everything here

pytestmark = pytest.mark.filterwarnings(
    # Python 3.12 on; the threads are those of the test runner's own time-out.
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)


@pytest.fixture
def run(start, start_method):
    """Like `start`, with each start method."""
    return functools.partial(start, start_method=start_method)


def only_failure(context):
    result = context.wait(BOUND)
    assert result.is_failed()
    assert result.return_values == {}
    [failure] = result.failures.values()
    return failure


# --- return values --------------------------------------------------------------------------------


def test_each_worker_returns_its_own_value(run, functions):
    result = run(functions.add, (1, 2, 3), (4, 5, 6), ()).wait(BOUND)
    assert result.return_values == {0: 6, 1: 15, 2: 0}
    assert not result.is_failed()


def test_without_pidfds(run, functions, monkeypatch):
    monkeypatch.setenv("PLAUNCH_NO_PIDFD", "1")
    result = run(functions.add, (1, 2), (3, 4)).wait(BOUND)
    assert result.return_values == {0: 3, 1: 7}


@pytest.mark.parametrize("value", [None, {"a": [1, (2, b"x")]}, "ä\0", 10**100])
def test_any_picklable_value_arrives(start, functions, value):
    assert start(functions.give, (value,)).wait(BOUND).return_values == {0: value}


def test_large_values_arrive_with_rare_polling(start, functions):
    context = start(functions.megabytes, (100,))
    deadline = time.monotonic() + BOUND
    looks = 0
    while (result := context.wait(0)) is None:
        assert time.monotonic() < deadline
        looks += 1
        time.sleep(0.02)
    assert len(result.return_values[0]) == 100 << 20
    assert looks < 500, "a pipe's worth at a time"


def test_data_sent_just_before_the_end_is_not_lost(start, functions, monkeypatch):
    monkeypatch.setattr(ReturnValues, "receive", lambda self: None)
    assert start(functions.give, ("late",)).wait(BOUND).return_values == {0: "late"}


def test_output_and_value_do_not_wait_for_each_other(start, functions, tmp_path):
    chaos = importlib.import_module("chaos_functions")
    args, envs = ("write_then", 64, "give", 64), {0: {"LOCAL_RANK": 0}}
    context = start(chaos.behave, args, envs=envs, log_dir=tmp_path, redirects=Std.OUT)
    result = context.wait(BOUND)
    assert result.return_values == {0: 64}
    assert os.path.getsize(result.stdouts[0]) == 64 << 20


def test_leaving_with_success_returns_none(run, functions):
    result = run(functions.exit_with, (0,), (None,), (False,)).wait(BOUND)
    assert result.return_values == {0: None, 1: None, 2: None}


# --- failures -------------------------------------------------------------------------------------


def test_an_exception_is_reported_with_its_traceback(run, functions):
    failure = only_failure(run(functions.fail, ("no data",)))
    assert failure.exitcode == 1
    assert failure.message["message"] == "ValueError: no data"
    assert "in fail\n" in failure.message["extraInfo"]["py_callstack"]
    assert failure.last_lines[-1] == "ValueError: no data"


def test_an_exception_without_error_files_is_in_the_last_lines(start, functions):
    failure = only_failure(start(functions.fail, ("no data",), log_dir=os.devnull))
    assert failure.exitcode == 1
    assert failure.last_lines[-1] == "ValueError: no data"


def test_an_interrupt_ends_a_worker_quietly(run, functions):
    failure = only_failure(run(functions.interrupted))
    assert failure.exitcode == 128 + signal.SIGINT
    assert not any("KeyboardInterrupt" in line for line in failure.last_lines)


def test_a_failure_stops_the_others(run, functions, tmp_path):
    env = {"READY_DIR": tmp_path, "NPROCS": 3}
    envs = {rank: {**env, "LOCAL_RANK": rank} for rank in range(3)}
    context = run(functions.sleep_or_fail, (1, 23), (1, 23), (1, 23), envs=envs)
    result = context.wait(BOUND)
    assert {rank: failure.exitcode for rank, failure in result.failures.items()} == {1: 23}
    assert result.stopped == {0: -signal.SIGTERM, 2: -signal.SIGTERM}
    assert all(map(is_gone, context.pids().values()))


def test_workers_of_a_dead_fork_server_are_killed(start, functions, tmp_path, caplog):
    multiprocessing.forkserver._forkserver._stop()
    ready = tmp_path / "ready"
    context = start(functions.ready_and_sleep, (ready,), start_method="forkserver")
    wait_for_files(ready)
    with caplog.at_level(logging.WARNING, "plaunch"):
        os.kill(multiprocessing.forkserver._forkserver._forkserver_pid, signal.SIGKILL)
        failure = only_failure(context)
    assert failure.exitcode == 255
    assert is_gone(context.pids()[0])
    assert "fork server has ended" in caplog.text


# --- stopping -------------------------------------------------------------------------------------


def test_a_worker_that_ignores_the_signal_is_killed(run, functions, tmp_path):
    context = run(functions.ignore_sigterm, (tmp_path / "ready",))
    wait_for_files(tmp_path / "ready")
    context.close(timeout=0.1)
    assert [seen.exitcode for seen in context.take_exits()] == [-signal.SIGKILL]
    assert is_gone(context.pids()[0])


def test_close_fails_the_workers(run, functions, tmp_path):
    context = run(functions.ready_and_sleep, (tmp_path / "ready",))
    wait_for_files(tmp_path / "ready")
    context.close()
    assert only_failure(context).exitcode == -signal.SIGTERM


def test_a_worker_may_use_its_grace(run, functions, tmp_path):
    context = run(functions.wait_for_sigterm, (tmp_path / "ready",))
    wait_for_files(tmp_path / "ready")
    context.close()
    assert [seen.exitcode for seen in context.take_exits()] == [3]
    assert (tmp_path / "ready.checkpoint").exists()


def test_a_spawned_worker_leads_its_session_from_the_start(start, functions, tmp_path):
    context = start(functions.ready_and_sleep, (tmp_path / "ready",), start_method="spawn")
    pid = context.pids()[0]
    assert os.getsid(pid) == os.getpgid(pid) == pid


def test_a_worker_that_has_only_just_been_started_is_stopped(run, functions, tmp_path):
    for _ in range(5):
        context = run(functions.ready_and_sleep, (tmp_path / "0",), (tmp_path / "1",))
        context.close()
        assert {seen.exitcode for seen in context.take_exits()} == {-signal.SIGTERM}


def test_an_orphan_is_killed_and_delays_nothing(run, functions, tmp_path):
    path = tmp_path / "child"
    context = run(functions.leave_a_child, (path, "done"))
    began = time.monotonic()
    result = context.wait(BOUND)
    assert result.return_values == {0: "done"}
    assert is_gone(int(path.read_text()))
    assert time.monotonic() - began < 15, "it took the grace that is only for workers"


def test_a_child_that_holds_the_result_pipe_delays_nothing(run, functions):
    began = time.monotonic()
    value, child = (
        run(functions.fork_a_child_that_holds_the_result_pipe, (7,)).wait(BOUND).return_values[0]
    )
    assert value == 7
    assert is_gone(child)
    assert time.monotonic() - began < 15


# --- the worker's environment ---------------------------------------------------------------------


def test_a_worker_leads_its_session_and_is_no_daemon(run, functions, monkeypatch, tmp_path):
    monkeypatch.setenv("LAUNCHER_TEST", "kept")
    monkeypatch.chdir(tmp_path)
    context = run(functions.facts, envs={0: {"WORKER_TEST": 5}})
    facts = context.wait(BOUND).return_values[0]
    assert facts["pid"] == facts["session"] == facts["group"] == context.pids()[0]
    assert facts["env"] == "5"
    assert facts["launcher_env"] == "kept"
    assert facts["daemon"] is False
    assert facts["cwd"] == str(tmp_path)
    assert "WORKER_TEST" not in os.environ


def test_the_environment_is_that_of_this_start(run, functions, monkeypatch):
    """Also with a fork server, which was started by the first test."""
    multiprocessing.forkserver._forkserver._stop()
    monkeypatch.setenv("REMOVED_TEST", "yes")
    assert run(functions.facts).wait(BOUND).return_values[0]["removed_env"] == "yes"
    monkeypatch.delenv("REMOVED_TEST")
    assert run(functions.facts).wait(BOUND).return_values[0]["removed_env"] is None


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_the_environment_is_set_before_the_functions_module_is_imported(start, functions, method):
    context = start(functions.facts, envs={0: {"WORKER_TEST": "early"}}, start_method=method)
    assert context.wait(BOUND).return_values[0]["env_at_import"] == "early"


def test_signal_handlers_are_those_of_a_new_program(run, functions):
    # A fork server started by a test that ignores Ctrl-C makes all its workers ignore it.
    multiprocessing.forkserver._forkserver._stop()
    previous = {
        signum: signal.signal(signum, handler)
        for signum, handler in (
            (signal.SIGTERM, lambda *_: None),
            (signal.SIGINT, lambda *_: None),
            (signal.SIGUSR2, signal.SIG_IGN),
        )
    }
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    wakeup = signal.set_wakeup_fd(writer)
    try:
        facts = run(functions.signal_facts).wait(BOUND).return_values[0]
    finally:
        signal.set_wakeup_fd(wakeup)
        os.close(reader)
        os.close(writer)
        for signum, handler in previous.items():
            signal.signal(signum, handler)
    assert facts == {
        "sigterm": True,
        "sigint": True,
        "sigusr2_ignored": True,
        "blocked": [],
        "wakeup_fd": -1,
    }


def test_an_early_signal_does_not_run_the_launchers_handler(start, functions):
    """A forked worker has the launcher's handlers until it resets them."""
    launcher, is_armed, handled = os.getpid(), [True], []

    def stop_the_worker():
        if is_armed and os.getpid() != launcher:
            os.kill(os.getpid(), signal.SIGTERM)

    os.register_at_fork(after_in_child=stop_the_worker)  # cannot be unregistered
    previous = signal.signal(signal.SIGTERM, lambda signum, frame: handled.append(signum))
    try:
        failure = only_failure(start(functions.give, ("the signal was lost",)))
    finally:
        is_armed.clear()
        signal.signal(signal.SIGTERM, previous)
    assert failure.exitcode == -signal.SIGTERM
    assert handled == []


def test_the_launchers_own_mask_is_restored(start, functions):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        facts = start(functions.signal_facts).wait(BOUND).return_values[0]
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before | {signal.SIGUSR1}
        assert facts["blocked"] == sorted(map(int, before | {signal.SIGUSR1}))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


PRINTING = """
import sys
sys.path.insert(0, {folder!r})
import worker_functions
from plaunch.process import Std, start_processes

if __name__ == "__main__":
    context = start_processes(
        "t",
        worker_functions.print_from_c,
        {{0: "from C"}},
        start_method={method!r},
        log_dir={log_dir!r},
        redirects=Std.OUT,
    )
    print(repr(open(context.wait(60).stdouts[0]).read()))
"""


def test_streams_are_redirected_for_python_and_c(tmp_path, monkeypatch, start_method):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # it also affects C's streams
    assert output_of(tmp_path, PRINTING, start_method) == "'from Python\\nfrom C\\n'\n"


def test_a_redirected_stdout_is_line_buffered(run, functions, tmp_path):
    context = run(functions.facts, log_dir=tmp_path, redirects=Std.ALL)
    assert context.wait(BOUND).return_values[0]["line_buffered"] is True


def test_streams_that_are_not_redirected_are_the_launchers(run, functions, capfd):
    envs = {0: {"LOCAL_RANK": 0}}
    run(functions.trainer, (1, 2, 3), envs=envs).wait(BOUND)
    out, err = capfd.readouterr()
    assert out == "stdout of 0: 1 2 3\n"
    assert err == "stderr of 0: 1 2 3\n"


def test_a_worker_has_none_of_the_launchers_descriptors(run, functions, tmp_path, start_method):
    options = {"log_dir": tmp_path, "redirects": Std.ALL, "tee": Std.ERR}
    context = run(functions.open_files, (), (), (), **options)
    values = context.wait(BOUND).return_values
    pidfds = [target for value in values.values() for target in value.values() if "pidfd" in target]
    logs = [target for value in values.values() for target in value.values() if ".log" in target]
    assert pidfds == []
    if start_method != "fork":  # a forked worker inherits the files of the launcher's other code
        assert logs == []
        assert len(values[2]) == len(values[0])


def test_a_worker_may_start_processes_itself(run, functions):
    assert run(functions.start_processes_itself, (2,)).wait(BOUND).return_values == {0: [1, 2, 3]}


def test_a_queue_may_be_passed(run, functions, start_method):
    queue = multiprocessing.get_context(start_method).SimpleQueue()
    run(functions.use_queue, (queue, "through the queue")).wait(BOUND)
    assert queue.get() == "through the queue"
    queue.close()


def test_stdin_is_empty(run, functions):
    """As in multiprocessing and torchrun."""
    assert run(functions.read_stdin).wait(BOUND).return_values == {0: ""}


# --- starting -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_function_that_cannot_be_pickled_is_a_usage_error(functions, method):
    with pytest.raises(UsageError, match=r"<lambda>' and its arguments cannot be sent"):
        start_processes("t", lambda: None, {0: ()}, start_method=method, handle_signals=False)


def test_arguments_that_cannot_be_pickled_are_a_usage_error(functions):
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(UsageError, match="or use the start method 'fork'"):
        start_processes("t", functions.give, {0: (threading.Lock(),)}, handle_signals=False)
    assert set(os.listdir("/proc/self/fd")) == before


def test_fork_accepts_any_function(start):
    lock = threading.Lock()
    assert start(lambda: [lock.locked()]).wait(BOUND).return_values == {0: [False]}


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_function_whose_module_the_worker_cannot_import(tmp_path, monkeypatch, start, method):
    (tmp_path / "here_only.py").write_text(
        "import os\nif 'IN_WORKER' in os.environ: raise ImportError('not in a worker')\n"
        "def work(): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("here_only")
    failure = only_failure(start(module.work, envs={0: {"IN_WORKER": 1}}, start_method=method))
    assert failure.exitcode == 1
    assert failure.message["message"] == "ImportError: not in a worker"


def test_an_unknown_start_method_is_a_usage_error(functions):
    with pytest.raises(UsageError, match=r"'thread' is unknown\. Choices: fork, forkserver"):
        start_processes("t", functions.add, {0: ()}, start_method="thread")


def test_an_entrypoint_that_is_not_callable_is_a_usage_error():
    with pytest.raises(UsageError, match="give a function or the path of a program"):
        start_processes("t", 5, {0: ()})


def test_an_error_of_the_system_is_raised(functions, monkeypatch):
    def refuse():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    with pytest.raises(
        WorkerStartError, match=r"cannot start local rank 0 of 't': .* no more processes"
    ):
        start_processes("t", functions.add, {0: ()}, start_method="fork", handle_signals=False)


@pytest.mark.parametrize(
    ("name", "who"), [("ResultPipe", "local rank 0"), ("SiblingGate", "the workers")]
)
def test_no_descriptor_for_what_workers_return(functions, monkeypatch, name, who):
    def refuse():
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(f"{ReturnValues.__module__}.{name}", refuse)
    with pytest.raises(WorkerStartError, match=f"cannot start {who} of 'w': too many open files"):
        start_processes("w", functions.add, {0: (1,), 1: (2,)}, start_method="fork")


def test_the_class_has_torchruns_arguments(functions):
    """Start method and logs spec have torchrun's positions."""

    class Inherit(LogsSpecs):
        root_log_dir = None

        def reify(self, envs):
            return LogsDest(stdouts={0: ""}, stderrs={0: ""})

    args, envs = {0: (1, 2)}, {0: {}}
    context = MultiprocessContext("t", functions.add, args, envs, "fork", Inherit())
    context.start()
    assert context.wait(BOUND).return_values == {0: 3}
    with pytest.raises(RankMappingError):
        MultiprocessContext("t", functions.add, args, {}, "fork", Inherit())


def test_no_descriptor_or_thread_remains_in_the_launcher(run, functions, start_method):
    run(functions.add, (1,)).wait(BOUND)  # starts multiprocessing's servers
    before = set(os.listdir("/proc/self/fd"))
    threads = threading.active_count()
    run(functions.add, (1,), (2,)).wait(BOUND)
    run(functions.fail, ("x",), ("y",)).wait(BOUND)
    run(functions.megabytes, (8,)).close()
    wait_until(lambda: threading.active_count() == threads, "the threads have ended")
    assert set(os.listdir("/proc/self/fd")) == before
    assert multiprocessing.active_children() == []


def test_the_temporary_folder_is_removed(start, functions, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    start(functions.add, (1,)).wait(BOUND)
    assert only_failure(start(functions.fail, ("x",))).message["message"] == "ValueError: x"
    start(functions.add, (1,)).close()
    assert os.listdir(tmp_path) == []


def output_of(tmp_path, script, method):
    """Run a script, which is `__main__` in the workers."""
    path = tmp_path / "script.py"
    folder = os.path.join(os.path.dirname(__file__), "modules")
    path.write_text(script.format(folder=folder, method=method, log_dir=str(tmp_path / "logs")))
    done = run_python(path)
    assert done.returncode == 0, done.stderr
    return done.stdout


TORCH = """
import sys
import torch
sys.path.insert(0, {folder!r})
import worker_functions
from plaunch.process import start_processes

if __name__ == "__main__":
    tensor = torch.ones(4)
    context = start_processes(
        "t", worker_functions.mean_of_tensor, {{0: (tensor,)}}, start_method={method!r}
    )
    mean, total = context.wait(100).return_values[0]
    # The worker has changed the shared memory, and returned its own tensor.
    print(float(mean), total, tensor.tolist())
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_tensors_pass_once_torch_is_loaded(tmp_path, method):
    pytest.importorskip("torch")
    shared = [2.0] * 4 if method == "spawn" else [1.0] * 4
    assert output_of(tmp_path, TORCH, method) == f"2.0 8.0 {shared}\n"


LOADED = """
import sys
from plaunch.process import start_processes

def is_loaded():
    return "torch" in sys.modules

if __name__ == "__main__":
    context = start_processes("t", is_loaded, {{0: ()}}, start_method={method!r})
    print(context.wait(60).return_values, is_loaded())
"""


def test_torch_is_not_loaded_for_functions(tmp_path, start_method):
    assert output_of(tmp_path, LOADED, start_method) == "{0: False} False\n"
