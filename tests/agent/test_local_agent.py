"""The agent with real worker processes and a rendezvous that the test drives."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading

import pytest
from plaunch.agent import LocalElasticAgent, WorkerSpec, WorkerState, notifications
from plaunch.errors import (
    PlaunchError,
    RendezvousClosedError,
    SignalException,
    UsageError,
    WorkerStoreError,
    WorkerStoreHostError,
)
from plaunch.process import SignalAction, Std
from plaunch.testing.rendezvous import FakeElasticRendezvous, FakeRendezvous
from plaunch_logs_default import DefaultLogsSpecs

from helpers.processes import is_reaped
from helpers.waiting import wait_for_files, wait_until

# Every start of a worker adds a line to a file: its round, attempt, rank and world size.
RECORD = """\
import json, os, pathlib, signal, sys, time
where = pathlib.Path(sys.argv[1])
names = "PLAUNCH_ROUND TORCHELASTIC_RESTART_COUNT RANK WORLD_SIZE LOCAL_RANK".split()
me = {name: int(os.environ[name]) for name in names} | {"pid": os.getpid()}
(where / f"{me['PLAUNCH_ROUND']}-{me['LOCAL_RANK']}.json.new").write_text(json.dumps(me))
(where / f"{me['PLAUNCH_ROUND']}-{me['LOCAL_RANK']}.json.new").rename(
    where / f"{me['PLAUNCH_ROUND']}-{me['LOCAL_RANK']}.json"
)
"""
WAIT = RECORD + "time.sleep(300)\n"
WAIT_IN_ROUND_0 = RECORD + "time.sleep(300 if me['PLAUNCH_ROUND'] == 0 else 0)\n"


class Recorder:
    """Runs an agent on a script and knows which workers have come up."""

    def __init__(self, folder):
        self.folder = folder
        self.told = []

    def agent(self, script, handler, nproc=2, *, shutdown_timeout=30, **options):
        spec = {"max_restarts": options.pop("max_restarts", 0)}
        self.built = LocalElasticAgent(
            WorkerSpec(
                role="trainer",
                local_world_size=nproc,
                rdzv_handler=handler,
                entrypoint=sys.executable,
                args=("-u", "-c", script, str(self.folder)),
                **spec,
            ),
            DefaultLogsSpecs(log_dir=str(self.folder / "logs")),
            shutdown_timeout=shutdown_timeout,
            notify=self.told.append,
            **options,
        )
        return self.built

    def exits(self):
        return [m.exit for m in self.told if isinstance(m, notifications.WorkerExited)]

    def steps(self, step):
        """The steps of that name that stops have taken."""
        stopping = [m.step for m in self.told if isinstance(m, notifications.Stopping)]
        return [taken for taken in stopping if taken.step == step]

    def workers(self, round_, nproc=2):
        """Wait for the workers of a round to be up."""
        paths = [self.folder / f"{round_}-{rank}.json" for rank in range(nproc)]
        wait_for_files(*paths)
        return [json.loads(path.read_text()) for path in paths]


@pytest.fixture
def recorder(tmp_path):
    return Recorder(tmp_path)


def test_a_membership_change_restarts_the_workers_in_a_new_world(recorder):
    with FakeElasticRendezvous(world_size=1) as handler:
        agent = recorder.agent(WAIT_IN_ROUND_0, handler)

        def change():
            recorder.workers(0)
            handler.arrive()

        helper = threading.Thread(target=change)
        helper.start()
        result = agent.run()
        helper.join()
    assert result.state is WorkerState.SUCCEEDED
    before, after = recorder.workers(0), recorder.workers(1)
    assert [worker["WORLD_SIZE"] for worker in before + after] == [2, 2, 4, 4]
    assert {worker["TORCHELASTIC_RESTART_COUNT"] for worker in before + after} == {0}
    assert all(is_reaped(worker["pid"]) for worker in before)
    assert [(e.stopped, e.exitcode) for e in recorder.exits()] == [(True, -15)] * 2 + [
        (False, 0)
    ] * 2


FAIL_IN_ROUND_0 = RECORD + (
    "if me['PLAUNCH_ROUND'] == 0:\n"
    "    if me['LOCAL_RANK'] == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
    "    time.sleep(300)\n"
)


def test_a_failure_restarts_all_and_counts(recorder):
    agent = recorder.agent(FAIL_IN_ROUND_0, FakeRendezvous(), max_restarts=1)
    assert agent.run().state is WorkerState.SUCCEEDED
    assert [worker["TORCHELASTIC_RESTART_COUNT"] for worker in recorder.workers(1)] == [1, 1]
    first, second, *_ = recorder.exits()
    assert (first.exitcode, first.stopped, first.worker.local_rank) == (-9, False, 1)
    assert first.failure.signal_name() == "SIGKILL"
    assert (second.exitcode, second.stopped, second.failure) == (-15, True, None)


def test_failures_of_the_last_attempt_are_returned_by_global_rank(recorder):
    handler = FakeRendezvous(rank=1, world_size=2)
    result = recorder.agent(FAIL_IN_ROUND_0, handler).run()
    assert result.is_failed()
    assert list(result.failures) == [3]
    failure = result.failures[3]
    assert (failure.local_rank, failure.global_rank, failure.exitcode) == (1, 3, -9)
    assert failure.host
    assert result.stopped == {2: -15}


IGNORE_TERM = RECORD.replace(
    "where =", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhere ="
) + (
    "if me['LOCAL_RANK'] == 1 and me['PLAUNCH_ROUND'] == 0:\n"
    "    while not (where / '0-0.json').exists(): time.sleep(0.005)\n"
    "    sys.exit(3)\n"
    "time.sleep(300 if me['PLAUNCH_ROUND'] == 0 else 0)\n"
)


def test_the_grace_holds_on_the_restart_path_too(recorder):
    """torchrun waits for 30 s here, whatever the user asked for."""
    agent = recorder.agent(IGNORE_TERM, FakeRendezvous(), max_restarts=1, shutdown_timeout=0.2)
    assert agent.run().state is WorkerState.SUCCEEDED
    stopped = [e for e in recorder.exits() if e.stopped]
    assert [(e.worker.local_rank, e.exitcode) for e in stopped] == [(0, -9)]


ASKED = RECORD + (
    "signal.signal(signal.SIGTERM, lambda *_: (where / 'asked').touch())\n"
    "(where / 'ready').touch()\n"
    "while True: time.sleep(0.01)\n"
)


@contextlib.contextmanager
def meanwhile(act):
    """Do something on another thread while the agent runs."""
    helper = threading.Thread(target=act)
    helper.start()
    yield
    helper.join()


def send(signum):
    os.kill(os.getpid(), signum)


def test_a_second_stop_signal_skips_the_grace(recorder):
    agent = recorder.agent(ASKED, FakeRendezvous(), nproc=1, shutdown_timeout=3600)

    def ask_twice():
        wait_for_files(recorder.folder / "ready")
        send(signal.SIGTERM)
        wait_for_files(recorder.folder / "asked")
        send(signal.SIGINT)

    with meanwhile(ask_twice), pytest.raises(SignalException) as caught:
        agent.run()
    assert caught.value.sigval is signal.SIGTERM, "the first one asked"
    (exit_,) = recorder.exits()
    assert (exit_.exitcode, exit_.stopped) == (-9, True)


SAVING = RECORD + (
    "def save(*_):\n"
    "    (where / 'asked').touch()\n"
    "    while not (where / 'slow').exists(): time.sleep(0.005)\n"
    "    (where / 'saved').touch()\n"
    "    sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, save)\n"
    "(where / 'ready').touch()\n"
    "while True: time.sleep(0.01)\n"
)
REPEATS = {
    "Slurm": [signal.SIGCONT, signal.SIGTERM],
    "systemd": [signal.SIGCONT, signal.SIGHUP],
    "notice": [signal.SIGUSR1],
}


@pytest.mark.parametrize("name", REPEATS)
def test_what_comes_with_a_sigterm_does_not_cost_the_last_save(recorder, name):
    policy = TellAndStop()
    agent = recorder.agent(
        SAVING, FakeRendezvous(), nproc=1, shutdown_timeout=3600, signal_policy=policy
    )

    def ask():
        wait_for_files(recorder.folder / "ready")
        send(signal.SIGTERM)
        wait_for_files(recorder.folder / "asked")
        for signum in REPEATS[name]:
            send(signum)
        if policy.heard is not None:
            wait_until(lambda: len(policy.heard) > sum(s in STOPS for s in REPEATS[name]), "all")
        (recorder.folder / "slow").touch()

    with meanwhile(ask), pytest.raises(SignalException):
        agent.run()
    assert (recorder.folder / "saved").exists()
    (exit_,) = recorder.exits()
    assert (exit_.exitcode, exit_.stopped) == (0, True)


STOPS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class TellAndStop:
    """SIGUSR1 is passed on, the others stop."""

    def __init__(self):
        self.heard = []

    def signals(self):
        return (*STOPS, signal.SIGUSR1)

    def action(self, signum):
        self.heard.append(signum)
        return SignalAction.NOTIFY if signum is signal.SIGUSR1 else SignalAction.STOP


STUBBORN = IGNORE_TERM.replace("time.sleep(300 if", "time.sleep(3600 if")


@pytest.mark.parametrize("max_restarts", [0, 1])
def test_ctrl_c_is_heard_while_a_failure_stops_the_others(recorder, max_restarts):
    """Three of them did nothing for ten seconds once, and then took the failure's place."""
    agent = recorder.agent(
        STUBBORN, FakeRendezvous(), max_restarts=max_restarts, shutdown_timeout=3600
    )

    def interrupt():
        wait_until(lambda: recorder.steps("signalled"), "the stop has begun")
        send(signal.SIGINT)

    with meanwhile(interrupt):
        if max_restarts:
            with pytest.raises(SignalException):
                agent.run()
        else:
            result = agent.run()
            assert {rank: f.exitcode for rank, f in result.failures.items()} == {1: 3}
            assert result.stopped == {0: -9}
    exits = {exit_.worker.local_rank: exit_ for exit_ in recorder.exits()}
    assert (exits[0].exitcode, exits[0].stopped) == (-9, True)
    assert (exits[1].exitcode, exits[1].stopped) == (3, False)


def test_ctrl_c_is_heard_while_a_lost_rendezvous_stops_the_workers(recorder):
    handler = FakeElasticRendezvous()
    with handler:
        agent = recorder.agent(ASKED, handler, nproc=1, shutdown_timeout=3600)

        def close_and_interrupt():
            wait_for_files(recorder.folder / "ready")
            handler.close(reason="enough")
            wait_for_files(recorder.folder / "asked")
            send(signal.SIGINT)

        with meanwhile(close_and_interrupt), pytest.raises(RendezvousClosedError):
            agent.run()
    (exit_,) = recorder.exits()
    assert (exit_.exitcode, exit_.stopped) == (-9, True)


def test_ctrl_c_is_heard_while_an_error_of_the_agent_stops_the_workers(recorder):
    agent = recorder.agent(ASKED, FakeRendezvous(), nproc=1, shutdown_timeout=3600)
    look = agent._monitor_workers

    def look_or_fail(group):
        if (recorder.folder / "ready").exists():
            raise OSError("the disk is gone")
        return look(group)

    agent._monitor_workers = look_or_fail

    def interrupt():
        wait_for_files(recorder.folder / "asked")
        send(signal.SIGINT)

    with meanwhile(interrupt), pytest.raises(OSError, match="the disk is gone"):
        agent.run()
    (exit_,) = recorder.exits()
    assert (exit_.exitcode, exit_.stopped) == (-9, True)


def test_a_signal_that_no_policy_handles_ends_the_job_with_a_word(recorder, caplog):
    agent = recorder.agent(SAVING, FakeRendezvous(), nproc=1)

    def send_it():
        wait_for_files(recorder.folder / "ready")
        (recorder.folder / "slow").touch()
        send(signal.SIGUSR1)

    with meanwhile(send_it), pytest.raises(SignalException) as caught:
        agent.run()
    assert caught.value.sigval is signal.SIGUSR1
    assert "SIGUSR1 received, which no signal policy handles" in caplog.text
    assert (recorder.folder / "saved").exists(), "the workers were not asked with SIGTERM"
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


class Tell:
    """SIGUSR1 is passed on."""

    def signals(self):
        return (signal.SIGUSR1,)

    def action(self, signum):
        return SignalAction.NOTIFY


def test_a_notify_signal_reaches_the_workers_that_are_left_and_the_job_goes_on(recorder):
    script = RECORD + (
        "if me['LOCAL_RANK'] == 0: sys.exit(0)\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))\n"
        "(where / 'ready').touch()\n"
        "time.sleep(300)\n"
    )
    agent = recorder.agent(script, FakeRendezvous(), signal_policy=Tell())

    def tell():
        wait_until(recorder.exits, "the end of a worker")
        wait_for_files(recorder.folder / "ready")
        os.kill(os.getpid(), signal.SIGUSR1)

    helper = threading.Thread(target=tell)
    helper.start()
    result = agent.run()
    helper.join()
    assert result.state is WorkerState.SUCCEEDED
    assert result.return_values == {0: None, 1: None}


def test_more_variables_come_from_a_callable(recorder):
    asked = []

    def worker_env(worker, env):
        asked.append((worker.global_rank, env["WORLD_SIZE"], "EXTRA" in env))
        return {"EXTRA": str(worker.global_rank)}

    script = "import os, sys; sys.exit(os.environ['EXTRA'] != os.environ['RANK'])"
    agent = recorder.agent(script, FakeRendezvous(), worker_env=worker_env)
    assert agent.run().state is WorkerState.SUCCEEDED
    assert asked == [(0, "2", False), (1, "2", False)]


def test_an_error_from_that_callable_ends_the_job_before_anything_starts(recorder):
    def worker_env(worker, env):
        raise PlaunchError("two plugins disagree")

    agent = recorder.agent(WAIT, FakeRendezvous(), worker_env=worker_env)
    with pytest.raises(PlaunchError, match="disagree"):
        agent.run()
    assert recorder.exits() == []


def test_a_program_that_does_not_exist(recorder):
    spec = WorkerSpec("trainer", 2, FakeRendezvous(), entrypoint="/no/such/program")
    with pytest.raises(FileNotFoundError, match="/no/such/program"):
        LocalElasticAgent(spec).run()


def test_the_older_log_arguments_of_a_spec(tmp_path):
    spec = WorkerSpec(
        "trainer",
        1,
        FakeRendezvous("job"),
        entrypoint="echo",
        args=("hello",),
        log_dir=str(tmp_path),
        redirects=Std.OUT,
    )
    assert LocalElasticAgent(spec).run().state is WorkerState.SUCCEEDED
    (log,) = tmp_path.glob("job_*/attempt_0/0/stdout.log")
    assert log.read_text() == "hello\n"
    with pytest.raises(UsageError, match="configured twice"):
        LocalElasticAgent(spec, DefaultLogsSpecs())


def test_the_prefix_of_teed_lines(recorder, tmp_path, capfd):
    spec = WorkerSpec(
        "trainer", 1, FakeRendezvous(rank=3, world_size=4), entrypoint="echo", args=("hello",)
    )
    agent = LocalElasticAgent(
        spec,
        DefaultLogsSpecs(log_dir=str(tmp_path), tee=Std.OUT),
        log_line_prefix_template="<${role_name} ${rank}.${local_rank} ${hostname} ${attempt}> ",
    )
    agent.run()
    assert capfd.readouterr().out == f"<trainer 3.0 {socket.gethostname()} 0> hello\n"


class LosingStore:
    """Is lost at the first look after a condition holds."""

    def __init__(self, error, is_lost):
        self._error, self._is_lost = error, is_lost

    def watch(self, workers):
        pass

    def fds(self):
        return []

    def due(self):
        return 0.01

    def tend(self):
        error, self._error = (self._error, None) if self._is_lost() else (None, self._error)
        return error

    def wait_for_guests(self, patience):
        pass

    def close(self):
        pass


def hosting():
    """A rendezvous that leaves the store to the launcher."""
    handler = FakeRendezvous(world_size=2)
    handler.agent_store = True
    return handler


def test_workers_that_have_all_succeeded_do_not_miss_their_store(recorder):
    done = lambda: workers.context.look() is not None  # noqa: E731
    store = LosingStore(WorkerStoreError("it was lost"), done)
    built = recorder.agent(RECORD, hosting(), open_store=lambda store_round: store)
    workers = built._workers
    assert built.run().state is WorkerState.SUCCEEDED
    assert store._error is None  # it was lost


def test_a_store_that_nobody_can_serve_is_no_matter_for_restarts(recorder):
    up = lambda: recorder.folder.joinpath("0-0.json").exists()  # noqa: E731
    store = LosingStore(WorkerStoreHostError("there is no torch"), up)
    built = recorder.agent(WAIT, hosting(), max_restarts=3, open_store=lambda store_round: store)
    with pytest.raises(WorkerStoreHostError):
        built.run()
    assert not recorder.folder.joinpath("1-0.json").exists()


@pytest.mark.parametrize("method", ["tend", "close"])
def test_a_store_that_fails_costs_a_round_at_most(recorder, caplog, method):
    store = LosingStore(None, lambda: False)
    failing = lambda: 1 / 0 if recorder.folder.joinpath("0-0.json").exists() else None  # noqa: E731
    setattr(store, method, failing)
    built = recorder.agent(
        WAIT_IN_ROUND_0 if method == "tend" else RECORD,
        hosting(),
        max_restarts=1,
        open_store=lambda store_round: stores.pop(),
    )
    stores = [LosingStore(None, lambda: False), store]
    assert built.run().state is WorkerState.SUCCEEDED
    named = "test_local_agent.LosingStore failed with ZeroDivisionError: division by zero"
    assert named in caplog.text
    assert built._loop.state.attempt == (method == "tend")
