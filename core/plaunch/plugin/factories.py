"""What a name of each kind stands for: the types of the objects that plugins offer by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plaunch.engines import BatchEngine, Engine, EngineRequest
    from plaunch.events import EventHandler
    from plaunch.health import HealthCheck
    from plaunch.plugin.context import PluginContext
    from plaunch.process.logs import LogsSpecs
    from plaunch.process.signals import SignalPolicy
    from plaunch.rendezvous.api import RendezvousHandler
    from plaunch.rendezvous.backend import RendezvousParameters
    from plaunch.restarts import RestartPolicy
    from plaunch.scheduling import Allocation

RendezvousFactory = Callable[["RendezvousParameters"], "RendezvousHandler"]
LogsSpecsFactory = type["LogsSpecs"]
EventHandlerFactory = Callable[["PluginContext"], "EventHandler"]
DeviceCounter = Callable[[], int]
SignalPolicyFactory = Callable[["PluginContext"], "SignalPolicy"]
RestartPolicyFactory = Callable[["PluginContext"], "RestartPolicy"]
HealthCheckFactory = Callable[["PluginContext"], "HealthCheck"]
Scheduler = Callable[[Mapping[str, str]], "Allocation"]
EngineFactory = Callable[["EngineRequest"], "Engine | BatchEngine"]
