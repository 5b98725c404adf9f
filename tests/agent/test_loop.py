"""How often an agent looks when nothing happens, and stops that arrive with a failure."""

from __future__ import annotations

import math
import signal

import pytest
from plaunch.agent import LocalElasticAgent, RequestKind, RunResult, WorkerState, notifications
from plaunch.errors import SignalException, WorkerStoreHostError
from plaunch.process.failure import ProcessFailure
from plaunch.testing import FakeJobRendezvous
from plaunch.testing.rendezvous import FakeElasticRendezvous, FakeRendezvous

from helpers.agents import Node, PretendAgent, Stalled, and_then, with_console
from helpers.signals import send
from helpers.waiting import wait_until

INTERVAL = 0.005  # seconds
FEW = 10  # looks; there are a hundred intervals in the life of a worker


def looks_of(agent_class, handler, tmp_path, look="changes", **options):
    """Run one worker that takes a hundred intervals; how often the agent looked."""
    looks = []
    and_then(handler, look, lambda: looks.append(1))
    script = f"import time; time.sleep({100 * INTERVAL})"
    node = Node(tmp_path, handler)
    agent = node.agent(script, nproc=1, kind=agent_class, monitor_interval=INTERVAL, **options)
    assert agent.run().state is WorkerState.SUCCEEDED
    return len(looks)


@pytest.fixture
def elastic():
    with FakeElasticRendezvous(world_size=1) as handler:
        yield handler


def test_an_idle_agent_polls_nothing(elastic, tmp_path):
    assert looks_of(LocalElasticAgent, elastic, tmp_path) <= FEW


def test_a_rendezvous_without_a_descriptor_is_polled_every_interval(tmp_path):
    looks = looks_of(LocalElasticAgent, FakeRendezvous(), tmp_path, look="num_nodes_waiting")
    assert looks > FEW


def test_a_limit_on_uninterruptible_sleep_is_checked_every_interval(elastic, tmp_path):
    looks = looks_of(LocalElasticAgent, elastic, tmp_path, uninterruptible_state_timeout=60)
    assert looks > FEW


def test_without_pidfds_workers_are_polled_every_interval(elastic, tmp_path, monkeypatch):
    monkeypatch.setenv("PLAUNCH_NO_PIDFD", "1")
    assert looks_of(LocalElasticAgent, elastic, tmp_path) > FEW


# --- a stop that arrives with a failure -----------------------------------------------------------


FAILED = RunResult(WorkerState.FAILED, failures={0: ProcessFailure(0, 1000, 1, "")})


def raised_agent(handler, *stops):
    """An agent whose worker has raised an exception and not exited when stops arrive."""

    def stop():
        for request in stops:
            request(agent)

    agent = PretendAgent(handler, [stop, FAILED], max_restarts=0)
    agent._workers.fail_raised = lambda: True
    return agent


def interrupt(_):
    send(signal.SIGINT)


def request_stop(agent):
    agent.request(RequestKind.STOP, "enough", "plaunchctl")


@pytest.mark.parametrize("kind", [FakeRendezvous, FakeJobRendezvous])
@pytest.mark.parametrize("stop", [interrupt, request_stop])
def test_a_stop_that_comes_after_a_failure_limits_the_wait_for_the_console(kind, stop):
    agent = raised_agent(kind(), stop)
    streams = with_console(agent)
    assert agent.run().is_failed()
    assert agent.is_asked_to_end()
    assert streams.waits[0] < math.inf


@pytest.mark.parametrize("kind", [FakeRendezvous, FakeJobRendezvous])
def test_a_key_that_a_wrapper_forwards_leaves_the_failure_the_cause(kind):
    agent = raised_agent(kind(), interrupt)
    agent.on_stop = lambda: send(signal.SIGINT)
    assert agent.run().is_failed()
    assert len(agent.notifications.of(notifications.SignalReceived)) == 2


def break_check(agent):
    def fail():
        raise WorkerStoreHostError("this host has no interpreter")

    agent._workers.fail_raised = fail


def break_signal(agent):
    def fail(*_):
        raise WorkerStoreHostError("this host has no interpreter")

    agent._workers.signal = fail
    agent.signal_workers(signal.SIGUSR1)


@pytest.mark.parametrize("break_it", [break_check, break_signal])
@pytest.mark.parametrize("stop", [interrupt, request_stop])
def test_an_error_that_comes_with_a_stop_ends_the_job_and_keeps_the_stop(break_it, stop, caplog):
    def stop_and_break():
        break_it(agent)
        stop(agent)

    agent = PretendAgent(FakeRendezvous(), [stop_and_break])
    with pytest.raises(WorkerStoreHostError):
        agent.run()
    assert "the launcher has failed, and stops the workers: WorkerStoreHostError" in caplog.text
    assert agent.is_asked_to_end()
    name = "SIGINT" if stop is interrupt else "SIGTERM"
    assert agent.calls == ["start", "stop", f"shutdown {name}"]


class ForwardedTo(Stalled):
    """A console that waits for a forwarded key, and for another signal that follows."""

    agent = None
    was_escalated = None

    def show_rest(self, timeout):
        self._send(signal.SIGINT, 2)
        self._send(signal.SIGTERM, 3)  # the other one has been handled then
        self.was_escalated = self._is_over.is_set()

    def _send(self, signum, count):
        send(signum)
        received = self.agent.notifications.of
        wait_until(lambda: len(received(notifications.SignalReceived)) == count, "it came")


def test_a_key_that_a_wrapper_forwards_does_not_end_the_wait_for_the_console():
    agent = PretendAgent(FakeRendezvous(), [lambda: send(signal.SIGINT)])
    streams = with_console(agent, ForwardedTo())
    streams.agent = agent
    with pytest.raises(SignalException):
        agent.run()
    assert streams.was_escalated is False


def test_a_stop_while_others_learn_of_the_failure_limits_the_wait_for_the_console():
    handler = FakeJobRendezvous(max_restarts=1)
    agent = PretendAgent(handler, [FAILED], [RuntimeError("no memory")], max_restarts=1)
    streams = with_console(agent)
    report = handler.report_failure

    def report_unless_final(failures, *, is_final=False):
        if not is_final:  # the other nodes do not react to that one
            report(failures)

    handler.report_failure = report_unless_final
    and_then(agent, "_shutdown", lambda: send(signal.SIGTERM))
    assert agent.run().is_failed()
    assert agent.is_asked_to_end()
    assert streams.waits[0] < math.inf
