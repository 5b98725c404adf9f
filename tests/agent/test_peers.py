"""The agent in a job that decides for all of its nodes, with workers that are only pretended."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from dataclasses import replace

import pytest
from plaunch.agent import (
    EventLog,
    LaunchStarted,
    RequestKind,
    RunResult,
    WorkerState,
    notifications,
    peers,
)
from plaunch.errors import (
    PluginError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    SignalException,
    UnkillableWorkerError,
    WorkerStartError,
)
from plaunch.process.failure import ProcessFailure
from plaunch.process.signals import SignalAction
from plaunch.rendezvous import JobRendezvous, WorldRanks
from plaunch.testing import FakeJobRendezvous
from plaunch_events import EventStream

from helpers.agents import SUCCEEDED, PretendAgent, and_then
from helpers.groups import make_group
from helpers.signals import Policy, send


def elsewhere(rank=7, at=999.0, exitcode=17, *, pid=12, host="b"):
    more = {"host": host, "global_rank": rank, "timestamp": at}
    return {rank: ProcessFailure(0, pid, exitcode, "", **more)}


def failed(rank=0):
    failures = elsewhere(rank, at=1000.0, exitcode=3, pid=4242, host="here")
    return RunResult(WorkerState.FAILED, failures=failures)


@pytest.fixture
def job(request):
    with FakeJobRendezvous(**getattr(request, "param", {})) as handler:
        yield handler


def restarts(count, **more):
    return pytest.mark.parametrize("job", [{"max_restarts": count, **more}], indirect=True)


def said(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def stream_of(agent, handler, error=None):
    """The events that a recorder makes of what the agent has told."""
    log = EventLog()
    log.add(LaunchStarted(make_group(max_restarts=handler.max_restarts), "train.py"))
    for notification in agent.notifications:
        log.add(notification)
    log.finish(error)
    events = EventStream(log).take()
    return [(event.name.removeprefix("plaunch."), event.metadata) for event in events]


def of(stream, name, *keys):
    return [tuple(told[key] for key in keys) for named, told in stream if named == name]


def test_the_fake_is_what_it_pretends_to_be(job):
    assert isinstance(job, JobRendezvous)


def test_success_is_reported_and_ends_with_the_job(job, caplog):
    agent = PretendAgent(job, [SUCCEEDED])
    assert agent.run() is SUCCEEDED
    assert job.successes == 1
    assert agent.calls == ["start", "shutdown SIGTERM"]
    assert said(caplog) == []


# --- failures -------------------------------------------------------------------------------------


@restarts(1)
def test_a_failure_is_reported_and_restarted_as_the_job_decides(job, caplog):
    agent = PretendAgent(job, [failed()], [SUCCEEDED])
    assert agent.run() is SUCCEEDED
    assert agent.started() == [(0, 0), (1, 1)]
    (earlier,) = agent._loop.results.earlier
    assert (earlier.attempt, earlier.cause) == (0, "rank 0 on here (pid 4242) failed: exit code 3")
    ((failures, is_final),) = job.reported
    assert (list(failures), failures[0].began, is_final) == ([0], 1000.0, False)
    assert said(caplog) == ["rank 0 on here (pid 4242) failed: exit code 3; restart 1 of 1"]


@restarts(1)
def test_a_failure_is_reported_before_the_workers_are_stopped(job):
    agent = PretendAgent(job, [failed()], [SUCCEEDED])
    agent.on_stop = lambda: agent.calls.append(len(job.reported))
    agent.run()
    assert agent.calls[:3] == ["start", "stop", 1]


@restarts(0)
def test_without_a_restart_left_the_job_ends_with_its_first_failure(job, caplog):
    agent = PretendAgent(job, [failed(rank=2)])
    result = agent.run()
    assert result.is_failed()
    assert (result.first_failure, list(result.failures)) == (2, [2])
    assert agent.get_worker_group().state is WorkerState.FAILED
    assert said(caplog) == []  # the report says it
    assert job.successes == 0


@restarts(2)
def test_a_failure_elsewhere_restarts_this_node_too(job, caplog):
    agent = PretendAgent(
        job,
        [lambda: job.fail_elsewhere(elsewhere(), "b")],
        [lambda: job.fail_elsewhere(elsewhere(rank=6), "b")],
        [SUCCEEDED],
    )
    assert agent.run() is SUCCEEDED
    assert agent.started() == [(0, 0), (1, 1), (2, 2)]
    assert job.reported == []
    assert said(caplog) == [
        "rank 7 on b (pid 12) failed: exit code 17; restart 1 of 2",
        "rank 6 on b (pid 12) failed: exit code 17; restart 2 of 2",
    ]
    stream = stream_of(agent, job)
    assert of(stream, "membership.changed", "kind", "node")[0] == ("failed", "b")
    assert of(stream, "restart", "cause", "attempt") == [("failure", 1), ("failure", 2)]


@restarts(0)
def test_a_failure_elsewhere_ends_this_node_with_the_same_cause(job):
    agent = PretendAgent(job, [lambda: job.fail_elsewhere(elsewhere())])
    result = agent.run()
    assert result.first_failure == 7
    failure = result.failures[7]
    assert (failure.host, failure.pid, failure.exitcode) == ("b", 12, 17)
    assert agent.calls == ["start", "stop", "shutdown SIGTERM"]


@restarts(0)
def test_own_failures_at_the_same_time_are_reported_after_the_first(job):
    """The change is there already, but the own worker failed by itself."""
    agent = PretendAgent(job, [lambda: job.fail_elsewhere(elsewhere()), failed(rank=1)])
    result = agent.run()
    assert list(job.reported[0][0]) == [1]
    assert (result.first_failure, list(result.failures)) == (7, [7, 1])


@pytest.mark.parametrize("change", ["fail_elsewhere", "lose"])
@restarts(1, world_size=2)
def test_after_a_change_own_workers_are_checked_for_failures_once_more(job, change):
    def happen():
        if change == "lose":
            job.lose()
        else:
            job.fail_elsewhere(elsewhere(at=2000.0))

    agent = PretendAgent(job, [happen, failed()], [SUCCEEDED])
    agent.run()
    assert len(job.reported) == 1
    assert agent.started() == [(0, 0), (1, 1)]


@restarts(1)
def test_a_success_at_the_time_of_a_failure_elsewhere_does_not_count(job):
    """The round is over; its change must not get lost behind the success."""
    agent = PretendAgent(job, [lambda: job.fail_elsewhere(elsewhere()), SUCCEEDED], [SUCCEEDED])
    assert agent.run() is SUCCEEDED
    assert agent.started() == [(0, 0), (1, 1)]
    assert job.successes == 1


@restarts(1, world_size=3)
def test_a_failure_of_a_worker_that_is_being_stopped_is_not_reported(job):
    agent = PretendAgent(job, [lambda: job.arrive("c")], [SUCCEEDED])
    agent.on_stop = lambda: agent.current.append(failed())
    assert agent.run() is SUCCEEDED
    assert job.reported == []


@restarts(0)
def test_failures_of_an_earlier_round_are_not_in_the_report(job):
    job.max_restarts = 1
    agent = PretendAgent(job, [failed(rank=3)], [lambda: job.fail_elsewhere(elsewhere())])
    assert list(agent.run().failures) == [7]


def test_a_failure_without_details_is_reported(job):
    """A subclass written for torchrun may know no more than that."""
    result = PretendAgent(job, [RunResult(WorkerState.FAILED)]).run()
    ((failures, _),) = job.reported
    assert {rank: failure.text for rank, failure in failures.items()} == {-1: "the workers failed"}
    assert result.is_failed()


# --- membership -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ("arrive", "arrived", "node b arrived: asks to join"),
        ("depart", "left", "node b left: leaves"),
        ("lose", "lost", "node b was lost: missed its heartbeats"),
    ],
)
@restarts(0, world_size=3)
def test_a_change_of_membership_costs_no_attempt(job, change, kind, text, caplog):
    agent = PretendAgent(job, [lambda: getattr(job, change)("b")], [SUCCEEDED])
    assert agent.run() is SUCCEEDED
    assert agent.started() == [(0, 0), (0, 1)]
    assert said(caplog) == [f"{text}; all workers are stopped, and a new round begins"]
    stream = stream_of(agent, job)
    assert of(stream, "membership.changed", "kind", "node")[0] == (kind, "b")
    assert of(stream, "restart", "cause", "attempt", "round") == [("membership", 0, 1)]
    ((reason,),) = of(stream, "restart", "reason")
    assert "b" in reason
    assert of(stream, "launcher.finished", "outcome") == [("succeeded",)]


def test_several_changes_at_once_make_one_round(job):
    def happen():
        job.arrive("b")
        job.arrive("c")
        job.lose("b")

    agent = PretendAgent(job, [happen], [SUCCEEDED])
    assert agent.run() is SUCCEEDED
    assert job.rounds == 2


def test_ranks_and_the_attempt_come_with_the_round(job):
    job.attempt = 4
    job.ranks = WorldRanks(first_global=5, world_size=9, first_role=2, role_world_size=6)
    agent = PretendAgent(job, [SUCCEEDED], nproc=2)
    agent.run()
    groups = [m.group for m in agent.notifications.of(notifications.AfterRendezvous)]
    assert [group.attempt for group in groups] == [4]
    assert [
        (w.global_rank, w.world_size, w.role_rank, w.role_world_size) for w in groups[0].workers
    ] == [(5, 9, 2, 6), (6, 9, 3, 6)]


# --- the end of the job ---------------------------------------------------------------------------


def test_the_job_fails_while_this_node_runs(job, caplog):
    agent = PretendAgent(job, [lambda: job.conclude("failed", elsewhere())])
    assert agent.run().first_failure == 7
    assert agent.calls == ["start", "stop", "shutdown SIGTERM"]
    assert said(caplog) == []  # the report says it
    told = of(stream_of(agent, job), "failure", "global_rank", "failed_host", "is_first")
    assert told == [(7, "b", True)]


@restarts(3, ends=False)
def test_the_job_fails_while_this_node_waits(job):
    agent = PretendAgent(job, [SUCCEEDED])
    and_then(job, "report_success", lambda: job.conclude("failed", elsewhere(exitcode=-9)))
    result = agent.run()
    assert (result.first_failure, result.failures[7].exitcode) == (7, -9)
    assert agent.get_worker_group().state is WorkerState.FAILED


def test_the_error_of_a_closed_job_has_the_node_and_the_reason(job):
    agent = PretendAgent(job, [lambda: job.conclude("closed", node="c", reason="enough")])
    error = agent.fails(RendezvousClosedError, r"closed.*node c at \d{4}-.*: enough")
    assert error.exit_code == 112


def test_the_verdict_of_a_handler_may_have_the_word():
    class WithWords(FakeJobRendezvous):
        @property
        def verdict(self):
            found = super().verdict
            return found and replace(found, outcome=found.outcome.value)

    with WithWords() as job:
        agent = PretendAgent(job, [lambda: job.conclude("failed", elsewhere())])
        assert agent.run().first_failure == 7


STOPPED_ELSEWHERE = "node b requests the end of the job (plaunchctl: budget); "


def stopped(agent, job):
    with pytest.raises(SignalException) as caught:
        agent.run()
    assert str(caught.value) == f"{STOPPED_ELSEWHERE}the workers were stopped"
    assert caught.value.sigval == signal.SIGTERM
    assert agent.has_ended_job
    stream = stream_of(agent, job, caught.value)
    assert of(stream, "launcher.finished", "outcome", "exit_code") == [("signalled", 143)]


def stop_elsewhere(job, **more):
    job.conclude("stopped", node="b", reason="plaunchctl: budget", **more)


@restarts(3, world_size=2)
def test_a_stop_that_another_node_received_is_one_for_this_node(job, caplog):
    agent = PretendAgent(job, [lambda: stop_elsewhere(job)])
    stopped(agent, job)
    assert said(caplog) == [f"{STOPPED_ELSEWHERE}the workers are stopped"]
    assert (job.ended, job.farewells) == ([], [])  # the job knows it


@restarts(3, world_size=2)
def test_a_stop_that_another_node_received_while_workers_stop_for_a_restart(job):
    agent = PretendAgent(job, [lambda: job.fail_elsewhere(elsewhere())])
    agent.on_stop = lambda: stop_elsewhere(job)
    stopped(agent, job)
    assert job.rounds == 1


def test_a_stop_that_another_node_received_while_this_one_waits_for_a_round(job, caplog):
    stop_elsewhere(job)
    stopped(PretendAgent(job), job)
    assert said(caplog) == [f"{STOPPED_ELSEWHERE}no worker is running"]


def test_a_node_that_joins_after_a_stop_is_refused(job):
    stop_elsewhere(job, is_past=True)
    with pytest.raises(RendezvousClosedError, match="has ended"):
        PretendAgent(job).run()


@restarts(0, ends=False)
def test_a_stop_that_another_node_received_takes_no_success_away(job, caplog):
    agent = PretendAgent(job, [SUCCEEDED])
    job.report_success = lambda: stop_elsewhere(job)
    assert agent.run() is SUCCEEDED
    assert said(caplog)[-1].startswith(f"{STOPPED_ELSEWHERE}the workers of this node have succeed")


def test_a_stop_that_this_node_received_is_described_as_elsewhere(job, caplog):
    agent = PretendAgent(job, [lambda: agent.request(RequestKind.STOP, "budget", "plaunchctl")])
    with pytest.raises(SignalException) as caught:
        agent.run()
    what = f"node {socket.gethostname()} requests the end of the job (plaunchctl: budget); "
    assert str(caught.value) == f"{what}the workers were stopped"
    assert said(caplog) == [f"{what}the workers are stopped"]
    assert job.ended == ["plaunchctl: budget"]


def test_a_stop_that_this_node_received_after_the_job_had_failed_changes_nothing(job):
    """The verdict is older than the request, and the other nodes end with the failure."""
    agent = PretendAgent(job, [lambda: agent.request(RequestKind.STOP, "budget", "plaunchctl")])
    job.end_job = lambda reason: job.conclude("failed", elsewhere())
    assert agent.run().first_failure == 7
    assert agent.notifications[-1].outcome == "failed"


def test_a_failed_job_that_names_no_failure_is_closed(job):
    agent = PretendAgent(job, [lambda: job.conclude("failed", reason="node b went mad")])
    agent.fails(RendezvousClosedError, r"failed, .*node b went mad")


@pytest.mark.parametrize("outcome", ["closed", "succeeded"])
def test_a_node_that_joins_after_the_end_gets_an_error_of_the_rendezvous(job, outcome):
    job.conclude(outcome)
    with pytest.raises(RendezvousClosedError, match="the fake job 'test' has ended"):
        PretendAgent(job).run()


def test_a_node_that_joins_after_a_failure_gets_its_cause(job):
    job.conclude("failed", elsewhere())
    assert PretendAgent(job).run().first_failure == 7


def test_a_spare_that_was_not_needed_has_succeeded(job):
    def next_rendezvous():
        raise RendezvousGracefulExitError("the job has succeeded without this node")

    job.next_rendezvous = next_rendezvous
    agent = PretendAgent(job)
    assert agent.run().state is WorkerState.SUCCEEDED
    stream = stream_of(agent, job)
    assert of(stream, "rendezvous.failed", "reason") == [
        ("the job has succeeded without this node",)
    ]
    assert of(stream, "launcher.finished", "outcome", "exit_code", "reason") == [
        ("not_needed", 0, "the job has succeeded without this node")
    ]


@restarts(0, ends=False)
def test_a_newcomer_just_before_the_end_takes_no_success_away(job):
    agent = PretendAgent(job, [SUCCEEDED])
    job.report_success = lambda: job.arrive("late")
    agent.on_stop = lambda: job.conclude("succeeded")
    assert agent.run() is SUCCEEDED
    assert job.rounds == 1


# --- waiting for the others -----------------------------------------------------------------------


@restarts(1, world_size=2, ends=False)
@pytest.mark.parametrize(
    "change",
    [
        lambda job: job.fail_elsewhere(elsewhere()),
        lambda job: job.lose(),
        lambda job: job.depart(),
        lambda job: job.arrive(),
    ],
    ids=["failed", "lost", "left", "arrived"],
)
def test_a_change_cancels_the_wait_at_once(job, change):
    """With patience for ever, only the handler's descriptor can end the wait."""
    agent = PretendAgent(job, [SUCCEEDED], [SUCCEEDED], exit_barrier_timeout=float("inf"))

    def go_on():
        if job.rounds == 1:
            change(job)
        else:
            job.conclude("succeeded")

    and_then(job, "report_success", go_on)
    assert agent.run() is SUCCEEDED
    assert [round_ for _, round_ in agent.started()] == [0, 1]
    assert job.successes == 2


@restarts(0, ends=False)
def test_a_long_wait_is_logged_once(job, caplog, monkeypatch):
    monkeypatch.setattr(peers, "_LOG_AFTER", 0.0)
    caplog.set_level(logging.INFO, "plaunch")
    assert PretendAgent(job, [SUCCEEDED], exit_barrier_timeout=0.1).run() is SUCCEEDED
    waits = [one for one in caplog.messages if one.endswith("it waits for other nodes")]
    assert len(waits) == 1


@restarts(0, ends=False)
def test_the_wait_is_bounded(job, caplog):
    assert PretendAgent(job, [SUCCEEDED], exit_barrier_timeout=0.01).run() is SUCCEEDED
    (text,) = said(caplog)
    assert "have not finished 0.01 s after this one (--exit-barrier-timeout)" in text


@restarts(0, ends=False)
def test_a_stop_signal_ends_the_wait_and_keeps_the_success(job):
    agent = PretendAgent(job, [SUCCEEDED])
    job.report_success = lambda: send(signal.SIGTERM)
    assert agent.run() is SUCCEEDED


@restarts(0, ends=False)
def test_notices_reach_a_node_that_waits(job):
    agent = PretendAgent(job, [SUCCEEDED])

    def notice_and_end():
        job.notice(signal.SIGUSR1)
        job.conclude("succeeded")

    job.report_success = notice_and_end
    assert agent.run() is SUCCEEDED
    assert agent.signals == [signal.SIGUSR1]


# --- notices --------------------------------------------------------------------------------------


def test_a_forwarded_signal_reaches_the_workers_and_the_round_continues(job, caplog):
    agent = PretendAgent(job, [lambda: job.notice(signal.SIGUSR1, "b"), lambda: None, SUCCEEDED])
    assert agent.run() is SUCCEEDED
    assert agent.signals == [signal.SIGUSR1]
    assert job.notices == []
    assert said(caplog) == ["SIGUSR1 received on node b; it is passed on and the job goes on"]
    told = of(stream_of(agent, job), "signal.received", "signal_name", "action", "node")
    assert told == [("SIGUSR1", "notify", "b")]


@pytest.mark.parametrize("signum", [0, -1, 4711, signal.SIGKILL, signal.SIGSTOP])
def test_a_notice_of_no_signal_that_can_be_handled_is_ignored(job, signum, caplog):
    agent = PretendAgent(job, [lambda: job.notice(signum), lambda: None, SUCCEEDED])
    assert agent.run() is SUCCEEDED
    assert agent.signals == []
    assert "it is ignored" in caplog.text


NOTIFY = Policy(SIGUSR1=SignalAction.NOTIFY)


def test_a_signal_here_is_passed_on_to_all_nodes(job):
    script = [lambda: send(signal.SIGUSR1), lambda: None, SUCCEEDED]
    agent = PretendAgent(job, script, policy=NOTIFY)
    assert agent.run() is SUCCEEDED
    assert (agent.signals, job.notices) == ([signal.SIGUSR1], [signal.SIGUSR1])


@pytest.mark.parametrize("is_told_first", [True, False])
def test_a_signal_that_all_launchers_get_is_passed_on_once_by_each(job, is_told_first):
    own, others = lambda: send(signal.SIGUSR1), lambda: job.notice(signal.SIGUSR1, "b")
    script = [own, others, own] if is_told_first else [others, own, others]
    agent = PretendAgent(job, [*script, lambda: None, SUCCEEDED], policy=NOTIFY)
    assert agent.run() is SUCCEEDED
    assert agent.signals == [signal.SIGUSR1]
    # Who has heard of it from another node does not tell it once more.
    assert job.notices == ([signal.SIGUSR1] if is_told_first else [])


# --- errors ---------------------------------------------------------------------------------------


def test_a_node_that_has_lost_touch_ends(job, caplog):
    agent = PretendAgent(job, [lambda: job.cut_off(reason="the store at a:1 is gone since 12:00")])
    error = agent.fails(RendezvousConnectionError, "the store at a:1 is gone since")
    assert error.exit_code == 113
    assert job.reported == []
    assert said(caplog)[0].startswith("the other nodes cannot be reached any more; all workers")
    stream = stream_of(agent, job, error)
    assert of(stream, "membership.changed", "kind") == [("unreachable",)]
    assert of(stream, "launcher.finished", "outcome", "exit_code") == [("error", 113)]


@restarts(0, ends=False)
def test_a_node_that_loses_touch_while_it_waits_does_not_know_how_the_job_ended(job):
    agent = PretendAgent(job, [SUCCEEDED])
    job.report_success = job.cut_off
    with pytest.raises(RendezvousConnectionError):
        agent.run()


@pytest.mark.parametrize("error", [WorkerStartError("no more processes"), PluginError("two clash")])
@restarts(3)
def test_a_node_that_cannot_start_its_workers_ends_the_job(job, error):
    agent = PretendAgent(job, [error])
    assert agent.fails(type(error)) is error
    ((failures, is_final),) = job.reported
    assert (list(failures), is_final) == ([-1], True)
    assert (failures[-1].text, failures[-1].exitcode) == (str(error), error.exit_code)


@restarts(3)
def test_a_node_stays_until_the_job_has_acted_on_its_error(job, monkeypatch):
    """It may host the store from which the others hear of the error."""
    monkeypatch.setattr("plaunch.agent.loop._VERDICT_WAIT", 60.0)
    settle = threading.Timer(0.05, lambda: job.conclude("failed", elsewhere()))
    job.report_failure = lambda failures, is_final: settle.start()
    with pytest.raises(WorkerStartError):
        PretendAgent(job, [WorkerStartError("no more processes")]).run()
    assert job.verdict is not None
    settle.join()


@restarts(3)
@pytest.mark.parametrize(("wait", "signums"), [(0.01, []), (3600.0, [signal.SIGTERM])])
def test_but_not_for_ever_and_not_after_a_stop_signal(job, monkeypatch, wait, signums):
    monkeypatch.setattr("plaunch.agent.loop._VERDICT_WAIT", wait)
    job.report_failure = lambda failures, is_final: None
    agent = PretendAgent(job, [WorkerStartError("no more processes")])
    agent._shutdown = lambda *args, **options: send(*signums)
    with pytest.raises(WorkerStartError):
        agent.run()


@restarts(3)
def test_the_other_nodes_end_with_that_error_too(job):
    failures = elsewhere(rank=-1, exitcode=110)
    result = PretendAgent(job, [lambda: job.conclude("failed", failures)]).run()
    assert (result.first_failure, result.failures[-1].exitcode) == (-1, 110)


def test_a_fault_of_the_agent_ends_the_job(job):
    def fail():
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError):
        PretendAgent(job, [fail]).run()
    ((failures, is_final),) = job.reported
    assert is_final
    assert failures[-1].text == "ZeroDivisionError('a bug')"


@pytest.mark.parametrize("is_given_up", [False, True])
@restarts(3, world_size=2)
def test_a_host_that_cannot_kill_its_workers_reports_no_failure(job, is_given_up):
    """Nor is it told of one that has given its workers up."""

    def get_stuck():
        raise UnkillableWorkerError("pid 7 is stuck")

    agent = PretendAgent(job, [RunResult(WorkerState.UNHEALTHY) if is_given_up else job.arrive])
    agent._workers.are_of_use = lambda: not is_given_up
    agent.on_stop = get_stuck
    agent.fails(UnkillableWorkerError)
    assert job.reported == []


@restarts(3)
def test_a_stop_signal_is_not_reported_as_a_failure(job):
    PretendAgent(job, [lambda: send(signal.SIGTERM)]).fails(SignalException)
    assert job.reported == []
