"""Every hook: its documentation, its arguments, and a test of what it does."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from types import SimpleNamespace

import pytest
from plaunch.agent import RunResult, WorkerExit, WorkerInfo, WorkerState, notifications
from plaunch.doctor import DoctorContext, Finding, Status
from plaunch.plugin import (
    PluginContext,
    create_extensions,
    find_binder,
    find_starter,
    find_worker_env,
    find_worker_store,
    hookspecs,
    notify,
)
from plaunch.plugin.contributions import HOOK_OF
from plaunch.plugin.kinds import KINDS, LOGS_SPECS
from plaunch.process.logs import LogsSpecs
from plaunch.testing import plugin_manager
from plaunch_doctor.command import checks_of_plugins

from helpers.groups import make_group
from helpers.hooks import NO_OTHERS, plugin_of

HOOKS = {
    name: function for name, function in vars(hookspecs).items() if name.startswith("plaunch_")
}
WORKER = WorkerInfo(local_rank=0, global_rank=4, role_rank=4, world_size=8, role_world_size=8)
GROUP = make_group(group_rank=1, group_world_size=2, workers=(WORKER,))
EXIT = WorkerExit(WORKER, exitcode=-9, stopped=False)
CONTEXT = PluginContext("job", "trainer", "node7")
RESULT = RunResult(WorkerState.SUCCEEDED)
MOMENTS = [
    notifications.BeforeRendezvous(GROUP),
    notifications.AfterRendezvous(GROUP, 1.5),
    notifications.WorkersStarted(GROUP),
    notifications.BeforeStop(GROUP, "failure"),
    notifications.WorkerExited(GROUP, EXIT),
    notifications.StateChanged(GROUP, WorkerState.INIT, WorkerState.HEALTHY),
    notifications.AgentFinished(GROUP, RESULT),
    notifications.AgentFinished(GROUP, None),
]


# --- the specifications ---------------------------------------------------------------------------


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_is_specified_in_the_same_parts(hook) -> None:
    lines = inspect.getdoc(HOOKS[hook]).splitlines()
    assert lines[0].endswith(".")
    found = [match[0] for line in lines if (match := re.match(r"[A-Z]\w+:", line))]
    signature = inspect.signature(HOOKS[hook])
    has_result = signature.return_annotation != "None"
    assert (
        found
        == ["Called:", *["Parameters:"] * bool(signature.parameters)] + ["Result:"] * has_result
    )


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_documents_its_parameters(hook) -> None:
    documentation = " ".join(inspect.getdoc(HOOKS[hook]).split())
    parameters = documentation.partition("Parameters:")[2].partition("Result:")[0]
    for name in inspect.signature(HOOKS[hook]).parameters:
        assert f"`{name}`" in parameters


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_has_a_test(hook) -> None:
    tested = {kind.hook for kind in KINDS} | {HOOK_OF[type(moment)] for moment in MOMENTS}
    assert hook in tested or callable(globals().get(f"test_{hook}"))


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
        "plaunch_worker_starter",
        "plaunch_doctor_checks",
        "plaunch_extensions",
    }
    assert set(HOOKS) == offered | set(HOOK_OF.values()) | contributed


@pytest.mark.parametrize(
    "notification",
    [
        notification
        for notification in notifications.Notification.__subclasses__()
        if notification in HOOK_OF
    ],
)
def test_a_notification_has_the_arguments_of_its_hook(notification) -> None:
    wanted = set(inspect.signature(HOOKS[HOOK_OF[notification]]).parameters)
    assert wanted <= {field.name for field in fields(notification)}


# --- the hooks that offer -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.hook)
def test_what_a_plugin_offers_is_had_by_its_name(kind) -> None:
    class Specs(LogsSpecs):
        pass

    offered = Specs if kind is LOGS_SPECS else lambda given: "made"
    plugin = plugin_of(**{kind.hook: lambda: {"mine": offered}})
    assert plugin_manager(plugin).get(kind, "mine") is offered


# --- the hooks that contribute --------------------------------------------------------------------


def test_plaunch_worker_env() -> None:
    plugin = plugin_of(
        plaunch_worker_env=lambda worker, env: {
            "MINE": f"{worker.global_rank} of {env['WORLD_SIZE']}"
        }
    )
    assert find_worker_env(plugin_manager(plugin), WORKER, {"WORLD_SIZE": "8"}) == {
        "MINE": "4 of 8"
    }


def test_plaunch_worker_binder() -> None:
    binder = SimpleNamespace(
        plan=lambda nprocs: {0: f"one of {nprocs}"}, environment=lambda local_rank, environ: environ
    )
    manager = plugin_manager(
        plugin_of(
            plaunch_worker_binder=lambda context: binder if context.role == "trainer" else None
        )
    )
    found = find_binder(manager, CONTEXT)
    assert (found.plan(2), found.environment(0, {"A": "1"})) == ({0: "one of 2"}, {"A": "1"})
    assert find_binder(manager, PluginContext("job", "other", "node7")) is None


def test_plaunch_worker_store() -> None:
    plugin = plugin_of(
        plaunch_worker_store=lambda context: (
            lambda store_round: f"{context.role}'s store for {store_round}"
        )
    )
    found = find_worker_store(plugin_manager(plugin), CONTEXT)
    assert found("a round") == "trainer's store for a round"


def test_plaunch_worker_starter() -> None:
    methods = dict.fromkeys(("begin", "wait", "prepare", "start_helper", "fds", "close"), print)
    starter = SimpleNamespace(**methods, start=lambda local_rank, command, **options: command)
    plugin = plugin_of(
        plaunch_worker_starter=lambda context: starter if context.role == "trainer" else None
    )
    manager = plugin_manager(plugin)
    assert find_starter(manager, CONTEXT).start(0, ["true"], env={}) == ["true"]
    assert find_starter(manager, PluginContext("job", "other", "node7")) is None


def test_plaunch_extensions() -> None:
    calls = []
    extension = SimpleNamespace(start=calls.append, handle=print, stop=print)
    manager = plugin_manager(
        plugin_of(
            plaunch_extensions=lambda context: [extension] if context.run_id == "job" else None
        ),
        words=NO_OTHERS,
    )
    assert create_extensions(manager, PluginContext("other", "role", "host")) == []
    (item,) = create_extensions(manager, CONTEXT)
    item.start("control")
    assert calls == ["control"]


def test_plaunch_doctor_checks() -> None:
    plugin = plugin_of(
        plaunch_doctor_checks=lambda context: [
            Finding(Status.WARNING, "fan", f"{context.host} is loud", "oil it")
        ]
    )
    checks = checks_of_plugins(plugin_manager(plugin))
    assert "options:devices" in checks  # loaded for it, as what has options
    check = checks["code:Plugin"]
    assert [finding.found for finding in check(DoctorContext(host="node7"))] == ["node7 is loud"]


# --- the hooks that tell --------------------------------------------------------------------------


def test_the_arguments_of_notification_hooks() -> None:
    calls = []
    plugin = plugin_of(
        plaunch_before_rendezvous=lambda group: calls.append(("before", group)),
        plaunch_after_rendezvous=lambda group: calls.append(("after", group)),
        plaunch_workers_started=lambda group: calls.append(("started", group)),
        plaunch_before_stop=lambda group, cause: calls.append((cause, group)),
        plaunch_worker_exited=lambda exit, group: calls.append((exit, group)),
        plaunch_state_changed=lambda group, old, new: calls.append((group, old, new)),
        plaunch_agent_finished=lambda group, result: calls.append((group, result)),
    )
    manager = plugin_manager(plugin)
    for moment in MOMENTS:
        notify(manager, moment)
    assert calls == [
        ("before", GROUP),
        ("after", GROUP),
        ("started", GROUP),
        ("failure", GROUP),
        (EXIT, GROUP),
        (GROUP, WorkerState.INIT, WorkerState.HEALTHY),
        (GROUP, RESULT),
        (GROUP, None),
    ]
