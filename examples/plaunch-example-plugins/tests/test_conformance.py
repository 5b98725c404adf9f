"""The conformance suites of plaunch, one for each plugin.

They try what every launcher relies on; what is special about a plugin is in the other files. The
class of a suite needs to know the plugin, and whatever the plugin needs to work at all.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
from typing import ClassVar

import pytest
from plaunch_example_plugins.devices import count_slots
from plaunch_example_plugins.events import AppendEventHandler
from plaunch_example_plugins.health import MountCheck
from plaunch_example_plugins.journal import Journal
from plaunch_example_plugins.logs import FlatLogsSpecs
from plaunch_example_plugins.rendezvous import create_handler
from plaunch_example_plugins.restarts import BrokenDevicePolicy
from plaunch_example_plugins.scheduler import find_allocation
from plaunch_example_plugins.signals import Usr1StopsPolicy
from plaunch_example_plugins.wrapper import plaunch_worker_starter
from plaunch_testing.conformance import (
    DeviceCounterConformance,
    EventHandlerConformance,
    HealthCheckConformance,
    HooksConformance,
    LogsSpecsConformance,
    RendezvousHandlerConformance,
    RestartPolicyConformance,
    SchedulerConformance,
    SignalPolicyConformance,
    StarterConformance,
)


@pytest.fixture
def hostfile(tmp_path):
    """A host file that names this machine alone."""
    path = tmp_path / "hosts.txt"
    path.write_text(f"{os.uname().nodename} slots=4 addr=127.0.0.1\n")
    return str(path)


class TestFlatLogsSpecs(LogsSpecsConformance):
    def plugin(self):
        return FlatLogsSpecs


class TestZstdLogsSpecs(LogsSpecsConformance):
    def plugin(self):
        if sys.version_info < (3, 14):
            pytest.importorskip("backports.zstd")
        return importlib.import_module("plaunch_example_plugins.compressed").ZstdLogsSpecs


class TestJournal(HooksConformance):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path, monkeypatch):
        monkeypatch.setenv("JOURNAL", str(tmp_path / "journal.txt"))

    def plugin(self):
        return Journal


class TestAppendEventHandler(EventHandlerConformance):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path, monkeypatch):
        monkeypatch.setenv("EVENTS_FILE", str(tmp_path / "events.jsonl"))

    def plugin(self):
        return AppendEventHandler


class TestCountSlots(DeviceCounterConformance):
    @pytest.fixture(autouse=True)
    def _file(self, hostfile, monkeypatch):
        monkeypatch.setenv("HOSTFILE", hostfile)

    def plugin(self):
        return count_slots


class TestWrapper(StarterConformance):
    @pytest.fixture(autouse=True)
    def _program(self, monkeypatch):
        monkeypatch.setenv("WORKER_WRAPPER", "nice -n 1")

    def plugin(self):
        return plaunch_worker_starter


class TestUsr1StopsPolicy(SignalPolicyConformance):
    def plugin(self):
        return Usr1StopsPolicy


class TestBrokenDevicePolicy(RestartPolicyConformance):
    def plugin(self):
        return BrokenDevicePolicy


class TestMountCheck(HealthCheckConformance):
    options: ClassVar[dict[str, str]] = {"argument": "/"}

    def plugin(self):
        return MountCheck


class TestHostfileScheduler(SchedulerConformance):
    @pytest.fixture(autouse=True)
    def _environment(self, hostfile):
        self.environments = [{"HOSTFILE": hostfile}]

    def plugin(self):
        return find_allocation


class TestHostfileRendezvous(RendezvousHandlerConformance):
    backend = "hostfile"

    @pytest.fixture(autouse=True)
    def _place(self, hostfile):
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.config = {"port": str(sock.getsockname()[1])}
        self.endpoint = hostfile

    def plugin(self):
        return create_handler
