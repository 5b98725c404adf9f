"""The kinds of plugins, and what a name of each kind stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from plaunch.values import Value, plain_dataclass

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

TORCHRUN_HANDLERS = "torchrun.handlers"  # its objects have torch's types

T = TypeVar("T")


@plain_dataclass
class Kind(Value, Generic[T]):
    """A kind of plugin. `T` is the type of what a name of this kind stands for.

    Args:
        name: the kind in `-p KIND:NAME` and in the list of plugins.
        label: the kind in messages, such as `logs spec`.
        groups: its entry-point groups; if a distribution lists a name in two of them, the first one
            has priority.
        flag: the option that selects by name.
        hook: the hook that offers names; empty for plugins that are not selected by name.
        methods: methods that a component of this kind must have.
        default: the name that a launch uses by default.
    """

    name: str
    label: str
    groups: tuple[str, ...]
    flag: str
    hook: str
    methods: tuple[str, ...] = ()
    default: str = ""


RENDEZVOUS: Kind[RendezvousFactory] = Kind(
    name="rendezvous",
    label="rendezvous backend",
    groups=("plaunch.rendezvous", TORCHRUN_HANDLERS),
    flag="--rdzv-backend",
    hook="plaunch_rendezvous_backends",
    methods=("next_rendezvous", "num_nodes_waiting", "get_run_id", "shutdown"),
    default="static",
)
LOGS_SPECS: Kind[LogsSpecsFactory] = Kind(
    name="logs_specs",
    label="logs spec",
    groups=("plaunch.logs_specs", "torchrun.logs_specs"),
    flag="--logs-specs",
    hook="plaunch_logs_specs",
    default="default",
)
EVENT_HANDLERS: Kind[EventHandlerFactory] = Kind(
    name="event_handlers",
    label="event handler",
    groups=("plaunch.event_handlers",),
    flag="--event-log-handler",
    hook="plaunch_event_handlers",
    default="null",
)
DEVICE_COUNTS: Kind[DeviceCounter] = Kind(
    name="device_counts",
    label="device counter",
    groups=("plaunch.device_counts",),
    flag="--nproc-per-node",
    hook="plaunch_device_counts",
)
SIGNAL_POLICIES: Kind[SignalPolicyFactory] = Kind(
    name="signal_policies",
    label="signal policy",
    groups=("plaunch.signal_policies",),
    flag="--signal-policy",
    hook="plaunch_signal_policies",
    methods=("signals", "action"),
    default="torchrun",
)
RESTART_POLICIES: Kind[RestartPolicyFactory] = Kind(
    name="restart_policies",
    label="restart policy",
    groups=("plaunch.restart_policies",),
    flag="--restart-policy",
    hook="plaunch_restart_policies",
    methods=("decide",),
    default="standard",
)
HEALTH_CHECKS: Kind[HealthCheckFactory] = Kind(
    name="health_checks",
    label="health check",
    groups=("plaunch.health_checks",),
    flag="--health-check",
    hook="plaunch_node_health",
    methods=("check",),
)
SCHEDULERS: Kind[Scheduler] = Kind(
    name="schedulers",
    label="scheduler",
    groups=("plaunch.schedulers",),
    flag="--scheduler",
    hook="plaunch_schedulers",
)
ENGINES: Kind[EngineFactory] = Kind(
    name="engines",
    label="engine",
    groups=("plaunch.engines",),
    flag="--on",
    hook="plaunch_engines",
    methods=("close",),
)
KINDS: tuple[Kind[Any], ...] = (
    RENDEZVOUS,
    LOGS_SPECS,
    EVENT_HANDLERS,
    DEVICE_COUNTS,
    SIGNAL_POLICIES,
    RESTART_POLICIES,
    HEALTH_CHECKS,
    SCHEDULERS,
    ENGINES,
)

# Plugins that only implement hooks: loaded in every launch.
LIFECYCLE: Kind[object] = Kind(
    name="plugin", label="plugin", groups=("plaunch.plugins",), flag="-p", hook=""
)
# Plugins with options: loaded if one of their options is given.
WITH_OPTIONS: Kind[object] = Kind(
    name="options", label="plugin", groups=("plaunch.options",), flag="-p", hook=""
)
ALL_KINDS: tuple[Kind[Any], ...] = (LIFECYCLE, WITH_OPTIONS, *KINDS)
GROUPS = frozenset(group for kind in ALL_KINDS for group in kind.groups)
