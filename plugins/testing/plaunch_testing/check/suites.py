"""The suites for the plugins under test; `check.running` runs them.

The fixture `subjects` provides the plugins.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from plaunch.errors import UsageError
from plaunch.rendezvous import RendezvousHandler, RendezvousParameters

from plaunch_testing.conformance import (
    DeviceCounterConformance,
    EngineConformance,
    EventHandlerConformance,
    HealthCheckConformance,
    HooksConformance,
    LogsSpecsConformance,
    OptionsConformance,
    RendezvousConformance,
    RendezvousHandlerConformance,
    RestartPolicyConformance,
    SchedulerConformance,
    SignalPolicyConformance,
    StarterConformance,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from plaunch_testing.check.subjects import Subject


class _SubjectSuite:
    """Gets the plugin from the fixture `subjects`."""

    kind = ""

    @pytest.fixture(autouse=True)
    def _subject(self, subjects: Mapping[str, Subject]) -> None:
        self.subject = subjects[self.kind]
        # Authors set these as class attributes.
        suite: Any = self
        suite.module = self.subject.module
        suite.is_for_torch = self.subject.is_for_torch
        suite.options = self.subject.options

    def plugin(self) -> Any:
        """Return the object that the name refers to."""
        return self.subject.thing


class Test_plugin(_SubjectSuite, HooksConformance):  # noqa: N801 - found by the kind's name
    """The checks of lifecycle hooks."""

    kind = "plugin"


class Test_plaunch_worker_starter(_SubjectSuite, StarterConformance):  # noqa: N801
    """The checks of a starter of workers."""

    kind = "plaunch_worker_starter"


class Test_options(_SubjectSuite, OptionsConformance):  # noqa: N801 - found by the kind's name
    """The checks of a module that declares options."""

    kind = "options"


class Test_logs_specs(_SubjectSuite, LogsSpecsConformance):  # noqa: N801 - found by the kind's name
    """The checks of a logs spec."""

    kind = "logs_specs"


class Test_event_handlers(_SubjectSuite, EventHandlerConformance):  # noqa: N801
    """The checks of an event handler."""

    kind = "event_handlers"


class Test_device_counts(_SubjectSuite, DeviceCounterConformance):  # noqa: N801
    """The checks of a device counter."""

    kind = "device_counts"


class Test_signal_policies(_SubjectSuite, SignalPolicyConformance):  # noqa: N801
    """The checks of a signal policy."""

    kind = "signal_policies"


class Test_restart_policies(_SubjectSuite, RestartPolicyConformance):  # noqa: N801
    """The checks of a restart policy."""

    kind = "restart_policies"


class Test_health_checks(_SubjectSuite, HealthCheckConformance):  # noqa: N801
    """The checks of a health check."""

    kind = "health_checks"


class Test_engines(_SubjectSuite, EngineConformance):  # noqa: N801
    """The checks of an engine; the text after a colon of `--on` is its place."""

    kind = "engines"


class Test_schedulers(_SubjectSuite, SchedulerConformance):  # noqa: N801
    """The checks of a scheduler."""

    kind = "schedulers"

    @pytest.fixture(autouse=True)
    def _environments(self, _subject: None) -> None:
        # Use this process's environment as an example if the scheduler accepts it.
        environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        suite: Any = self
        try:
            self.plugin()(environ)
        except UsageError:
            return
        except Exception:  # noqa: BLE001, S110 - the checks report it
            pass
        suite.environments = [environ]


class Test_rendezvous(_SubjectSuite, RendezvousHandlerConformance):  # noqa: N801
    """The checks of a plain handler."""

    kind = "rendezvous"

    @pytest.fixture(autouse=True)
    def _meeting(self, _subject: None) -> None:
        suite: Any = self
        suite.backend = self.subject.name
        suite.endpoint = self.subject.given.endpoint
        suite.config = self.subject.given.config
        suite.local_addr = self.subject.given.local_addr
        suite.nodes = self.subject.given.nodes


class Test_job_rendezvous(RendezvousConformance):  # noqa: N801
    """The checks of a `JobRendezvous`."""

    kind = "job_rendezvous"

    @pytest.fixture(autouse=True, scope="class")
    def _host(self, subjects: Mapping[str, Subject]) -> Iterator[None]:
        # If a node hosts the store, this one does. It takes no part, and outlives all others.
        subject = subjects[self.kind]
        run_id = f"conformance-host-{os.getpid()}"
        params = RendezvousParameters(
            subject.name,
            subject.given.endpoint,
            run_id,
            1,
            2,
            subject.given.local_addr,
            **dict[str, Any](subject.given.config),
        )
        host = subject.thing(params)
        yield
        host.shutdown()

    @pytest.fixture(autouse=True)
    def _subject(self, _host: None, subjects: Mapping[str, Subject]) -> None:
        self.subject = subjects[self.kind]
        suite: Any = self
        suite.backend = self.subject.name
        suite.endpoint = self.subject.given.endpoint
        suite.config = self.subject.given.config
        suite.local_addr = self.subject.given.local_addr

    def create(self, params: RendezvousParameters) -> RendezvousHandler:
        """Create a node's handler."""
        handler: RendezvousHandler = self.subject.thing(params)
        return handler
