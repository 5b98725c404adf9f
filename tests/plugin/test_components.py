"""Components of third parties that the agent's loop calls."""

from __future__ import annotations

import logging
import re
import signal
import sys
import threading

import pytest
from plaunch.agent.poller import WakeUp
from plaunch.agent.signals import SignalInbox
from plaunch.errors import PluginError, UsageError
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
    monkeypatch.setattr(components, "POLICY_BOUND", 0.01)
    policy = Policy(lambda: gate.wait(BOUND))
    bounded = BoundedPolicy(policy, WHO)
    assert bounded.action(signal.SIGUSR1) is SignalAction.STOP
    assert bounded.action(signal.SIGTERM) is SignalAction.STOP
    assert policy.asked == [signal.SIGUSR1]
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{WHO} did not say within 0.01 s what SIGUSR1 means")


def test_a_policy_that_does_not_say_what_it_handles_is_named(monkeypatch, gate) -> None:
    monkeypatch.setattr(components, "POLICY_BOUND", 0.01)
    policy = Policy(None)
    policy.signals = lambda: gate.wait(BOUND)
    with pytest.raises(PluginError, match=f"{re.escape(WHO)} has not returned from signals"):
        BoundedPolicy(policy, WHO).signals()


def test_a_policy_that_answers_nonsense_is_named(caplog) -> None:
    """The agent's messages are about the policy, and not about what stands before it."""
    wake_up = WakeUp()
    bounded = BoundedPolicy(Policy(lambda: None), WHO)
    with SignalInbox(bounded, wake_up) as inbox:
        signal.raise_signal(signal.SIGUSR1)
        (received,) = inbox.take()
    wake_up.close()
    assert received.action is SignalAction.IGNORE
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{WHO} does not say what SIGUSR1 means: it answers None")


def test_a_policy_that_lists_what_cannot_be_handled_is_named() -> None:
    wake_up = WakeUp()
    policy = Policy(None)
    policy.signals = lambda: [signal.SIGKILL]
    with (
        pytest.raises(UsageError, match=f"^{re.escape(WHO)} wants to handle"),
        SignalInbox(BoundedPolicy(policy, WHO), wake_up),
    ):
        pass
    wake_up.close()


def test_a_policy_that_lists_nothing_is_named() -> None:
    policy = Policy(None)
    policy.signals = lambda: None
    with pytest.raises(PluginError, match=f"^{re.escape(WHO)} failed in signals: TypeError"):
        BoundedPolicy(policy, WHO).signals()


def test_a_policy_may_list_signals_one_after_the_other() -> None:
    """They are asked for again when the rendezvous is shut down."""
    policy = Policy(None)
    policy.signals = lambda: iter([signal.SIGTERM])
    bounded = BoundedPolicy(policy, WHO)
    assert [*bounded.signals()] == [*bounded.signals()] == [signal.SIGTERM]


def test_a_logs_spec_that_returns_nothing_is_named() -> None:
    specs = Specs(lambda: None)
    with pytest.raises(PluginError, match=f"^{re.escape(WHO)} returned None from reify, which is"):
        BoundedLogsSpecs(specs, WHO, never).reify({0: {}})


def leave():
    sys.exit("the driver is broken")


LEAVES = {
    "signals": lambda: BoundedPolicy(Policy(leave), WHO).action(signal.SIGTERM),
    "reify": lambda: BoundedLogsSpecs(Specs(leave), WHO, never).reify({0: {}}),
}


@pytest.mark.parametrize("call", LEAVES.values(), ids=LEAVES)
def test_one_that_calls_sys_exit_has_failed(call) -> None:
    with pytest.raises(PluginError, match=f"^{re.escape(WHO)} failed in .*: SystemExit: the dr"):
        call()


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
    monkeypatch.setattr(components, "START_BOUND", 0.01)
    bounded = BoundedLogsSpecs(Specs(lambda: gate.wait(BOUND)), "logs spec 'x'", never)
    with pytest.raises(PluginError, match=r"logs spec 'x' has not returned from reify within 0.01"):
        bounded.reify({0: {}})


def test_a_logs_spec_that_does_not_clear_up_is_named(monkeypatch, gate) -> None:
    monkeypatch.setattr(components, "HURRIED_CLOSE", 0.01)
    monkeypatch.setattr(components, "START_BOUND", 0.02)
    specs = Specs(None)
    specs.close = lambda succeeded: gate.wait(BOUND)
    with pytest.raises(
        PluginError, match="logs spec 'x' has not returned from close; plaunch does not"
    ):
        BoundedLogsSpecs(specs, "logs spec 'x'", never).close(True)


def test_a_logs_spec_that_cannot_clear_up_is_named() -> None:
    specs = Specs(None)
    specs.close = lambda succeeded: [][succeeded]
    with pytest.raises(PluginError, match="logs spec 'x' failed in close: IndexError: list index"):
        BoundedLogsSpecs(specs, "logs spec 'x'", never).close(True)


def test_a_logs_spec_that_does_not_make_a_folder_is_named(monkeypatch, gate) -> None:
    monkeypatch.setattr(components, "START_BOUND", 0.01)
    specs = Specs(None)
    specs.create_run_dir = lambda run_id: gate.wait(BOUND)
    with pytest.raises(PluginError, match="logs spec 'x' has not returned from create_run_dir"):
        BoundedLogsSpecs(specs, "logs spec 'x'", never).create_run_dir("job")
