"""The types of what a name of each kind of plugin stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from plaunch.events import EventHandler
from plaunch.health import HealthCheck
from plaunch.plugin.context import PluginContext
from plaunch.process.logs import LogsSpecs
from plaunch.process.signals import SignalPolicy
from plaunch.rendezvous.api import RendezvousHandler
from plaunch.rendezvous.parameters import RendezvousParameters
from plaunch.restarts.api import RestartPolicy
from plaunch.scheduling import Allocation

RendezvousFactory = Callable[[RendezvousParameters], RendezvousHandler]
LogsSpecsFactory = type[LogsSpecs]
EventHandlerFactory = Callable[[PluginContext], EventHandler]
DeviceCounter = Callable[[], int]
SignalPolicyFactory = Callable[[PluginContext], SignalPolicy]
RestartPolicyFactory = Callable[[PluginContext], RestartPolicy]
HealthCheckFactory = Callable[[PluginContext], HealthCheck]
Scheduler = Callable[[Mapping[str, str]], Allocation]
