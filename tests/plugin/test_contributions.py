"""The components of a launch, and what plugins may add to a worker's environment."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from types import SimpleNamespace

import pytest
from plaunch import threads
from plaunch.agent.extensions import Requests
from plaunch.agent.states import State
from plaunch.errors import ExitCode, PluginError
from plaunch.plugin import CallLimits, find_worker_env
from plaunch.plugin.contributions import LaunchBinder, LaunchLogsSpecs
from plaunch.plugin.guard import CallGuard
from plaunch.process.components import WorkerInfo
from plaunch.process.logs import LogsDest, LogsSpecs
from plaunch.testing import plugin_manager

from helpers.faults import raising
from helpers.hooks import plugin_of
from helpers.waiting import BOUND

WORKER = WorkerInfo(local_rank=0, global_rank=0, role_rank=0, world_size=1, role_world_size=1)
OWN = {"RANK": "0", "WORLD_SIZE": "1"}
WHO = "plugin 'A' (module helpers.hooks)"


def contributor(name: str, result: object):
    """A plugin called `name` that returns `result`, or what it makes of the environment."""
    return plugin_of(
        name, plaunch_worker_env=lambda env: result(env) if callable(result) else result
    )


def contributed(*plugins: object) -> dict[str, str]:
    return find_worker_env(plugin_manager(*plugins), WORKER, OWN)


RESULTS = {
    "nothing": (None, {}),
    "an empty mapping": ({}, {}),
    "variables": ({"A": "1", "B": ""}, {"A": "1", "B": ""}),
    "with plaunch's own unchanged": (lambda env: {**env, "A": "1"}, {"A": "1"}),
}


@pytest.mark.parametrize(("result", "expected"), RESULTS.values(), ids=RESULTS)
def test_a_contribution(result, expected) -> None:
    assert contributed(contributor("Plugin", result)) == expected


def test_contributions_are_merged_in_the_order_of_names_where_they_do_not_clash() -> None:
    plugins = [contributor(name, {f"FROM_{name}": "1", "X": "1"}) for name in "CAB"]
    assert [*contributed(*plugins).items()] == [
        ("FROM_A", "1"),
        ("X", "1"),
        ("FROM_B", "1"),
        ("FROM_C", "1"),
    ]


def test_plugins_that_contradict_each_other_are_both_named() -> None:
    with pytest.raises(PluginError) as caught:
        contributed(contributor("B", {"X": "2"}), contributor("A", {"X": "1"}))
    assert caught.value.exit_code == ExitCode.PLUGIN
    assert str(caught.value) == (
        f"{WHO} and {WHO.replace('A', 'B')} set X to different values in plaunch_worker_env: '1' "
        "and '2'; block one of them with -p no:A or -p no:B"
    )


def test_plaunchs_own_variables_are_not_changed() -> None:
    with pytest.raises(PluginError) as caught:
        contributed(contributor("A", {"RANK": "7"}))
    assert str(caught.value) == (
        f"{WHO} sets RANK to '7' in plaunch_worker_env, but plaunch itself sets it to '0'; a "
        "plugin may only add variables"
    )


def meddle(env):
    env["RANK"] = "7"


@pytest.mark.parametrize(
    ("result", "said"), [(raising(SystemExit("no")), "SystemExit: no"), (meddle, "TypeError")]
)
def test_a_plugin_that_fails_is_named_and_changes_nothing(result, said) -> None:
    who = re.escape(WHO)
    with pytest.raises(PluginError, match=rf"{who} failed in plaunch_worker_env: {said}"):
        contributed(contributor("A", result))
    assert OWN["RANK"] == "0"


BAD = {
    "a list": ["A=1"],
    "a text": "A=1",
    "a number as value": {"A": 1},
    "a number as name": {1: "A"},
    "None as value": {"A": None},
    "an empty name": {"": "1"},
    "an equals sign in a name": {"A=B": "1"},
    "a null in a name": {"A\0": "1"},
    "a null in a value": {"A": "1\0"},
}


@pytest.mark.parametrize("result", BAD.values(), ids=BAD)
def test_an_invalid_environment_is_refused(result) -> None:
    with pytest.raises(PluginError, match=rf"{re.escape(WHO)} returned .* from plaunch_worker"):
        contributed(contributor("A", result))


def test_ctrl_c_ends_the_wait_for_a_plugin(gate) -> None:
    def interrupt(env):
        os.kill(os.getpid(), signal.SIGINT)
        gate.wait(BOUND)

    with pytest.raises(KeyboardInterrupt):
        contributed(contributor("A", interrupt))


def test_a_plugin_that_does_not_return_is_named(gate) -> None:
    slow = contributor("A", lambda env: gate.wait(BOUND))
    manager = plugin_manager(slow, limits=CallLimits(hook=0.01))
    with pytest.raises(PluginError) as caught:
        find_worker_env(manager, WORKER, OWN)
    assert str(caught.value) == (
        f"{WHO} has not returned from plaunch_worker_env within 0.01 s; fix what it waits for, or "
        "block it with -p no:A"
    )


def test_a_plugin_is_not_waited_for_when_the_launch_is_to_stop(monkeypatch, gate) -> None:
    monkeypatch.setattr(threads, "UNHURRIED", 0.01)
    plugin = contributor("A", lambda env: gate.wait(BOUND))
    asked = []
    manager = plugin_manager(plugin)
    inbox = SimpleNamespace(has_stop=lambda: bool(asked.append(1) or asked[1:]))
    manager.guard.status.begin_run(State(), inbox, Requests(None))
    began = time.monotonic()
    with pytest.raises(PluginError, match=r"when the launch had to stop"):
        find_worker_env(manager, WORKER, OWN)
    assert began <= manager.guard.last_wait <= time.monotonic()


def test_a_contribution_is_made_on_another_thread_that_is_gone_before_workers_start() -> None:
    seen = []
    manager = plugin_manager(contributor("A", lambda env: seen.append(threading.current_thread())))
    find_worker_env(manager, WORKER, OWN)
    manager.guard.rest()  # which a launch calls then
    (thread,) = seen
    assert thread is not threading.current_thread()
    assert not thread.is_alive()


class Threads(LogsSpecs):
    """Records the thread of each call."""

    root_log_dir = "/logs"
    temporary_dir = "/logs/plaunch_1"

    def __init__(self):
        super().__init__()
        self.threads = {}

    def reify(self, envs):
        self.threads["reify"] = threading.current_thread()
        return LogsDest({0: ""}, {0: ""}, {}, {}, {0: ""})

    def open_sink(self, local_rank, stream):
        self.threads["open_sink"] = threading.current_thread()

    def open_streams(self, dest, nprocs, **options):
        self.threads["open_streams"] = threading.current_thread()
        options["open_sink"](0, "stdout")


def test_the_methods_of_a_logs_spec_run_on_threads_of_their_own():
    specs = Threads()
    limited = LaunchLogsSpecs(specs, plugin_manager().guard, "logs spec 'a'")
    limited.open_streams(limited.reify({}), 1)
    assert [*specs.threads] == ["reify", "open_streams", "open_sink"]
    assert len({threading.current_thread(), *specs.threads.values()}) == 4
    assert (limited.root_log_dir, limited.temporary_dir) == ("/logs", "/logs/plaunch_1")


def test_the_methods_of_plaunchs_own_binder_have_a_limit(gate):
    class Binder:
        def plan(self, nprocs):
            gate.wait(BOUND)

        def environment(self, local_rank, environ):
            return {"CARD": str(local_rank)}

    guard = CallGuard(CallLimits(component=0.01))
    binder = LaunchBinder(Binder(), guard, "plugin 'devices' (distribution plaunch)")
    with pytest.raises(PluginError, match=r"'devices' .* has not returned from plan within"):
        binder.plan(1)
    assert binder.environment(3, {}) == {"CARD": "3"}
