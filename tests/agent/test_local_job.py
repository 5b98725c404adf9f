"""The job of one member behind a plain handler: restarts, delays and the end."""

from __future__ import annotations

import signal
import time
from types import SimpleNamespace

import pytest
from plaunch.agent import RestartDelayed, WorkerSpec, WorkerState
from plaunch.agent.local_job import LocalJob
from plaunch.errors import RendezvousClosedError, SignalException
from plaunch.plugin import PluginContext
from plaunch.process import ProcessFailure
from plaunch.rendezvous import ChangeKind, JobRendezvous, RendezvousInfo
from plaunch.testing import FakeElasticRendezvous
from plaunch.testing.rendezvous import FakeRendezvous
from plaunch_restarts.policies import StandardRestartPolicy

from helpers.agents import UP, Node
from helpers.calls import Call
from helpers.clock import Clock
from helpers.policies import Policy, restart, stop
from helpers.signals import send
from helpers.stores import Store
from helpers.waiting import wait_until

FAILS_TWICE = UP + "up()\nsys.exit(3 if round_ < 2 else 0)\n"
HOUR = 3600.0


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path, FakeRendezvous())


@pytest.fixture
def clock():
    return Clock()


class Job(LocalJob):
    """A job that counts how often it wakes the agent."""

    def __init__(self, handler=None, policy=None, *, max_restarts=0, wait=lambda: None, **options):
        spec = WorkerSpec(
            "trainer", 1, handler or FakeRendezvous(), entrypoint="x", max_restarts=max_restarts
        )
        self.wake_ups = 0
        super().__init__(
            spec,
            policy,
            wait_for_peers=wait,
            wake=self.count,
            is_running=lambda: self.runs,
            is_asked_to_end=lambda: self.ends,
            **{"attempt": 0, **options},
        )
        self.runs, self.ends = True, False

    def count(self):
        self.wake_ups += 1

    def fail(self, exitcode=17, **options):
        failure = ProcessFailure(0, 4242, exitcode, "")
        self.report_failure({0: failure}, **options)

    def starts(self):
        """The next round, as attempt and reason."""
        formed = self.next_rendezvous()
        return formed.attempt, formed.decision


def test_it_is_a_job():
    assert isinstance(Job(), JobRendezvous)


# --- restarts -------------------------------------------------------------------------------------


def test_the_policy_decides_and_max_restarts_does_not(node, caplog):
    policy = Policy(restart(reason="why not"), restart(reason="for luck"))
    result = node.run(FAILS_TWICE, nproc=1, max_restarts=0, restart_policy=policy)
    assert result.state is WorkerState.SUCCEEDED
    assert node.starts() == ["0.0.0", "1.1.0", "2.2.0"]
    assert "failed: exit code 3; why not" in caplog.text
    (first, before), (second, history) = policy.asked
    assert (first.rank, first.exitcode, first.attempt, before) == (0, 3, 0, ())
    assert 0 < first.started < 60
    assert (second.attempt, [one.decision.reason for one in history]) == (1, ["why not"])


def test_the_account_of_earlier_attempts_has_all_of_the_exception(node):
    fails = "raise RuntimeError('disk full; free 3 GB: now (or later)')"
    result = node.run(fails, nproc=1, max_restarts=1)
    (earlier,) = result.earlier
    assert earlier.cause.endswith("RuntimeError: disk full; free 3 GB: now (or later) (<string>:1)")


def test_the_policy_may_end_the_job_with_a_reason(node):
    policy = Policy(stop("it is hopeless"))
    result = node.run(FAILS_TWICE, nproc=1, max_restarts=9, restart_policy=policy)
    assert result.state is WorkerState.FAILED
    assert node.starts() == ["0.0.0"]
    assert result.no_restart == "it is hopeless"


def test_max_restarts_decides_if_the_policy_does_not(node):
    result = node.run(FAILS_TWICE, nproc=1, max_restarts=1, restart_policy=Policy(None, None))
    assert result.state is WorkerState.FAILED
    assert node.starts() == ["0.0.0", "1.1.0"]


def test_restarts_are_counted_and_then_the_job_has_failed():
    job = Job(max_restarts=2, attempt=1)
    assert job.starts() == (1, "")
    job.fail()
    assert job.verdict is None
    assert job.starts() == (2, "restart 2 of 2")
    job.fail()
    assert (job.verdict.outcome, list(job.verdict.failures)) == ("failed", [0])
    with pytest.raises(RendezvousClosedError, match="exit code 17"):
        job.next_rendezvous()


def test_a_restart_can_cost_nothing():
    job = Job(policy=Policy(restart(costs=False)))
    job.next_rendezvous()
    job.fail()
    assert job.starts()[0] == 0


def test_a_failure_that_no_restart_can_help_is_final():
    policy = Policy()
    job = Job(policy=policy, max_restarts=3)
    job.fail(is_final=True)
    assert job.verdict.outcome == "failed"
    assert policy.asked == []


def test_a_service_that_fails_for_years_keeps_the_latest_failures():
    policy = Policy(*[restart()] * 1002)
    job = Job(policy=policy)
    for _ in range(1002):
        job.fail()
    _, history = policy.asked[-1]
    assert [history[0].failure.attempt, history[-1].failure.attempt] == [1, 1000]


def run_on(clock, gaps, max_restarts, **options):
    """Let a job fail after each of these times of work; the delays of its restarts, in seconds."""
    settings = {"max_restarts": max_restarts}
    context = PluginContext("job", "default", "node", settings=settings, options=options)
    job = Job(policy=StandardRestartPolicy(context), clock=clock)
    delays = []
    for gap in gaps:
        job.next_rendezvous()
        clock.now += gap
        job.report_failure({0: ProcessFailure(0, 4242, 17, "", timestamp=clock())})
        if job.verdict is not None:
            break
        delays.append(job.restart_delay())
        clock.now += delays[-1]
        job.request_round("time has passed")
    return delays


@pytest.mark.parametrize(
    ("gaps", "options", "restarts"),
    [
        ([HOUR] * 100, {"restart_window": "59m"}, 100),
        ([HOUR] * 100, {"restart_window": "61m"}, 1),
        ([HOUR] * 100, {}, 1),
        ([HOUR, 60.0, 60.0], {"restart_window": "59m"}, 1),
    ],
)
def test_a_window_over_hours_of_work(clock, gaps, options, restarts):
    assert len(run_on(clock, gaps, 1, **options)) == restarts


def test_delays_over_hours_of_work(clock):
    options = {"restart_delay": "1s:60s", "crash_loop": "off"}
    delays = run_on(clock, [5.0] * 9, 9, **options)
    assert delays[0] == 0.0
    assert delays[1:] == sorted(delays[1:])
    assert 1.0 <= delays[1] < 2.0
    assert 45.0 <= delays[-1] <= 60.0
    # Failures outside the window do not count any more.
    assert run_on(clock, [HOUR] * 9, 9, restart_window="59m", **options) == [0.0] * 9


def test_a_crash_loop_is_one_of_short_lives(clock):
    assert len(run_on(clock, [29.0] * 9, 9)) == 2
    assert len(run_on(clock, [31.0] * 9, 9)) == 9


# --- delays ---------------------------------------------------------------------------------------


def test_a_delayed_round_describes_what_it_waits_for():
    job = Job(policy=Policy(restart(delay=600.0)))
    job.fail()
    assert job.restart_delay() == 600.0
    joining = Call(job.next_rendezvous)
    wait_until(lambda: 0 < job.restart_delay() < 600.0, "the delay")
    assert "the time of the restart" in job.describe_wait()
    job.request_round("now")
    assert joining.get().attempt == 1
    assert job.restart_delay() == 0.0
    assert job.describe_wait() == "the rendezvous backend 'fake'"


@pytest.mark.parametrize("method", ["announce_leave", "end_job"])
def test_the_end_of_the_job_ends_the_delay(method):
    handler = FakeRendezvous()
    job = Job(handler, policy=Policy(restart(delay=600.0)))
    job.fail()
    joining = Call(job.next_rendezvous)
    getattr(job, method)("SIGTERM received")
    with pytest.raises(RendezvousClosedError):
        joining.get()
    assert handler.rounds == 0


def test_a_stop_signal_ends_the_delay(node, caplog):
    policy = Policy(restart(delay=600.0))
    with pytest.raises(SignalException):
        node.run(
            FAILS_TWICE,
            lambda: (
                wait_until(lambda: node.notifications.of(RestartDelayed), "the delay"),
                send(signal.SIGTERM),
            ),
            nproc=1,
            after=["0.0.0"],
            restart_policy=policy,
        )
    assert node.starts() == ["0.0.0"]


def test_a_delay_passes(node):
    policy = Policy(restart(delay=0.2), restart())
    assert node.run(FAILS_TWICE, nproc=1, restart_policy=policy).state is WorkerState.SUCCEEDED
    (delayed,) = node.notifications.of(RestartDelayed)
    assert (delayed.seconds, delayed.group.state) == (0.2, WorkerState.STOPPED)


# --- other nodes, and the end ---------------------------------------------------------------------


def test_a_handler_that_cannot_report_changes_is_polled():
    handler = FakeRendezvous()
    job = Job(handler)
    assert (job.fileno(), job.is_observable, list(job.changes())) == (-1, False, [])
    handler.nodes_waiting = 1
    assert [change.kind for change in job.changes()] == [ChangeKind.ARRIVED]


@pytest.mark.parametrize("phase", ["running", "another"])
def test_a_handler_is_polled_only_while_workers_run(phase):
    handler = FakeRendezvous()
    handler.nodes_waiting = 1
    job = Job(handler)
    job.runs = phase == "running"
    assert bool(job.changes()) is job.runs


def test_a_request_before_a_failure_does_not_skip_its_delay():
    job = Job(policy=Policy(restart(delay=600.0)))
    job.next_rendezvous()
    job.request_round("too early")
    job.fail()
    joining = Call(job.next_rendezvous)
    assert not joining.ended(0.1)
    job.request_round("now")
    assert joining.get().attempt == 1


def test_a_node_that_is_to_end_does_not_wait_for_others():
    job = Job(FakeRendezvous(world_size=2), wait=pytest.fail)
    job.next_rendezvous()
    job.ends = True
    job.report_success()
    assert job.verdict.outcome == "succeeded"


def test_a_handler_that_reports_changes_is_not_polled():
    with FakeElasticRendezvous() as handler:
        job = Job(handler)
        assert (job.fileno(), job.is_observable) == (handler.fileno(), True)
        handler.nodes_waiting = 1
        assert list(job.changes()) == []
        handler.lose("b")
        assert [(change.kind, change.node) for change in job.changes()] == [(ChangeKind.LOST, "b")]


def test_a_job_of_one_node_ends_with_its_success():
    job = Job(wait=pytest.fail)
    job.next_rendezvous()
    job.report_success()
    assert (job.verdict.outcome, job.wake_ups) == ("succeeded", 1)


@pytest.mark.parametrize("error", [None, RuntimeError("the store is gone")])
def test_the_workers_of_other_nodes_are_awaited(error, caplog):
    entered, left = Store(), Store()

    def wait():
        entered.set("entered", "1")
        left.get("left")
        if error is not None:
            raise error

    job = Job(FakeRendezvous(world_size=2), wait=wait)
    job.next_rendezvous()
    job.report_success()
    entered.get("entered")
    assert job.verdict is None
    left.set("left", "1")
    wait_until(lambda: job.wake_ups, "the end of the wait")
    assert job.verdict.outcome == "succeeded"
    assert ("waiting for the other nodes failed: the store is gone" in caplog.text) is bool(error)


def test_nodes_that_arrive_after_own_success_start_no_round():
    handler = FakeRendezvous(world_size=2)
    job = Job(handler, wait=lambda: time.sleep(60))
    job.next_rendezvous()
    handler.nodes_waiting = 1
    assert list(job.changes())
    job.report_success()
    assert list(job.changes()) == []
    with FakeElasticRendezvous(world_size=2) as observed:
        job = Job(observed, wait=lambda: time.sleep(60))
        job.next_rendezvous()
        job.report_success()
        observed.arrive("b")
        assert list(job.changes()) == []


@pytest.mark.parametrize(("ended", "outcome"), [({}, None), ({0: 1.0}, "succeeded")])
def test_a_handler_that_closes_after_own_success_has_ended_well(ended, outcome):
    with FakeElasticRendezvous() as handler:
        job = Job(handler)
        job.next_rendezvous()
        job.note_succeeded(ended)
        handler.close()
        assert [change.kind for change in job.changes()] == [ChangeKind.CLOSED]
        assert (job.verdict and job.verdict.outcome) == outcome


def test_the_first_end_counts():
    job = Job()
    job.end_job("enough")
    job.fail(is_final=True)
    job.report_success()
    assert (job.verdict.outcome, job.verdict.reason) == ("stopped", "enough")


def test_agents_open_no_store_for_themselves():
    handler, opened, store = FakeRendezvous(), [], Store()
    where = handler.next_rendezvous().bootstrap_store_info
    infos = [
        RendezvousInfo(None, 0, 1, where, open_store=lambda: opened.append(1)),
        # torch's own class has one store.
        SimpleNamespace(store=store, rank=0, world_size=1, bootstrap_store_info=where),
    ]
    handler.next_rendezvous = lambda: infos.pop(0)
    job = Job(handler)
    assert job.next_rendezvous().agent_store is None
    assert job.next_rendezvous().agent_store is store
    assert opened == []
