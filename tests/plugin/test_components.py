"""Components of third parties that the agent's loop calls."""

from __future__ import annotations

import logging
import signal
import threading

import pytest
from plaunch.errors import PluginError
from plaunch.plugin import components
from plaunch.plugin.components import BoundedLogsSpecs, BoundedPolicy
from plaunch.process import LogsDest, LogsSpecs, SignalAction

from helpers.waiting import BOUND

WHO = "signal policy 'x' (distribution acme 1.0, module acme)"


@pytest.fixture
def gate(caplog):
    caplog.set_level(logging.WARNING, "plaunch")
    opened = threading.Event()
    yield opened
    opened.set()


class Policy:
    def __init__(self, action):
        self.asked = []
        self._action = action

    def signals(self):
        return [signal.SIGTERM, signal.SIGUSR1]

    def action(self, signum):
        self.asked.append(signum)
        return self._action()


class Specs(LogsSpecs):
    temporary_dir = "/scratch"

    def __init__(self, reify):
        super().__init__()
        self.closed = []
        self._reify = reify

    @property
    def root_log_dir(self):
        return "/logs"

    def reify(self, envs):
        envs[0]["MORE"] = "1"
        return self._reify()

    def create_run_dir(self, run_id):
        return f"/logs/{run_id}"

    def close(self, succeeded):
        self.closed.append(succeeded)


def never():
    return False


def test_a_policy_says_what_it_says() -> None:
    policy = Policy(lambda: SignalAction.NOTIFY)
    bounded = BoundedPolicy(policy, WHO)
    assert bounded.signals() == policy.signals()
    assert bounded.action(signal.SIGUSR1) is SignalAction.NOTIFY


def test_a_policy_that_raises_raises() -> None:
    def fail():
        raise KeyError("SIGTERM")

    with pytest.raises(KeyError):
        BoundedPolicy(Policy(fail), WHO).action(signal.SIGTERM)


def test_a_policy_that_does_not_answer_is_asked_once(monkeypatch, gate, caplog) -> None:
    monkeypatch.setattr(components, "ACTION_BOUND", 0.01)
    policy = Policy(lambda: gate.wait(BOUND))
    bounded = BoundedPolicy(policy, WHO)
    assert bounded.action(signal.SIGUSR1) is SignalAction.STOP
    assert bounded.action(signal.SIGTERM) is SignalAction.STOP
    assert policy.asked == [signal.SIGUSR1]
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{WHO} has not said within 0.01 s what SIGUSR1 means")


def test_a_logs_spec_does_what_it_does() -> None:
    dest = LogsDest()
    specs = Specs(lambda: dest)
    bounded = BoundedLogsSpecs(specs, "logs spec 'x'", never)
    envs = {0: {}}
    assert bounded.reify(envs) is dest
    assert envs == {0: {"MORE": "1"}}
    assert (bounded.root_log_dir, bounded.create_run_dir("job")) == ("/logs", "/logs/job")
    assert bounded.temporary_dir == "/scratch"
    bounded.close(True)
    assert specs.closed == [True]


def test_a_logs_spec_that_raises_raises() -> None:
    def fail():
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        BoundedLogsSpecs(Specs(fail), "logs spec 'x'", never).reify({0: {}})


def test_a_logs_spec_that_does_not_return_is_named(monkeypatch, gate) -> None:
    monkeypatch.setattr(components, "REIFY_BOUND", 0.01)
    bounded = BoundedLogsSpecs(Specs(lambda: gate.wait(BOUND)), "logs spec 'x'", never)
    with pytest.raises(PluginError, match=r"logs spec 'x' has not returned from reify within 0.01"):
        bounded.reify({0: {}})
