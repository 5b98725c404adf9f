"""plaunch's own plugins pass the suites for third-party plugins."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import pytest
from plaunch import LaunchConfig
from plaunch.launch.prepare import create_rendezvous
from plaunch.plugin import (
    DEVICE_COUNTS,
    EVENT_HANDLERS,
    HEALTH_CHECKS,
    LOGS_SPECS,
    RENDEZVOUS,
    RESTART_POLICIES,
    SCHEDULERS,
    SIGNAL_POLICIES,
)
from plaunch.plugin.policies import LaunchRestartPolicy
from plaunch.testing import FakeRendezvous, plugin_manager
from plaunch_preload.plugin import plaunch_worker_starter
from plaunch_testing.conformance import (
    DeviceCounterConformance,
    EventHandlerConformance,
    HealthCheckConformance,
    LogsSpecsConformance,
    RendezvousHandlerConformance,
    RestartPolicyConformance,
    SchedulerConformance,
    SignalPolicyConformance,
    StarterConformance,
)

from helpers.environments import recorded
from helpers.ports import free_port


def each(suite, kind, *names):
    """Create the suite for all plugins with these names."""

    class Each(suite):
        @pytest.fixture(autouse=True, params=names)
        def _name(self, request):
            self.name = request.param

        def plugin(self):
            return plugin_manager().get(kind, self.name)

    return Each


TestLogsSpecs = each(LogsSpecsConformance, LOGS_SPECS, "default")
TestEventHandlers = each(EventHandlerConformance, EVENT_HANDLERS, "null", "console", "jsonl")
TestDeviceCounts = each(DeviceCounterConformance, DEVICE_COUNTS, "auto", "cpu", "gpu", "xpu")
TestSignalPolicies = each(SignalPolicyConformance, SIGNAL_POLICIES, "torchrun", "notify")
TestRestartPolicies = each(
    RestartPolicyConformance, RESTART_POLICIES, "standard", "always", "never"
)
TestHealthChecks = each(HealthCheckConformance, HEALTH_CHECKS, "disk", "memory", "gpu", "network")
TestStatic = each(RendezvousHandlerConformance, RENDEZVOUS, "static")
TestStatic.backend = "static"


class TestJsonlWithOptions(each(EventHandlerConformance, EVENT_HANDLERS, "jsonl")):
    @pytest.fixture(autouse=True)
    def _options(self, tmp_path):
        self.options = {"path": str(tmp_path / "events.jsonl"), "max_bytes": "2k", "keep": "1"}


class TestStandardWithOptions(each(RestartPolicyConformance, RESTART_POLICIES, "standard")):
    settings: ClassVar[dict[str, object]] = {
        "max_restarts": 50,
        "max_restarts_by_cause": {"hang": 1, "node": 2},
    }
    options: ClassVar[dict[str, object]] = {
        "restart_window": "1h",
        "restart_delay": "1s:60s",
        "no_restart_on": "exit:255,exception:ConfigError",
        "restart_on": "worker,signal:SIGKILL",
        "crash_loop": "2/5m",
        "exclude_node_after": 2,
    }


class TestCommand(each(HealthCheckConformance, HEALTH_CHECKS, "command")):
    options: ClassVar[dict[str, object]] = {"argument": "sh -c 'echo fine'"}


class TestNotifyOfOthers(each(SignalPolicyConformance, SIGNAL_POLICIES, "notify")):
    settings: ClassVar[dict[str, object]] = {"options": {"notify_signals": "SIGUSR2,SIGWINCH"}}


def scheduler(name, *environments):
    """The suite for a scheduler in these environments; a word is that of one that was recorded."""
    suite = each(SchedulerConformance, SCHEDULERS, name)
    suite.environments = [recorded(one) if isinstance(one, str) else one for one in environments]
    return suite


TestSlurm = scheduler("slurm", "slurm-step-2x1-task1", "slurm-step-1x1", "slurm-requeued-task0")
TestMpi = scheduler("mpi", "mpich-2x1-rank1", "openmpi-1x1-rank0")
TestKubernetes = scheduler(
    "kubernetes",
    {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "train-1"},
    {"JOB_COMPLETION_INDEX": "0", "JOB_NAME": "train"},
)
TestKubernetes.files = ("/etc/hosts",)  # the kubelet's, with the pod's own name
TestNone = scheduler("none", {"SLURM_JOB_ID": "1"})


class Launch:
    """A fake plugin manager that records the parameters of the backend."""

    def make(self, kind, name, params, *, seconds):
        self.params = params
        return FakeRendezvous()


class LookingSuite(RendezvousHandlerConformance):
    """A suite of which only the parameters are used."""

    __test__ = False
    _run_id = "conformance"


def test_a_backend_gets_the_parameters_of_a_launch():
    config = LaunchConfig(1, 1, 2, run_id="job", rdzv_backend="static")
    launch = Launch()
    policy = LaunchRestartPolicy(plugin_manager(), config.context())
    create_rendezvous(config, launch, policy)
    params = LookingSuite().parameters()
    for given, expected in ((params, launch.params), (params.job, launch.params.job)):
        for field in dataclasses.fields(expected):
            value = getattr(expected, field.name)
            if field.name == "restart_policy":
                assert callable(given.restart_policy.decide)
            else:
                assert type(getattr(given, field.name)) is type(value), field.name
    assert params.job.shared == launch.params.job.shared


class TestStaticOfSeveral(TestStatic):
    nodes = 3

    @pytest.fixture(autouse=True)
    def _endpoint(self):
        self.endpoint = f"127.0.0.1:{free_port()}"


class TestPreload(StarterConformance):
    options: ClassVar[dict[str, object]] = {"preload": "decimal,json"}

    def plugin(self):
        return plaunch_worker_starter
