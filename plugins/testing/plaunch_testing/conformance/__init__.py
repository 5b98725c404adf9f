"""Conformance suites for authors of plugins; they need pytest.

There is one class for each kind of plugin, one for lifecycle hooks, one for starters of workers,
and one for options. The method `plugin` returns the object to which the plugin's name refers:

    from plaunch_testing.conformance import EventHandlerConformance

    class TestMyHandler(EventHandlerConformance):
        def plugin(self):
            return MyHandler

Authors of a backend for several nodes write either a store or a whole handler:

    from plaunch_testing.conformance import RendezvousConformance, RendezvousStoreConformance

    class TestMyStore(RendezvousStoreConformance):
        def connect(self):
            return MyStore("127.0.0.1:1234")

    class TestMyBackend(RendezvousConformance):
        def create(self, params):
            return create_my_handler(params)
"""

import pkgutil

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{one.name}" for one in pkgutil.iter_modules(__path__))
)

from plaunch_testing.conformance.device_counts import (  # noqa: E402 - after the lines above
    DeviceCounterConformance as DeviceCounterConformance,
)
from plaunch_testing.conformance.engines import (  # noqa: E402
    EngineConformance as EngineConformance,
)
from plaunch_testing.conformance.event_handlers import (  # noqa: E402
    EventHandlerConformance as EventHandlerConformance,
)
from plaunch_testing.conformance.health_checks import (  # noqa: E402
    HealthCheckConformance as HealthCheckConformance,
)
from plaunch_testing.conformance.hooks import (  # noqa: E402
    HooksConformance as HooksConformance,
)
from plaunch_testing.conformance.jobs import (  # noqa: E402
    RendezvousConformance as RendezvousConformance,
)
from plaunch_testing.conformance.logs_specs import (  # noqa: E402
    LogsSpecsConformance as LogsSpecsConformance,
)
from plaunch_testing.conformance.options import (  # noqa: E402
    OptionsConformance as OptionsConformance,
)
from plaunch_testing.conformance.rendezvous_handlers import (  # noqa: E402
    RendezvousHandlerConformance as RendezvousHandlerConformance,
)
from plaunch_testing.conformance.restart_policies import (  # noqa: E402
    RestartPolicyConformance as RestartPolicyConformance,
)
from plaunch_testing.conformance.schedulers import (  # noqa: E402
    SchedulerConformance as SchedulerConformance,
)
from plaunch_testing.conformance.signal_policies import (  # noqa: E402
    SignalPolicyConformance as SignalPolicyConformance,
)
from plaunch_testing.conformance.starters import (  # noqa: E402
    StarterConformance as StarterConformance,
)
from plaunch_testing.conformance.stores import (  # noqa: E402
    RendezvousStoreConformance as RendezvousStoreConformance,
)
