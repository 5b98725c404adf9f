"""Agents that define torchrun's methods themselves, beside one that defines none."""

from __future__ import annotations

import signal

import pytest
from plaunch.agent import LocalElasticAgent, RunResult, WorkerState
from plaunch.testing.rendezvous import FakeElasticRendezvous, FakeRendezvous

from helpers.agents import WAIT, Node, PretendAgent, and_then

INTERVAL = 0.005  # seconds
FEW = 10  # polls; there are a hundred intervals in the life of a worker
LIVES = f"import time; time.sleep({100 * INTERVAL})"


class Watchful(LocalElasticAgent):
    def _monitor_workers(self, worker_group):
        return super()._monitor_workers(worker_group)


class Stopping(LocalElasticAgent):
    stops = 0

    def _stop_workers(self, worker_group):
        self.stops += 1
        super()._stop_workers(worker_group)


@pytest.mark.parametrize(("kind", "is_polled"), [(Watchful, True), (Stopping, False)])
def test_only_an_own_monitor_is_polled(kind, is_polled, tmp_path):
    polls = []
    with FakeElasticRendezvous(world_size=1) as handler:
        and_then(handler, "changes", lambda: polls.append(1))
        agent = Node(tmp_path, handler).agent(LIVES, 1, kind=kind, monitor_interval=INTERVAL)
        assert agent.run().state is WorkerState.SUCCEEDED
    assert (len(polls) > FEW) == is_polled


@pytest.mark.parametrize(("kind", "is_called"), [(Watchful, False), (Stopping, True)])
def test_an_own_stop_is_called_for_each_failure(kind, is_called, tmp_path):
    agent = Node(tmp_path, FakeRendezvous()).agent("exit(3)", 1, kind=kind, max_restarts=1)
    result = agent.run()
    assert (result.failures[0].exitcode, len(result.earlier)) == (3, 1)
    assert getattr(agent, "stops", 0) == (2 if is_called else 0)


def test_an_own_method_may_replace_what_workers_have_ended_with(tmp_path):
    class Lenient(LocalElasticAgent):
        def _monitor_workers(self, worker_group):
            found = super()._monitor_workers(worker_group)
            return RunResult(WorkerState.SUCCEEDED) if found.is_failed() else found

    agent = Node(tmp_path, FakeRendezvous()).agent("exit(3)", 1, kind=Lenient)
    assert agent.run().state is WorkerState.SUCCEEDED


@pytest.mark.parametrize("kind", [Watchful, Stopping])
def test_real_workers_are_gone_after_an_interrupt(kind, tmp_path):
    class Interrupted(kind):
        def _monitor_workers(self, worker_group):
            if node.has("0.0.0"):
                raise KeyboardInterrupt
            return super()._monitor_workers(worker_group)

    node = Node(tmp_path, FakeRendezvous())
    with pytest.raises(KeyboardInterrupt):
        node.agent(WAIT, 1, kind=Interrupted).run()
    (exit,) = node.exits()
    assert exit.exitcode == -15


def test_workers_of_its_own_are_stopped_after_an_interrupt():
    def interrupt():
        raise KeyboardInterrupt

    agent = PretendAgent(FakeRendezvous(), [interrupt])
    agent.fails(KeyboardInterrupt)


def test_workers_of_its_own_cannot_be_signalled(caplog):
    agent = PretendAgent(FakeRendezvous(), [])
    del agent._workers.signal  # the fake of the helper
    agent.signal_workers(signal.SIGUSR1)
    agent.report_hang(0, "in a collective")
    agent.scripts[0] = [RunResult(WorkerState.HEALTHY), RunResult(WorkerState.SUCCEEDED)]
    assert agent.run().state is WorkerState.SUCCEEDED
    assert "is not passed on: this agent has no way" in caplog.text
    assert "cannot end it because of a hang" in caplog.text
