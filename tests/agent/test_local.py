"""The agent with real worker processes and a rendezvous that the test drives."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time
from functools import partial

import pytest
from plaunch.agent import LocalElasticAgent, WorkerSpec, WorkerState, notifications
from plaunch.errors import (
    PluginError,
    RendezvousClosedError,
    SignalException,
    UsageError,
    WorkerStoreError,
    WorkerStoreHostError,
)
from plaunch.process import SignalAction, Std
from plaunch.rendezvous import RendezvousParameters
from plaunch.testing import FakeJobRendezvous, FakeRendezvous
from plaunch.testing.rendezvous import FakeElasticRendezvous
from plaunch_logs_default import DefaultLogsSpecs
from plaunch_membership import DynamicRendezvousHandler, StoreAccess
from plaunch_membership.testing import MemoryBoard
from plaunch_rendezvous_etcd.testing.fixtures import etcd_server  # noqa: F401 - a fixture

from helpers.agents import SAVING, UP, WAIT, WAIT_IN_ROUND_0, Node, run_nodes
from helpers.calls import meanwhile
from helpers.ports import free_port
from helpers.processes import is_reaped
from helpers.signals import Policy, send
from helpers.waiting import wait_until

BOTH = ("0.0.0", "0.0.1")


@pytest.fixture
def plain(tmp_path):
    """A node whose rendezvous can only be asked."""
    return Node(tmp_path, FakeRendezvous())


def test_a_membership_change_restarts_the_workers_in_a_new_world(tmp_path):
    with FakeElasticRendezvous(world_size=1) as handler:
        node = Node(tmp_path, handler)
        result = node.run(WAIT_IN_ROUND_0, handler.arrive, after=BOTH)
    assert result.state is WorkerState.SUCCEEDED
    assert node.starts() == [*BOTH, "1.0.0", "1.0.1"]
    before, after = node.workers(*BOTH), node.workers("1.0.0", "1.0.1")
    assert [worker["world"] for worker in before + after] == [2, 2, 4, 4]
    assert all(is_reaped(worker["pid"]) for worker in before)
    ends = [(exit_.stopped, exit_.exitcode) for exit_ in node.exits()]
    assert ends == [(True, -15)] * 2 + [(False, 0)] * 2


FAIL_IN_ROUND_0 = UP + (
    "up()\n"
    "if round_ == 0:\n"
    "    if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
    "    time.sleep(300)\n"
)


def test_a_failure_restarts_all_and_counts(plain):
    assert plain.run(FAIL_IN_ROUND_0, max_restarts=1).state is WorkerState.SUCCEEDED
    assert plain.starts()[-2:] == ["1.1.0", "1.1.1"]
    first, second, *_ = plain.exits()
    assert (first.exitcode, first.stopped, first.worker.local_rank) == (-9, False, 1)
    assert first.failure.signal_name() == "SIGKILL"
    assert (second.exitcode, second.stopped, second.failure) == (-15, True, None)


def test_failures_of_the_last_attempt_are_returned_by_global_rank(tmp_path):
    result = Node(tmp_path, FakeRendezvous(rank=1, world_size=2)).run(FAIL_IN_ROUND_0)
    assert result.is_failed()
    assert list(result.failures) == [3]
    failure = result.failures[3]
    assert (failure.local_rank, failure.global_rank, failure.exitcode) == (1, 3, -9)
    assert failure.host
    assert result.stopped == {2: -15}


def test_workers_that_are_shut_down_during_the_run_have_failed(plain):
    agent = plain.agent(WAIT_IN_ROUND_0, max_restarts=1)

    def shut_down():
        plain.wait_for(*BOTH)
        agent._shutdown()

    with meanwhile(shut_down):
        assert agent.run().state is WorkerState.SUCCEEDED
    assert plain.starts() == [*BOTH, "1.1.0", "1.1.1"], "it used a restart"


def test_workers_that_are_shut_down_during_the_last_attempt_fail_the_job(plain):
    agent = plain.agent(WAIT)

    def shut_down():
        plain.wait_for(*BOTH)
        agent._shutdown()

    with meanwhile(shut_down):
        result = agent.run()
    assert result.state is WorkerState.FAILED
    assert {rank: failure.exitcode for rank, failure in result.failures.items()} == {0: -15, 1: -15}
    assert result.stopped == {}


# Rank 1 fails in the first round, once the other one is there, which takes no SIGTERM.
IGNORE_TERM = (
    "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    + UP
    + (
        "up()\n"
        "if round_ > 0: sys.exit(0)\n"
        "if rank == 1:\n"
        "    wait_for('0.0.0')\n"
        "    sys.exit(3)\n"
        "time.sleep(3600)\n"
    )
)


def test_the_grace_holds_on_the_restart_path_too(plain):
    """torchrun waits for 30 s here, whatever the user asked for."""
    result = plain.run(IGNORE_TERM, max_restarts=1, shutdown_timeout=0.2)
    assert result.state is WorkerState.SUCCEEDED
    stopped = [exit_ for exit_ in plain.exits() if exit_.stopped]
    assert [(e.worker.local_rank, e.exitcode) for e in stopped] == [(0, -9)]


def check_end(node, exitcode):
    """The only worker was stopped, and ended with this."""
    (exit_,) = node.exits()
    assert (exit_.exitcode, exit_.stopped) == (exitcode, True)


def test_a_second_stop_signal_skips_the_grace(plain):
    def ask_twice():
        send(signal.SIGTERM)
        plain.wait_for("asked.0")
        time.sleep(0.3)  # a SIGINT within 0.2 s would belong to the same request
        send(signal.SIGINT)

    with pytest.raises(SignalException) as caught:
        plain.run(SAVING, ask_twice, 1, after=BOTH[:1], shutdown_timeout=3600)
    assert caught.value.sigval is signal.SIGTERM, "the first one asked"
    check_end(plain, -9)


STOPS = ("SIGTERM", "SIGHUP", "SIGINT")


@pytest.mark.parametrize(
    "names", ["SIGCONT SIGTERM", "SIGCONT SIGHUP", "SIGUSR1"], ids=["Slurm", "systemd", "notice"]
)
def test_signals_that_repeat_a_sigterm_do_not_end_the_grace_period(plain, names):
    policy = Policy(SIGUSR1=SignalAction.NOTIFY, **dict.fromkeys(STOPS, SignalAction.STOP))
    repeats = [signal.Signals[name] for name in names.split()]

    def ask():
        send(signal.SIGTERM)
        plain.wait_for("asked.0")
        send(*repeats)
        count = 1 + sum(signum in policy.signals() for signum in repeats)
        wait_until(lambda: len(policy.asked) == count, "all are heard")
        plain.touch("enough")

    with pytest.raises(SignalException):
        plain.run(SAVING, ask, 1, after=BOTH[:1], shutdown_timeout=3600, signal_policy=policy)
    assert plain.has("saved.0")
    check_end(plain, 0)


@pytest.mark.parametrize("max_restarts", [0, 1])
def test_ctrl_c_is_handled_while_a_failure_stops_the_others(plain, max_restarts):
    """Three of them did nothing for ten seconds once, and then took the failure's place."""

    def has_begun():
        return any(
            m.step.step == "signalled" for m in plain.notifications.of(notifications.Stopping)
        )

    def interrupt():
        wait_until(has_begun, "the stop has begun")
        send(signal.SIGINT)

    with pytest.raises(SignalException) if max_restarts else contextlib.nullcontext():
        result = plain.run(IGNORE_TERM, interrupt, max_restarts=max_restarts, shutdown_timeout=3600)
        assert {rank: f.exitcode for rank, f in result.failures.items()} == {1: 3}
        assert result.stopped == {0: -9}
    exits = {e.worker.local_rank: (e.exitcode, e.stopped) for e in plain.exits()}
    assert exits == {0: (-9, True), 1: (3, False)}


def test_ctrl_c_is_handled_while_a_lost_rendezvous_stops_the_workers(tmp_path):
    with FakeElasticRendezvous() as handler:
        node = Node(tmp_path, handler)

        def close_and_interrupt():
            handler.close(reason="enough")
            node.wait_for("asked.0")
            send(signal.SIGINT)

        with pytest.raises(RendezvousClosedError):
            node.run(SAVING, close_and_interrupt, 1, after=BOTH[:1], shutdown_timeout=3600)
    check_end(node, -9)


def test_ctrl_c_is_handled_while_an_error_of_the_agent_stops_the_workers(plain):
    failing = plain.failing(OSError("the disk is gone"), "0.0.0")
    interrupt = partial(send, signal.SIGINT)
    with pytest.raises(OSError, match="the disk is gone"):
        plain.run(SAVING, interrupt, 1, after=["asked.0"], kind=failing, shutdown_timeout=3600)
    check_end(plain, -9)


def test_a_signal_that_no_policy_handles_ends_the_job_with_a_word(plain, caplog):
    plain.touch("enough")
    with pytest.raises(SignalException) as caught:
        plain.run(SAVING, partial(send, signal.SIGUSR1), 1, after=BOTH[:1])
    assert caught.value.sigval is signal.SIGUSR1
    assert "SIGUSR1 received, which no signal policy handles" in caplog.text
    assert plain.has("saved.0"), "the workers were not asked with SIGTERM"
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


def test_a_notify_signal_reaches_the_live_workers_and_the_job_continues(plain):
    script = UP + (
        "if rank == 0: sys.exit(0)\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))\n"
        "up()\n"
        "time.sleep(300)\n"
    )

    def tell():
        wait_until(plain.exits, "the end of a worker")
        send(signal.SIGUSR1)

    policy = Policy(SIGUSR1=SignalAction.NOTIFY)
    result = plain.run(script, tell, after=BOTH[1:], signal_policy=policy)
    assert result.state is WorkerState.SUCCEEDED
    assert result.return_values == {0: None, 1: None}


def test_more_variables_come_from_a_callable(plain):
    asked = []

    def worker_env(worker, env):
        asked.append((worker.global_rank, env["WORLD_SIZE"], "EXTRA" in env))
        return {"EXTRA": str(worker.global_rank)}

    script = "import os, sys; sys.exit(os.environ['EXTRA'] != os.environ['RANK'])"
    assert plain.run(script, worker_env=worker_env).state is WorkerState.SUCCEEDED
    assert asked == [(0, "2", False), (1, "2", False)]


def test_a_program_that_does_not_exist():
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


def test_the_prefix_of_teed_lines(tmp_path, capfd):
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


@pytest.fixture
def hosting(tmp_path):
    """A node whose rendezvous leaves the store to the launcher."""
    handler = FakeRendezvous(world_size=2)
    handler.agent_store = True
    return Node(tmp_path, handler)


def test_workers_that_have_all_succeeded_do_not_miss_their_store(hosting):
    done = lambda: workers.context.check() is not None  # noqa: E731
    store = LosingStore(WorkerStoreError("it was lost"), done)
    built = hosting.agent(UP, open_store=lambda store_round: store)
    workers = built._workers
    assert built.run().state is WorkerState.SUCCEEDED
    assert store._error is None  # it was lost


def test_no_restart_follows_if_the_store_cannot_be_hosted(hosting):
    store = LosingStore(WorkerStoreHostError("there is no torch"), lambda: hosting.has("0.0.0"))
    with pytest.raises(WorkerStoreHostError):
        hosting.run(WAIT, max_restarts=3, open_store=lambda store_round: store)
    assert not hosting.has("1.1.0")


@pytest.mark.parametrize("method", ["tend", "close"])
def test_a_store_that_fails_costs_a_round_at_most(hosting, caplog, method):
    store = LosingStore(None, lambda: False)
    setattr(store, method, lambda: 1 / 0 if hosting.has("0.0.0") else None)
    stores = [LosingStore(None, lambda: False), store]
    script = WAIT_IN_ROUND_0 if method == "tend" else UP + "up()\n"
    built = hosting.agent(script, max_restarts=1, open_store=lambda store_round: stores.pop())
    assert built.run().state is WorkerState.SUCCEEDED
    named = "test_local.LosingStore failed with ZeroDivisionError: division by zero"
    assert named in caplog.text
    assert built._status.state.attempt == (method == "tend")


# --- agents that a program builds, with torchrun's calls ------------------------------------------


WORKER = """\
import json, os, sys
names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE ROLE_NAME GROUP_RANK"
names += " GROUP_WORLD_SIZE TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS"
facts = {name: os.environ[name] for name in names.split()}
os.write(1, (json.dumps(facts) + chr(10)).encode())
sys.exit(int(facts["TORCHELASTIC_RESTART_COUNT"] in sys.argv[1:] and facts["RANK"] == "1"))
"""
# The result of the agent is written behind what its workers have found.
RUN = """\
result = agent.run()
handler.shutdown()
sys.stdout.write(json.dumps({"state": result.state.value, "ranks": sorted(result.return_values)}))
"""
SPEC = {"role": "trainer", "args": ["-c", WORKER], "max_restarts": 0, "monitor_interval": 0.01}


def failing(*attempts, max_restarts):
    """Settings of workers, of which rank 1 fails in these attempts."""
    return {"max_restarts": max_restarts, "args": [*SPEC["args"], *map(str, attempts)]}


class Job:
    """The nodes of one job, each an agent in a process of its own."""

    def __init__(self, with_torch=None, **rendezvous):
        self.with_torch = with_torch
        self.rendezvous = {"last_call_timeout": 1, **rendezvous}

    def facts(self, *nodes):
        """Run nodes, which are settings of workers, to their end, which must be a success.

        What is given are the workers' environments, and the results of the agents.
        """
        workers, results = [], []
        rendezvous = {**self.rendezvous, "min_nodes": len(nodes), "max_nodes": len(nodes)}
        given = [{"rendezvous": rendezvous, "spec": {**SPEC, **node}} for node in nodes]
        for done in run_nodes(RUN, *given, with_torch=self.with_torch):
            assert done.returncode == 0, done.stderr
            lines = [json.loads(line) for line in done.stdout.splitlines()]
            results += [line for line in lines if "state" in line]
            workers += [line for line in lines if "RANK" in line]
        assert {result["state"] for result in results} == {"SUCCEEDED"}
        return sorted(workers, key=lambda worker: int(worker["RANK"])), results


@pytest.fixture(params=["c10d", "etcd-v2"])
def job(request, tmp_path):
    with_torch = None
    if request.param == "c10d":
        with_torch = request.getfixturevalue("with_torch")
        endpoint = f"localhost:{free_port()}"
    else:
        endpoint = request.getfixturevalue("etcd_server").endpoint
    run_id = f"by-hand-{tmp_path.name}"
    return Job(with_torch, backend=request.param, endpoint=endpoint, run_id=run_id)


def values(workers, name):
    return [worker[name] for worker in workers]


def test_one_node_has_the_ranks_and_the_restarts_of_its_spec(job):
    workers, results = job.facts({"local_world_size": 2, **failing(0, 1, max_restarts=2)})
    last = [worker for worker in workers if worker["TORCHELASTIC_RESTART_COUNT"] == "2"]
    assert values(last, "RANK") == ["0", "1"]
    assert set(values(workers, "WORLD_SIZE")) == {"2"}
    assert set(values(workers, "TORCHELASTIC_MAX_RESTARTS")) == {"2"}
    assert results[0]["ranks"] == [0, 1]


@pytest.mark.slow
def test_nodes_alike(job):
    workers, results = job.facts({"local_world_size": 2}, {"local_world_size": 2})
    assert values(workers, "RANK") == ["0", "1", "2", "3"]
    assert set(values(workers, "WORLD_SIZE")) == {"4"}
    assert sorted(result["ranks"] for result in results) == [[0, 1], [2, 3]]


@pytest.mark.slow
def test_nodes_with_roles_and_sizes_of_their_own(job):
    workers, _ = job.facts(
        {"role": "master", "local_world_size": 1},
        {"role": "trainer", "local_world_size": 2},
        {"role": "trainer", "local_world_size": 3},
    )
    assert values(workers, "RANK") == [str(rank) for rank in range(6)]
    assert set(values(workers, "WORLD_SIZE")) == {"6"}
    trainers = [worker for worker in workers if worker["ROLE_NAME"] == "trainer"]
    assert sorted(values(trainers, "ROLE_RANK")) == [str(rank) for rank in range(5)]
    assert set(values(trainers, "ROLE_WORLD_SIZE")) == {"5"}
    assert sorted(values(workers, "LOCAL_WORLD_SIZE")) == ["1", "2", "2", "3", "3", "3"]


@pytest.mark.slow
def test_a_failure_anywhere_restarts_all_nodes(job):
    workers, _ = job.facts(*[{"local_world_size": 1, **failing(0, max_restarts=1)}] * 2)
    again = [worker for worker in workers if worker["TORCHELASTIC_RESTART_COUNT"] == "1"]
    assert values(again, "RANK") == ["0", "1"]


def agent_for(handler, **settings):
    values = {"role": "r", "local_world_size": 2, "entrypoint": "/bin/true", **settings}
    return LocalElasticAgent(WorkerSpec(rdzv_handler=handler, **values))


@pytest.fixture
def create():
    """Make handlers over a store of this process."""
    board = MemoryBoard()
    handlers = []

    def create(local_addr=None):
        params = RendezvousParameters("memory", "board", "job", 1, 1, local_addr)
        handler = DynamicRendezvousHandler(
            params, StoreAccess(board.connect, local_addr or "127.0.0.1")
        )
        handlers.append(handler)
        return handler

    yield create
    for handler in handlers:
        handler.shutdown()


def test_an_address_that_differs_is_refused(create):
    with pytest.raises(UsageError, match=r"local_addr='10\.0\.0\.1'.*'10\.0\.0\.2'"):
        agent_for(create("10.0.0.1"), local_addr="10.0.0.2")


def test_the_address_of_the_spec_counts_where_there_is_no_other(create):
    handler = create()
    agent_for(handler, local_addr="10.0.0.2")
    assert handler.next_rendezvous().bootstrap_store_info.master_addr == "10.0.0.2"


def test_a_handler_that_has_joined_takes_no_other_spec(create):
    handler = create()
    agent_for(handler)
    handler.next_rendezvous()
    agent_for(handler)
    with pytest.raises(UsageError, match="needs a rendezvous handler of its own"):
        agent_for(handler, local_world_size=3)


def test_ranks_of_a_handler_that_takes_no_notice_are_refused():
    with FakeJobRendezvous() as handler:
        handler.prepare = lambda node: None
        with pytest.raises(PluginError, match=r"'fake' gives the 2 workers .*prepare"):
            agent_for(handler).run()


def test_an_agent_may_run_again(create):
    handler = create()
    agent = agent_for(handler)
    results = [agent.run(), agent.run(), agent_for(handler, local_world_size=3).run()]
    assert [result.state for result in results] == [WorkerState.SUCCEEDED] * 3
    assert [len(result.return_values) for result in results] == [2, 2, 3], "workers ran"


def test_an_agent_whose_workers_have_failed_may_run_again(create):
    agent = agent_for(create(), entrypoint="/bin/false")
    assert agent.run().is_failed()
    assert agent.run().is_failed()


def test_an_agent_does_not_run_again_in_a_rendezvous_that_is_closed(create):
    handler = create()
    agent = agent_for(handler)
    agent.run()
    handler.set_closed()
    with pytest.raises(RendezvousClosedError):
        agent.run()


def test_restarts_that_an_earlier_run_has_used_remain_used(tmp_path):
    node = Node(tmp_path, FakeRendezvous())
    agent = node.agent(f"{UP}up(); sys.exit(1)", 1, max_restarts=1)
    assert agent.run().is_failed()
    assert agent.run().is_failed()
    assert node.starts() == ["0.0.0", "1.1.0", "2.1.0"]


def test_no_guard_is_left_without_a_run(tmp_path):
    """An extension that fails to start ends a launch before the agent runs."""
    agent = Node(tmp_path, FakeRendezvous()).agent("pass", 1)
    with agent.guarded():
        agent._local.reaper.begin()
        guard = agent._local.reaper.guards.guard
        assert guard.is_alive()
    assert not guard.is_alive()
