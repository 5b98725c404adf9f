"""The agent's shell with workers that are only pretended, so that every step is under control."""

from __future__ import annotations

import math
import signal
import threading
from functools import partial

import pytest
from plaunch.agent import RequestKind, RunResult, WorkerState, notifications
from plaunch.agent.messages import WaitReporter
from plaunch.agent.poller import LoopWatchdog
from plaunch.errors import (
    RendezvousClosedError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
    SignalException,
    UnkillableWorkerError,
)
from plaunch.process.failure import ProcessFailure
from plaunch.process.signals import SignalAction
from plaunch.rendezvous import JobOutcome
from plaunch.testing import FakeJobRendezvous
from plaunch.testing.rendezvous import FakeElasticRendezvous, FakeRendezvous

from helpers.agents import SUCCEEDED, PretendAgent, and_then, with_console
from helpers.calls import meanwhile
from helpers.clock import Clock
from helpers.signals import Policy, send
from helpers.stores import Store
from helpers.waiting import wait_until

FAILED = RunResult(WorkerState.FAILED, failures={0: ProcessFailure(0, 1000, 3, "")})


def test_success_returns_the_workers_result():
    agent = PretendAgent(FakeRendezvous(), [SUCCEEDED])
    assert agent.run() is SUCCEEDED
    assert agent.calls == ["start", "shutdown SIGTERM"]
    assert agent.get_worker_group().state is WorkerState.SUCCEEDED


def test_failures_are_followed_by_restarts_in_new_rounds_until_none_is_left():
    handler = FakeRendezvous()
    agent = PretendAgent(handler, [FAILED], [FAILED], [FAILED], max_restarts=2)
    result = agent.run()
    assert result.failures == FAILED.failures
    assert agent.calls == ["start", "stop", "start", "stop", "start", "stop", "shutdown SIGTERM"]
    assert handler.rounds == 3
    assert agent.started() == [(0, 0), (1, 1), (2, 2)]
    assert [one.attempt for one in result.earlier] == [0, 1]
    assert all(one.cause.endswith(" failed: exit code 3") for one in result.earlier)


@pytest.mark.parametrize("state", [WorkerState.UNKNOWN, WorkerState.INIT, WorkerState.STOPPED])
def test_a_state_that_workers_cannot_be_in_ends_the_run(state):
    agent = PretendAgent(FakeRendezvous(), [RunResult(state)])
    agent.fails(RuntimeError, f"'trainer'.*{state.name}.*_monitor_workers")


def test_moments_come_in_order_and_state_changes_are_complete():
    agent = PretendAgent(FakeRendezvous(), [FAILED], [SUCCEEDED], max_restarts=1)
    agent.run()
    kinds = [type(notification).__name__ for notification in agent.notifications]
    one_round = [
        "BeforeRendezvous",
        "AfterRendezvous",
        "BeforeWorkers",
        "WorkersStarted",
        "StateChanged",
    ]
    failed = ["WorkersFailed", "StateChanged", "BeforeStop"]
    assert kinds == [*one_round, *failed, *one_round, "StateChanged", "AgentFinished"]
    changes = [
        (notification.old.name, notification.new.name)
        for notification in agent.notifications.of(notifications.StateChanged)
    ]
    assert changes == [
        ("INIT", "HEALTHY"),
        ("HEALTHY", "STOPPED"),
        ("STOPPED", "HEALTHY"),
        ("HEALTHY", "SUCCEEDED"),
    ]
    assert agent.notifications.of(notifications.AgentFinished)[0].result is SUCCEEDED


def test_groups_in_notifications_have_ranks_pids_and_the_address_of_the_store():
    handler = FakeRendezvous(run_id="job", rank=1, world_size=3)
    agent = PretendAgent(handler, [SUCCEEDED], nproc=2)
    agent.run()
    before = agent.notifications.of(notifications.BeforeRendezvous)[0].group
    assert (before.group_rank, before.round, before.master_port) == (-1, -1, 0)
    after = agent.notifications.of(notifications.AfterRendezvous)[0].group
    assert (after.run_id, after.group_rank, after.group_world_size, after.round) == ("job", 1, 3, 0)
    assert (after.master_addr, after.master_port) == ("127.0.0.1", 29400)
    assert [(w.local_rank, w.global_rank, w.world_size) for w in after.workers] == [
        (0, 2, 6),
        (1, 3, 6),
    ]
    assert [worker.pid for worker in after.workers] == [None, None]
    started = agent.notifications.of(notifications.WorkersStarted)[0].group
    assert [worker.pid for worker in started.workers] == [1000, 1001]


def test_the_spec_overrides_the_address_that_the_rendezvous_found():
    agent = PretendAgent(FakeRendezvous(), [SUCCEEDED], master_addr="node7", master_port=7)
    agent.run()
    group = agent.notifications.of(notifications.AfterRendezvous)[0].group
    assert (group.master_addr, group.master_port) == ("node7", 7)


def test_a_plain_handler_is_polled_for_waiting_nodes():
    handler = FakeRendezvous()

    def newcomer():
        handler.nodes_waiting = 1
        handler.world_size = 2

    agent = PretendAgent(handler, [newcomer], [SUCCEEDED], max_restarts=0)
    assert agent.run() is SUCCEEDED
    assert agent.calls == ["start", "stop", "start", "shutdown SIGTERM"]
    last = agent.notifications.of(notifications.WorkersStarted)[-1].group
    assert (last.attempt, last.round, last.group_world_size) == (0, 1, 2)


@pytest.mark.parametrize(("change", "world_size"), [("arrive", 4), ("depart", 2), ("lose", 2)])
def test_an_observable_handler_wakes_the_agent(change, world_size):
    with FakeElasticRendezvous(world_size=3) as handler:
        agent = PretendAgent(handler, [getattr(handler, change)], [SUCCEEDED], max_restarts=0)
        assert agent.run() is SUCCEEDED
        last = agent.notifications.of(notifications.WorkersStarted)[-1].group
        assert (last.attempt, last.round, last.group_world_size) == (0, 1, world_size)


def test_a_change_while_the_workers_start_leads_to_another_round():
    with FakeElasticRendezvous(world_size=1) as handler:
        agent = PretendAgent(handler, [], [SUCCEEDED])
        and_then(agent, "_start_workers", lambda: handler.rounds == 1 and handler.arrive())
        assert agent.run() is SUCCEEDED
        assert handler.rounds == 2


def test_a_wake_up_does_not_wait_for_the_interval():
    """With an interval of an hour, only the handler's descriptor can end the wait."""
    with FakeElasticRendezvous(world_size=1) as handler:
        agent = PretendAgent(handler, [], [SUCCEEDED])
        spec = agent.get_worker_group().spec
        spec.monitor_interval = 3600

        def arrive_once_running():
            wait_until(
                lambda: agent.notifications.of(notifications.StateChanged), "the workers run"
            )
            handler.arrive()
            spec.monitor_interval = 0.001

        with meanwhile(arrive_once_running):
            assert agent.run() is SUCCEEDED


def test_a_closed_rendezvous_ends_the_job_with_its_reason():
    reason = "rank 7 failed with exit code 3"
    with FakeElasticRendezvous() as handler:
        agent = PretendAgent(handler, [partial(handler.close, reason=reason)])
        agent.fails(RendezvousClosedError, reason)


class RefusingRendezvous(FakeRendezvous):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def next_rendezvous(self):
        raise self.error


def test_an_error_of_the_rendezvous_is_raised():
    error = RendezvousTimeoutError("2 of 4 nodes came")
    agent = PretendAgent(RefusingRendezvous(error))
    with pytest.raises(RendezvousTimeoutError) as caught:
        agent.run()
    assert caught.value is error
    assert agent.notifications.of(notifications.AgentFinished)[0].result is None


def test_a_node_that_is_not_needed_has_succeeded():
    agent = PretendAgent(RefusingRendezvous(RendezvousGracefulExitError("spare")))
    result = agent.run()
    assert result.state is WorkerState.SUCCEEDED
    assert result.return_values == {}


def test_an_error_while_starting_is_raised_and_what_was_started_is_stopped():
    error = FileNotFoundError("no such program")
    assert PretendAgent(FakeRendezvous(), [error]).fails(FileNotFoundError) is error


def get_stuck():
    raise UnkillableWorkerError("pid 7 is stuck")


def test_a_worker_that_cannot_be_ended_is_not_followed_by_another():
    agent = PretendAgent(FakeRendezvous(), [FAILED], [SUCCEEDED])

    agent.on_stop = get_stuck
    agent.fails(UnkillableWorkerError, "pid 7")


def test_no_restart_is_promised_for_workers_that_were_given_up(caplog):
    """This host cannot start others beside them."""

    agent = PretendAgent(FakeRendezvous(), [RunResult(WorkerState.UNHEALTHY)], max_restarts=3)
    agent._workers.are_of_use = lambda: False
    agent.on_stop = get_stuck
    agent.fails(UnkillableWorkerError)
    assert "restart" not in caplog.text


def test_a_stop_signal_stops_the_workers_with_it_and_is_raised():
    before = signal.getsignal(signal.SIGTERM)
    agent = PretendAgent(FakeRendezvous(), [lambda: send(signal.SIGTERM)])
    assert agent.fails(SignalException).sigval is signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def interrupt_this_thread():
    """The kernel may pick any thread; only the wake-up descriptor reaches the main one."""
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)


@pytest.mark.parametrize("kind", [FakeRendezvous, FakeJobRendezvous])
@pytest.mark.parametrize("interrupt", [lambda: send(signal.SIGINT), interrupt_this_thread])
def test_a_stop_signal_ends_the_wait_for_other_nodes(kind, interrupt):
    handler = kind()
    handler.hold()
    agent = PretendAgent(handler)

    def interrupt_once_joining():
        handler.joining.wait(30)
        interrupt()

    with meanwhile(interrupt_once_joining), pytest.raises(SignalException) as caught:
        agent.run()
    assert not handler.shut_down
    assert signal.set_wakeup_fd(-1) == -1  # put back
    handler.release()
    handler.shutdown()
    assert caught.value.sigval is signal.SIGINT
    assert agent.calls == ["shutdown SIGINT"]


def test_a_stop_during_a_restart_is_not_overtaken_by_it():
    agent = PretendAgent(FakeRendezvous(), [FAILED], [SUCCEEDED])
    agent.on_stop = lambda: send(signal.SIGTERM)
    agent.fails(SignalException)


def test_a_stop_signal_that_comes_when_success_was_seen_does_not_undo_it():
    class Late(PretendAgent):
        def _monitor_workers(self, worker_group):
            result = super()._monitor_workers(worker_group)
            send(signal.SIGTERM)
            return result

    assert Late(FakeRendezvous(), [SUCCEEDED]).run() is SUCCEEDED


def test_of_two_stop_signals_at_once_the_first_one_is_the_workers_and_the_ends():
    def send_both():
        send(signal.SIGINT)
        send(signal.SIGTERM)

    agent = PretendAgent(FakeRendezvous(), [send_both])
    with pytest.raises(SignalException) as caught:
        agent.run()
    assert agent.calls == ["start", "stop", f"shutdown {caught.value.sigval.name}"]


@pytest.mark.parametrize(
    "signums",
    [
        pytest.param([signal.SIGUSR1, signal.SIGUSR2], id="what the policy says"),
        pytest.param([signal.SIGUSR1] * 3, id="what comes again at once is passed on once"),
    ],
)
def test_the_policy_decides_what_a_signal_means(signums):
    policy = Policy(SIGUSR1=SignalAction.NOTIFY, SIGUSR2=SignalAction.IGNORE)
    script = [*(partial(send, signum) for signum in signums), SUCCEEDED]
    agent = PretendAgent(FakeRendezvous(), script, policy=policy)
    assert agent.run() is SUCCEEDED
    assert agent.signals == [signal.SIGUSR1]


def test_off_the_main_thread_signals_are_not_handled_and_this_is_logged(caplog):
    agent = PretendAgent(FakeRendezvous(), [SUCCEEDED])
    results = []
    thread = threading.Thread(target=lambda: results.append(agent.run()))
    thread.start()
    thread.join(30)
    assert results == [SUCCEEDED]
    assert "signals are not handled" in caplog.text


def test_an_inherited_ignored_hangup_stays_ignored():
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        agent = PretendAgent(FakeRendezvous(), [lambda: send(signal.SIGHUP), SUCCEEDED])
        assert agent.run() is SUCCEEDED
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_after_success_the_other_nodes_are_waited_for(caplog):
    store = Store()
    handler = FakeRendezvous(rank=1, world_size=2, store=store)
    store.set("torchelastic/assigned_ranks/1", "[1, 2, 1, 2]")
    agent = PretendAgent(handler, [SUCCEEDED])
    assert agent.run() is SUCCEEDED
    assert store.waited == [(["torchelastic/agent/terminal_state/last_member"], 300)]
    assert "waiting for the other nodes failed: timed out" in caplog.text


def test_the_last_node_frees_the_others():
    store = Store()
    store.add("torchelastic/agent/terminal_state/num_members", 1)
    handler = FakeRendezvous(rank=0, world_size=2, store=store)
    for rank in range(2):
        info = f'{{"role": "trainer", "rank": {rank}, "local_world_size": 1}}'
        store.set(f"torchelastic/role_info/{rank}", info)
    assert PretendAgent(handler, [SUCCEEDED]).run() is SUCCEEDED
    assert "torchelastic/agent/terminal_state/last_member" in store.values


def test_a_loop_that_stands_in_a_plain_handler_does_not_count_as_alive():
    clock = Clock()
    alive = LoopWatchdog(1000.0, clock=clock)
    overdue = []

    class Slow(FakeRendezvous):
        def num_nodes_waiting(self):
            for _ in range(3):
                clock.now += 4
                overdue.append(alive.overdue())
            return 0

    agent = PretendAgent(Slow(), [RunResult(WorkerState.HEALTHY), SUCCEEDED], watchdog=alive)
    assert agent.run() is SUCCEEDED
    assert overdue[:3] == [0, 0, 12]


def test_what_holds_the_loop_can_ask_whether_to_stop():
    found = []

    def hold():
        found.append(agent.is_asked_to_end())
        for signum in (signal.SIGUSR1, signal.SIGTERM):
            signal.raise_signal(signum)
            found.append(agent.is_asked_to_end())
        return RunResult(WorkerState.HEALTHY)

    policy = Policy(SIGUSR1=SignalAction.NOTIFY, SIGTERM=SignalAction.STOP)
    agent = PretendAgent(FakeRendezvous(), [hold, SUCCEEDED], policy=policy)
    assert not agent.is_asked_to_end()
    with pytest.raises(SignalException, match="SIGTERM"):
        agent.run()
    assert found == [False, False, True]
    assert policy.asked == [signal.SIGUSR1, signal.SIGTERM]  # once for each


@pytest.mark.parametrize("result", [SUCCEEDED, FAILED])
@pytest.mark.parametrize("end", ["SIGINT", "SIGTERM", "a request"])
def test_a_slow_console_is_waited_for_until_something_ends_that(result, end):
    agent = PretendAgent(FakeRendezvous(), [result], max_restarts=0)
    streams = with_console(agent)

    def end_it():
        streams.is_waiting.wait(30)
        if end == "a request":
            agent.request(RequestKind.STOP, "enough", "a test")
        else:
            send(signal.Signals[end])

    with meanwhile(end_it):
        assert agent.run().state is result.state
    assert streams.waits == [math.inf]
    (told,) = agent.notifications.of(notifications.ConsoleAwaited)
    assert told.waiting_bytes == 4


@pytest.mark.parametrize(
    "script", [[lambda: send(signal.SIGTERM)], [RendezvousTimeoutError("no store")]]
)
def test_after_a_signal_or_an_error_a_slow_console_has_some_seconds(script):
    agent = PretendAgent(FakeRendezvous(), script)
    streams = with_console(agent)
    with pytest.raises((SignalException, RendezvousTimeoutError)):
        agent.run()
    (timeout,) = streams.waits
    assert timeout < 10


def test_a_restart_whose_round_did_not_form_is_used_in_the_next_run():
    handler = FakeRendezvous()
    agent = PretendAgent(handler, [FAILED], [FAILED], [SUCCEEDED], max_restarts=1)
    join, error = handler.next_rendezvous, RendezvousTimeoutError("no other node")

    def fail_once():
        if handler.rounds == 1:
            handler.next_rendezvous = join
            raise error
        return join()

    handler.next_rendezvous = fail_once
    with pytest.raises(RendezvousTimeoutError):
        agent.run()
    assert agent.run().is_failed()
    assert agent.started() == [(0, 0), (1, 1)]


class DelayedJob(FakeJobRendezvous):
    """A job that learns of the delay of its next round while it waits for it."""

    delay = 0.0

    def restart_delay(self):
        return self.delay


def test_a_delay_that_is_known_late_is_reported_once_and_no_longer_shown_after_a_signal():
    with DelayedJob() as handler:
        handler.hold()
        agent = PretendAgent(handler)

        def delay_then_interrupt():
            handler.joining.wait(30)
            handler.delay = 600.0
            wait_until(
                lambda: agent.notifications.of(notifications.RestartDelayed), "the delay is known"
            )
            handler.delay = 599.0
            assert agent.snapshot().waits_for
            send(signal.SIGTERM)

        with meanwhile(delay_then_interrupt), pytest.raises(SignalException):
            agent.run()
        handler.release()
        assert agent.snapshot().waits_for == ""
    assert [one.seconds for one in agent.notifications.of(notifications.RestartDelayed)] == [600.0]


def test_two_failures_soon_after_each_other_are_both_logged(caplog):
    agent = PretendAgent(FakeRendezvous(), [FAILED], [FAILED], [SUCCEEDED], max_restarts=2)
    assert agent.run().state is WorkerState.SUCCEEDED
    assert sum("restart" in message for message in caplog.messages) == 2


def test_a_restart_has_no_time_limit_for_the_start():
    clock = Clock()
    reporter = WaitReporter(start_timeout=5, clock=clock)

    class Agent(PretendAgent):
        def _start_workers(self, worker_group):
            clock.now += 10
            return super()._start_workers(worker_group)

    agent = Agent(FakeRendezvous(), [FAILED], [SUCCEEDED], max_restarts=1, wait_reporter=reporter)
    assert agent.run().state is WorkerState.SUCCEEDED
    assert reporter.report(FakeRendezvous()) is None


def test_what_holds_workers_is_sampled_while_they_run():
    agent = PretendAgent(FakeRendezvous(), [lambda: None, SUCCEEDED])
    sampled = []
    agent._workers.holds.sample_if_due = lambda pids: sampled.append([*pids])
    assert agent.run().state is WorkerState.SUCCEEDED
    assert sampled


@pytest.mark.parametrize(("is_past", "verdict"), [(False, "stopped"), (True, None)])
def test_a_snapshot_has_the_verdict_of_a_job_that_this_node_was_in(is_past, verdict):
    with FakeJobRendezvous("job") as handler:
        handler.conclude(JobOutcome.STOPPED, is_past=is_past)
        assert PretendAgent(handler).snapshot().verdict == verdict


def test_successes_of_workers_are_passed_on_while_others_run():
    with FakeJobRendezvous("job", ends=True) as handler:
        noted = []
        handler.note_succeeded = noted.append
        assert PretendAgent(handler, [lambda: None, SUCCEEDED]).run().state.name == "SUCCEEDED"
        assert noted


def test_new_workers_have_got_no_signal():
    agent = PretendAgent(FakeRendezvous(), [FAILED], [SUCCEEDED], max_restarts=1)
    forgotten = []
    and_then(agent._components.forwarded, "forget", lambda: forgotten.append(len(agent.calls)))
    agent.run()
    assert forgotten == [0, 2]  # before each start


def test_subclasses_find_the_restarts_left_where_torch_has_them():
    agent = PretendAgent(FakeRendezvous(), [FAILED], [SUCCEEDED], max_restarts=3)
    assert agent._remaining_restarts == 3
    agent.run()
    assert agent._remaining_restarts == 2
