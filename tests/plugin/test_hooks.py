"""Every hook: its documentation, its arguments, and a test of its own (`test_<hook>`)."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from types import SimpleNamespace

import pytest
from plaunch.agent import notifications
from plaunch.agent.worker import RunResult, WorkerExit, WorkerInfo, WorkerState
from plaunch.doctor import DoctorContext, Finding, Status
from plaunch.plugin import PluginContext, hookimpl, hookspecs
from plaunch.plugin.notifier import HOOKS as TOLD
from plaunch.plugin.registry import (
    DEVICE_COUNTS,
    EVENT_HANDLERS,
    KINDS,
    LOGS_SPECS,
    RENDEZVOUS,
    SCHEDULERS,
    SIGNAL_POLICIES,
)
from plaunch.process.streams.logs import LogsSpecs
from plaunch.testing import plugin_manager

from helpers.groups import make_group

HOOKS = {
    name: function for name, function in vars(hookspecs).items() if name.startswith("plaunch_")
}
WORKER = WorkerInfo(local_rank=0, global_rank=4, role_rank=4, world_size=8, role_world_size=8)
GROUP = make_group(group_rank=1, group_world_size=2, workers=(WORKER,))


# --- the specifications ---------------------------------------------------------------------------


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_is_specified_in_five_parts(hook) -> None:
    lines = inspect.getdoc(HOOKS[hook]).splitlines()
    assert lines[0].endswith((".", ":"))
    found = [match[0] for line in lines if (match := re.match(r"[A-Z]\w+:", line))]
    assert found == ["Called:", "Parameters:", "Result:", "Process:"]


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_documents_its_parameters(hook) -> None:
    documentation = " ".join(inspect.getdoc(HOOKS[hook]).split())
    parameters = documentation.partition("Parameters:")[2].partition("Result:")[0]
    wanted = list(inspect.signature(HOOKS[hook]).parameters)
    if not wanted:
        assert parameters.strip() == "none."
    for name in wanted:
        assert f"`{name}`" in parameters


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_has_a_test_of_its_own(hook) -> None:
    assert callable(globals().get(hook.replace("plaunch_", "test_plaunch_")))


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_has_no_untyped_parameter(hook) -> None:
    annotations = HOOKS[hook].__annotations__
    assert set(annotations) == {*inspect.signature(HOOKS[hook]).parameters, "return"}
    assert not any("Any" in str(annotation) for annotation in annotations.values())


def test_every_hook_has_a_caller() -> None:
    offered = {kind.hook for kind in KINDS}
    contributed = {
        "plaunch_worker_env",
        "plaunch_worker_binder",
        "plaunch_worker_store",
        "plaunch_doctor_checks",
        "plaunch_extensions",
    }
    assert set(HOOKS) == offered | set(TOLD.values()) | contributed


@pytest.mark.parametrize(
    "notification",
    [
        notification
        for notification in notifications.Notification.__subclasses__()
        if notification in TOLD
    ],
)
def test_a_notification_has_all_that_its_hook_tells(notification) -> None:
    wanted = set(inspect.signature(HOOKS[TOLD[notification]]).parameters)
    assert wanted <= {field.name for field in fields(notification)}


# --- the hooks that offer -------------------------------------------------------------------------


def test_plaunch_rendezvous_backends() -> None:
    def create(params):
        return "handler"

    class Plugin:
        @hookimpl
        def plaunch_rendezvous_backends(self):
            return {"mine": create}

    assert plugin_manager(Plugin()).get(RENDEZVOUS, "mine") is create


def test_plaunch_logs_specs() -> None:
    class Specs(LogsSpecs):
        pass

    class Plugin:
        @hookimpl
        def plaunch_logs_specs(self):
            return {"mine": Specs}

    assert plugin_manager(Plugin()).get(LOGS_SPECS, "mine") is Specs


def test_plaunch_event_handlers() -> None:
    def create(context):
        return "handler"

    class Plugin:
        @hookimpl
        def plaunch_event_handlers(self):
            return {"mine": create}

    assert plugin_manager(Plugin()).get(EVENT_HANDLERS, "mine") is create


def test_plaunch_device_counts() -> None:
    class Plugin:
        @hookimpl
        def plaunch_device_counts(self):
            return {"none": lambda: 0}

    assert plugin_manager(Plugin()).get(DEVICE_COUNTS, "none")() == 0


def test_plaunch_signal_policies() -> None:
    def create(context):
        return "policy"

    class Plugin:
        @hookimpl
        def plaunch_signal_policies(self):
            return {"mine": create}

    assert plugin_manager(Plugin()).get(SIGNAL_POLICIES, "mine") is create


def test_plaunch_schedulers() -> None:
    def find(environ):
        return "allocation"

    class Plugin:
        @hookimpl
        def plaunch_schedulers(self):
            return {"mine": find}

    assert plugin_manager(Plugin()).get(SCHEDULERS, "mine") is find


# --- the hooks that contribute --------------------------------------------------------------------


def test_plaunch_worker_env() -> None:
    class Plugin:
        @hookimpl
        def plaunch_worker_env(self, worker, env):
            return {"MINE": f"{worker.global_rank} of {env['WORLD_SIZE']}"}

    assert plugin_manager(Plugin()).worker_env(WORKER, {"WORLD_SIZE": "8"}) == {"MINE": "4 of 8"}


def test_plaunch_worker_binder() -> None:
    binder = SimpleNamespace(
        plan=lambda nprocs: {0: f"one of {nprocs}"}, environment=lambda local_rank, environ: environ
    )

    class Plugin:
        @hookimpl
        def plaunch_worker_binder(self, context):
            return binder if context.role == "trainer" else None

    manager = plugin_manager(Plugin())
    found = manager.worker_binder(PluginContext("job", "trainer", "node7"))
    assert (found.plan(2), found.environment(0, {"A": "1"})) == ({0: "one of 2"}, {"A": "1"})
    assert manager.worker_binder(PluginContext("job", "other", "node7")) is None


def test_plaunch_worker_store() -> None:
    class Plugin:
        @hookimpl
        def plaunch_worker_store(self, context):
            return lambda store_round: f"{context.role}'s store for {store_round}"

    found = plugin_manager(Plugin()).worker_store(PluginContext("job", "trainer", "node7"))
    assert found("a round") == "trainer's store for a round"


def test_plaunch_extensions() -> None:
    class Extension:
        def start(self, control):
            self.control = control

        def handle(self, event):
            pass

        def stop(self, result):
            pass

    extension = Extension()

    class Plugin:
        @hookimpl
        def plaunch_extensions(self, context):
            return [extension] if context.run_id == "job" else None

    manager = plugin_manager(Plugin())
    assert manager.create_extensions(PluginContext("other", "role", "host")) == []
    (item,) = manager.create_extensions(PluginContext("job", "role", "host"))
    item.start("control")
    assert extension.control == "control"


def test_plaunch_doctor_checks() -> None:
    class Plugin:
        @hookimpl
        def plaunch_doctor_checks(self, context):
            return [Finding(Status.WARNING, "fan", f"{context.host} is loud", "oil it")]

    checks = plugin_manager(Plugin()).doctor_checks()
    assert "options:devices" in checks  # loaded for it, as what has options
    check = checks["code:Plugin"]
    assert [finding.found for finding in check(DoctorContext(host="node7"))] == ["node7 is loud"]


# --- the hooks that tell --------------------------------------------------------------------------


def test_plaunch_before_rendezvous() -> None:
    told = []

    class Plugin:
        @hookimpl
        def plaunch_before_rendezvous(self, group):
            told.append(group)

    plugin_manager(Plugin()).notify(notifications.BeforeRendezvous(GROUP))
    assert told == [GROUP]


def test_plaunch_after_rendezvous() -> None:
    told = []

    class Plugin:
        @hookimpl
        def plaunch_after_rendezvous(self, group):
            told.append(group)

    plugin_manager(Plugin()).notify(notifications.AfterRendezvous(GROUP, 1.5))
    assert told == [GROUP]


def test_plaunch_workers_started() -> None:
    told = []

    class Plugin:
        @hookimpl
        def plaunch_workers_started(self, group):
            told.append(group)

    plugin_manager(Plugin()).notify(notifications.WorkersStarted(GROUP))
    assert told == [GROUP]


def test_plaunch_worker_exited() -> None:
    told = []

    class Plugin:
        @hookimpl
        def plaunch_worker_exited(self, exit, group):
            told.append((group, exit))

    exit = WorkerExit(WORKER, exitcode=-9, stopped=False)
    plugin_manager(Plugin()).notify(notifications.WorkerExited(GROUP, exit))
    assert told == [(GROUP, exit)]


def test_plaunch_state_changed() -> None:
    told = []

    class Plugin:
        @hookimpl
        def plaunch_state_changed(self, group, old, new):
            told.append((group, old, new))

    change = (GROUP, WorkerState.INIT, WorkerState.HEALTHY)
    plugin_manager(Plugin()).notify(notifications.StateChanged(*change))
    assert told == [change]


def test_plaunch_agent_finished() -> None:
    told = []

    class Plugin:
        @hookimpl
        def plaunch_agent_finished(self, group, result):
            told.append((group, result))

    manager = plugin_manager(Plugin())
    result = RunResult(WorkerState.SUCCEEDED)
    manager.notify(notifications.AgentFinished(GROUP, result))
    manager.notify(notifications.AgentFinished(GROUP, None))
    assert told == [(GROUP, result), (GROUP, None)]
