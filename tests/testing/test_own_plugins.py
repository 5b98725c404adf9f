"""The plugins that come with plaunch, held to the suites that third parties use."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from plaunch.plugin import (
    DEVICE_COUNTS,
    EVENT_HANDLERS,
    LOGS_SPECS,
    RENDEZVOUS,
    SCHEDULERS,
    SIGNAL_POLICIES,
)
from plaunch.testing import plugin_manager
from plaunch_testing.conformance import (
    DeviceCounterConformance,
    EventHandlerConformance,
    LogsSpecsConformance,
    RendezvousHandlerConformance,
    SchedulerConformance,
    SignalPolicyConformance,
)

from helpers.ports import free_port

ENVIRONMENTS = Path(__file__).parents[1] / "schedulers" / "environments"


def named(kind, name):
    return plugin_manager().get(kind, name)


def recorded(*names):
    """Environments of real launchers, as they were recorded."""
    return [
        dict(
            line.split("=", 1)
            for line in (ENVIRONMENTS / f"{name}.env").read_text().splitlines()
            if "=" in line and not line.startswith("#")
        )
        for name in names
    ]


class TestDefaultLogsSpecs(LogsSpecsConformance):
    def plugin(self):
        return named(LOGS_SPECS, "default")


class TestNull(EventHandlerConformance):
    def plugin(self):
        return named(EVENT_HANDLERS, "null")


class TestConsole(EventHandlerConformance):
    def plugin(self):
        return named(EVENT_HANDLERS, "console")


class TestJsonl(EventHandlerConformance):
    def plugin(self):
        return named(EVENT_HANDLERS, "jsonl")


class TestJsonlWithOptions(TestJsonl):
    @pytest.fixture(autouse=True)
    def _options(self, tmp_path):
        self.options = {"path": str(tmp_path / "events.jsonl"), "max_bytes": "2k", "keep": "1"}


class TestCpu(DeviceCounterConformance):
    def plugin(self):
        return named(DEVICE_COUNTS, "cpu")


class TestAuto(DeviceCounterConformance):
    def plugin(self):
        return named(DEVICE_COUNTS, "auto")


class TestGpu(DeviceCounterConformance):
    def plugin(self):
        return named(DEVICE_COUNTS, "gpu")


class TestXpu(DeviceCounterConformance):
    def plugin(self):
        return named(DEVICE_COUNTS, "xpu")


class TestTorchrunPolicy(SignalPolicyConformance):
    def plugin(self):
        return named(SIGNAL_POLICIES, "torchrun")


class TestNotify(SignalPolicyConformance):
    def plugin(self):
        return named(SIGNAL_POLICIES, "notify")


class TestNotifyOfOthers(TestNotify):
    settings: ClassVar[dict[str, str]] = {"notify_signals": "SIGUSR2,SIGWINCH"}


class TestSlurm(SchedulerConformance):
    environments = recorded("slurm-step-2x1-task1", "slurm-step-1x1", "slurm-requeued-task0")

    def plugin(self):
        return named(SCHEDULERS, "slurm")


class TestMpi(SchedulerConformance):
    environments = recorded("mpich-2x1-rank1", "openmpi-1x1-rank0")

    def plugin(self):
        return named(SCHEDULERS, "mpi")


class TestKubernetes(SchedulerConformance):
    environments: ClassVar[list[dict[str, str]]] = [
        {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "train-1"},
        {"JOB_COMPLETION_INDEX": "0", "JOB_NAME": "train"},
    ]
    files = ("/etc/hosts",)  # the kubelet's, with the pod's own name

    def plugin(self):
        return named(SCHEDULERS, "kubernetes")


class TestNone(SchedulerConformance):
    environments: ClassVar[list[dict[str, str]]] = [{"SLURM_JOB_ID": "1"}]

    def plugin(self):
        return named(SCHEDULERS, "none")


class TestStatic(RendezvousHandlerConformance):
    backend = "static"

    def plugin(self):
        return named(RENDEZVOUS, "static")


class TestStaticOfSeveral(TestStatic):
    nodes = 3

    @pytest.fixture(autouse=True)
    def _endpoint(self):
        self.endpoint = f"127.0.0.1:{free_port()}"
