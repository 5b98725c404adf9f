"""The kinds of named component, and what a name of each kind gives.

Importing this module costs next to nothing: neither pluggy nor any plugin is needed to know it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from plaunch.events import EventHandler
from plaunch.plugin import groups
from plaunch.plugin.context import PluginContext
from plaunch.process.stopping.signals import SignalPolicy
from plaunch.process.streams.logs import LogsSpecs
from plaunch.rendezvous.api import RendezvousHandler, RendezvousParameters
from plaunch.scheduling import Allocation

RendezvousFactory = Callable[[RendezvousParameters], RendezvousHandler]
LogsSpecsFactory = type[LogsSpecs]
EventHandlerFactory = Callable[[PluginContext], EventHandler]
DeviceCounter = Callable[[], int]
SignalPolicyFactory = Callable[[PluginContext], SignalPolicy]
Scheduler = Callable[[Mapping[str, str]], Allocation]

T = TypeVar("T")


@dataclass(frozen=True)
class Kind(Generic[T]):
    """A kind of plugin. `T` is what a name of this kind gives.

    Args:
        name: the word for the kind in `-p KIND:NAME` and in the list of plugins.
        label: what messages call one plugin of the kind.
        groups: its entry-point groups; where one distribution offers a name in two of them, the
            first one counts.
        flag: the option that selects by name.
        hook: the hook that offers names; empty for plugins that are not selected by name.
    """

    name: str
    label: str
    groups: tuple[str, ...]
    flag: str
    hook: str


RENDEZVOUS: Kind[RendezvousFactory] = Kind(
    name="rendezvous",
    label="rendezvous backend",
    groups=(groups.RENDEZVOUS, groups.TORCHRUN_HANDLERS),
    flag="--rdzv-backend",
    hook="plaunch_rendezvous_backends",
)
LOGS_SPECS: Kind[LogsSpecsFactory] = Kind(
    name="logs_specs",
    label="logs spec",
    groups=(groups.TORCHRUN_LOGS_SPECS,),
    flag="--logs-specs",
    hook="plaunch_logs_specs",
)
EVENT_HANDLERS: Kind[EventHandlerFactory] = Kind(
    name="event_handlers",
    label="event handler",
    groups=(groups.EVENT_HANDLERS,),
    flag="--event-log-handler",
    hook="plaunch_event_handlers",
)
DEVICE_COUNTS: Kind[DeviceCounter] = Kind(
    name="device_counts",
    label="device counter",
    groups=(groups.DEVICE_COUNTS,),
    flag="--nproc-per-node",
    hook="plaunch_device_counts",
)
SIGNAL_POLICIES: Kind[SignalPolicyFactory] = Kind(
    name="signal_policies",
    label="signal policy",
    groups=(groups.SIGNAL_POLICIES,),
    flag="--signal-policy",
    hook="plaunch_signal_policies",
)
SCHEDULERS: Kind[Scheduler] = Kind(
    name="schedulers",
    label="scheduler",
    groups=(groups.SCHEDULERS,),
    flag="--scheduler",
    hook="plaunch_schedulers",
)
KINDS: tuple[Kind[Any], ...] = (
    RENDEZVOUS,
    LOGS_SPECS,
    EVENT_HANDLERS,
    DEVICE_COUNTS,
    SIGNAL_POLICIES,
    SCHEDULERS,
)

# Plugins that only implement hooks: always on, never selected by name.
LIFECYCLE: Kind[object] = Kind(
    name=groups.LIFECYCLE_KIND, label="plugin", groups=(groups.PLUGINS,), flag="-p", hook=""
)
# Plugins with options of their own: loaded when one of these is given.
WITH_OPTIONS: Kind[object] = Kind(
    name=groups.OPTIONS_KIND, label="plugin", groups=(groups.OPTIONS,), flag="-p", hook=""
)
ALL_KINDS: tuple[Kind[Any], ...] = (LIFECYCLE, WITH_OPTIONS, *KINDS)
