"""The policies of a launch: when they are made, and what happens if one fails."""

from __future__ import annotations

import math
import re
import signal
import sys
import threading
from types import SimpleNamespace

import pytest
from plaunch import LaunchConfig, hookimpl
from plaunch.agent.poller import WakeUp
from plaunch.agent.signals import SignalInbox
from plaunch.errors import PluginError, UsageError
from plaunch.plugin import CallLimits, PluginContext, PluginManager
from plaunch.plugin.guard import DEFAULT_LIMITS, CallGuard
from plaunch.plugin.kinds import GROUPS
from plaunch.plugin.metadata import scan
from plaunch.plugin.policies import LaunchRestartPolicy, LaunchSignalPolicy
from plaunch.process import SignalAction
from plaunch.restarts import Cause, Decision, Failure, RestartAction
from plaunch.testing import plugin_manager

from helpers.faults import raising
from helpers.policies import restart
from helpers.programs import run_python
from helpers.waiting import BOUND

FAILURE = Failure(Cause.WORKER, 0, "node0", 1, message="exit code 1", time=1.0)
RESTART = Decision(RestartAction.RESTART, "as decided")


def context(host="node0", **settings):
    config = LaunchConfig(**{"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 2, **settings})
    config.run_id = "job"
    return PluginContext("job", "default", host, settings=config.settings())


def policies(decide, name="mine"):
    """A plugin that offers a policy which answers like this."""

    class Plugin:
        def __init__(self):
            self.contexts = []

        @hookimpl
        def plaunch_restart_policies(self):
            def create(context):
                self.contexts.append(context)
                return SimpleNamespace(decide=decide)

            return {name: create}

    return Plugin()


def chosen(decide, limits=DEFAULT_LIMITS, **settings):
    manager = plugin_manager(policies(decide), limits=limits)
    return LaunchRestartPolicy(manager, context(restart_policy="mine", **settings))


# --- when it is made ------------------------------------------------------------------------------

MADE = """
import sys
from plaunch.cli import main
from plaunch.plugin.policies import LaunchRestartPolicy
code = main([*{words!r}, "--no-python", "true"])
print(code, *sorted(m for m in sys.modules if "restarts." in m))
"""


def test_a_launch_without_failures_imports_nothing_of_the_default_policy() -> None:
    done = run_python("-c", MADE.format(words=["--max-restarts=50"]), check=True)
    assert done.stdout.split() == ["0", "plaunch_restarts.options"]


def test_its_options_are_checked_before_anything_starts() -> None:
    contradiction = {"restart_window": "10s", "restart_delay": "1s:1m"}
    with pytest.raises(UsageError, match="--restart-window=10s is shorter than the longest delay"):
        LaunchRestartPolicy(plugin_manager(), context(options=contradiction))
    policy = LaunchRestartPolicy(plugin_manager(), context(options={"crash_loop": "off"}))
    assert "plaunch_restarts.policies" in sys.modules
    assert policy.decide(FAILURE, []).reason == "restart 1 of 3"


def test_its_options_also_count_where_another_policy_is_chosen() -> None:
    options = {"restart_on": "exit:2", "no_restart_on": "exit:2"}
    with pytest.raises(UsageError, match="keep one"):
        chosen(lambda failure, history: RESTART, options=options)


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("standrad", (), "restart policy 'standrad' is unknown .*did you mean 'standard'"),
        ("standard", ("no:standard",), "is blocked by -p no:standard"),
        ("never", ("no:restart_policies:never",), "is blocked by"),
    ],
)
def test_a_name_that_cannot_be_used(site, name, words, message) -> None:
    with pytest.raises(UsageError, match=message):
        LaunchRestartPolicy(site.manager(*words), context(restart_policy=name))


def test_an_object_without_decide_is_refused() -> None:
    class Plugin:
        @hookimpl
        def plaunch_restart_policies(self):
            return {"mine": lambda context: 3}

    with pytest.raises(PluginError, match="it returned 3, which has no method 'decide'"):
        LaunchRestartPolicy(plugin_manager(Plugin()), context(restart_policy="mine"))


OPTIONS = """
from plaunch.options import Option, integer
OPTIONS = (
    Option(("--acme-limit",), "how often", read=integer, default=7),
    Option(("--acme-mood",), "how"),
)
"""
POLICY = """
class Policy:
    def __init__(self, context):
        self.options = context.options
    def decide(self, failure, history):
        from plaunch.restarts import Decision, RestartAction
        return Decision(RestartAction.STOP, repr(sorted(self.options.items())))
"""


@pytest.mark.parametrize(
    ("given", "limit", "shared"),
    [({}, 7, {}), ({"acme_limit": "4"}, 4, {"--acme-limit": "4"}), ({"acme_limit": 7}, 7, {})],
)
def test_a_policy_gets_the_options_of_its_package(site, given, limit, shared) -> None:
    groups = {
        "plaunch.restart_policies": {"acme": "acme_restarts:Policy"},
        "plaunch.options": {"whatever": "acme_restarts:Options", "other": "other_options"},
    }
    declared = "class Options:\n" + "\n".join(f"    {line}" for line in OPTIONS.splitlines())
    others = OPTIONS.replace("acme", "other")
    site.install("acme", groups, acme_restarts=POLICY + declared, other_options=others)
    settings = context(restart_policy="acme", options={**given, "other_mood": "good"})
    policy = LaunchRestartPolicy(site.manager(), settings)
    reason = f"[('acme_limit', {limit}), ('acme_mood', None)]"
    assert policy.decide(FAILURE, []).reason == reason
    assert policy.shared_settings() == {"--restart-policy": "acme", **shared}


def test_shared_settings_are_the_options_that_all_nodes_must_have() -> None:
    def shared(**settings):
        return LaunchRestartPolicy(plugin_manager(), context(**settings)).shared_settings()

    assert shared() == {"--restart-policy": "standard"}
    options = {"restart_window": "3600", "restart_on": "exit:2-3,SIGNAL"}
    options["restart_on"] = "exit:2-3,signal:9,oom"
    assert shared(options=options, max_restarts_by_cause={"oom": 0, "hang": 1}) == {
        "--restart-policy": "standard",
        "--max-restarts": "3,hang:1,oom:0",
        "--restart-window": "1h",
        "--restart-on": "exit:2-3,signal:SIGKILL,oom",
    }


# --- what it decides ------------------------------------------------------------------------------


def test_the_chosen_policy_decides() -> None:
    calls = []
    plugin = policies(lambda *args: calls.append(args) or RESTART)
    policy = LaunchRestartPolicy(plugin_manager(plugin), context(restart_policy="mine"))
    assert policy.decide(FAILURE, []) == RESTART
    assert calls == [(FAILURE, [])]
    assert [one.host for one in plugin.contexts] == ["node0"]


def test_a_reason_becomes_one_line() -> None:
    said = " one\n two\x1b[31m\x07 "
    policy = chosen(lambda *_: Decision(RestartAction.RESTART, said, without=["a"]))
    found = policy.decide(FAILURE, [])
    assert (found.reason, found.without) == ("one two\\x1b[31m\\x07", ("a",))
    long = chosen(lambda *_: Decision(RestartAction.STOP, "x" * 9999)).decide(FAILURE, [])
    assert len(long.reason) == 1000
    assert long.reason.endswith("x... (9999 characters)")


@pytest.mark.parametrize(
    ("create", "fault"),
    [
        (lambda: None, "returned None from decide, not a Decision"),
        (lambda: Decision("restart"), "action='restart', not a RestartAction"),
        (lambda: Decision(RestartAction.STOP, 3), "reason=3, not a text"),
        (lambda: restart(delay=-1.0), "the delay is -1.0, which is not a number"),
        (lambda: restart(delay=float("inf")), "the delay is inf"),
        (lambda: restart(delay="soon"), "the delay is 'soon'"),
        (lambda: restart(without="node"), "without='node', not names of hosts"),
        (lambda: restart(without=[3]), "without=[3], not names of hosts"),
        (lambda: restart(costs="yes"), "costs='yes', not a bool"),
    ],
)
def test_an_invalid_decision_names_the_policy_and_standard_decides(create, fault, caplog) -> None:
    found = chosen(lambda *_: create()).decide(FAILURE, [])
    assert found.reason == "restart 1 of 3"
    assert fault in caplog.text
    assert "restart policy 'mine' (module tests" in caplog.text or "'mine' (" in caplog.text
    assert "the restart policy 'standard' decides instead" in caplog.text


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(0)])
def test_a_policy_that_raises_does_not_prevent_the_restart(error, caplog) -> None:
    asked = []

    def decide(failure, history):
        asked.append(failure)
        raise error

    policy = chosen(decide)
    for _ in range(2):
        assert policy.decide(FAILURE, []).reason == "restart 1 of 3"
    assert len(asked) == 2
    assert f"failed in decide: {type(error).__name__}" in caplog.text


def test_a_policy_that_does_not_return_is_not_called_again(caplog) -> None:
    asked, free = [], threading.Event()

    def decide(failure, history):
        asked.append(failure)
        free.wait(60)

    policy = chosen(decide, limits=CallLimits(decision=0.05))
    try:
        for _ in range(2):
            assert policy.decide(FAILURE, []).reason == "restart 1 of 3"
    finally:
        free.set()
    assert len(asked) == 1
    assert (
        "has not returned from decide within 0.05 s; the restart policy 'standard'" in caplog.text
    )
    assert DEFAULT_LIMITS.decision == 1.0


def test_without_any_policy_restarts_are_counted(monkeypatch, caplog) -> None:
    policy = LaunchRestartPolicy(plugin_manager(), context(max_restarts=1))

    def broken(self, failure, history):
        raise ZeroDivisionError

    monkeypatch.setattr("plaunch_restarts.policies.StandardRestartPolicy.decide", broken)
    found = policy.decide(FAILURE, [])
    assert (found.action, found.reason) == (RestartAction.RESTART, "restart 1 of 1")
    found = policy.decide(Failure(Cause.WORKER, 0, "node0", 1, attempt=1), [])
    assert (found.action, found.reason) == (
        RestartAction.STOP,
        "no restart is left (--max-restarts=1)",
    )
    assert "failed in decide: ZeroDivisionError; --max-restarts alone decides" in caplog.text


def test_without_any_policy_a_lost_node_ends_a_job_without_restarts(monkeypatch) -> None:
    def decide(failure, **settings):
        policy = LaunchRestartPolicy(plugin_manager(), context(min_nodes=2, **settings))
        monkeypatch.setattr(policy, "_names", ())
        return policy.decide(failure, []).action

    lost = Failure(Cause.NODE, -1, "node1", 137, missing_nodes=1)
    assert decide(lost, max_restarts=0, max_nodes=2) is RestartAction.STOP
    assert decide(lost, max_restarts=0, max_nodes=3) is RestartAction.RESTART
    assert decide(lost, max_restarts=1, max_nodes=2) is RestartAction.RESTART
    by_cause = {"max_restarts_by_cause": {"node": math.inf}}
    assert decide(lost, max_restarts=0, max_nodes=2, **by_cause) is RestartAction.RESTART
    spare = Failure(Cause.NODE, -1, "node1", 137)
    assert decide(spare, max_restarts=0, max_nodes=2) is RestartAction.RESTART


# --- the signal policy ----------------------------------------------------------------------------

WHO = "signal policy 'x' (distribution acme 1.0, module acme)"


class SignalPolicy:
    def __init__(self, action=None, signals=lambda: [signal.SIGTERM, signal.SIGUSR1]):
        self.asked = []
        self.signals = signals
        self._action = action

    def action(self, signum):
        self.asked.append(signum)
        return self._action()


def test_a_signal_policy_decides() -> None:
    policy = LaunchSignalPolicy(SignalPolicy(lambda: SignalAction.NOTIFY), CallGuard(), WHO)
    assert policy.signals() == [signal.SIGTERM, signal.SIGUSR1]
    assert policy.action(signal.SIGUSR1) is SignalAction.NOTIFY


def test_a_signal_policy_that_does_not_return_is_called_once(gate, caplog) -> None:
    slow = SignalPolicy(lambda: gate.wait(BOUND))
    policy = LaunchSignalPolicy(slow, CallGuard(CallLimits(decision=0.01)), WHO)
    assert policy.action(signal.SIGUSR1) is SignalAction.STOP
    assert policy.action(signal.SIGTERM) is SignalAction.STOP
    assert slow.asked == [signal.SIGUSR1]
    (record,) = caplog.records
    assert record.getMessage().startswith(
        f"{WHO} has not returned within 0.01 s from action for SIGUSR1"
    )


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (lambda: None, "it answers None"),
        (raising(ValueError("no")), f"{WHO} failed in action: ValueError: no"),
        (raising(SystemExit(0)), f"{WHO} failed in action: SystemExit: 0"),
    ],
)
def test_a_signal_policy_that_fails_is_named(caplog, action, said) -> None:
    wake_up = WakeUp()
    with SignalInbox(LaunchSignalPolicy(SignalPolicy(action), CallGuard(), WHO), wake_up) as inbox:
        signal.raise_signal(signal.SIGUSR1)
        (received,) = inbox.take()
    wake_up.close()
    assert received.action is SignalAction.IGNORE
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{WHO} does not say what SIGUSR1 means: {said}")


def test_a_signal_policy_that_lists_what_cannot_be_handled_is_named() -> None:
    wake_up = WakeUp()
    policy = LaunchSignalPolicy(SignalPolicy(signals=lambda: [signal.SIGKILL]), CallGuard(), WHO)
    with (
        pytest.raises(UsageError, match=f"^{re.escape(WHO)} wants to handle"),
        SignalInbox(policy, wake_up),
    ):
        pass
    wake_up.close()


def test_a_signal_policy_may_list_signals_one_after_the_other() -> None:
    """They are needed again when the rendezvous is shut down."""
    policy = LaunchSignalPolicy(
        SignalPolicy(signals=lambda: iter([signal.SIGTERM])), CallGuard(), WHO
    )
    assert [*policy.signals()] == [*policy.signals()] == [signal.SIGTERM]


def test_without_the_default_policy_the_number_of_restarts_decides(own_metadata) -> None:
    entries = [e for e in scan(GROUPS, [own_metadata]) if e.name != "standard"]
    policy = LaunchRestartPolicy(PluginManager.create(environ={}, entries=entries), context())
    assert policy.decide(FAILURE, []).reason == "restart 1 of 3"
    assert policy.shared_settings() == {"--restart-policy": "standard"}
    blocked = plugin_manager(words=["no:standard"])
    with pytest.raises(UsageError, match="blocked"):
        LaunchRestartPolicy(blocked, context())
    chosen = LaunchRestartPolicy(blocked, context(restart_policy="never"))
    assert chosen.decide(FAILURE, []).action is RestartAction.STOP
