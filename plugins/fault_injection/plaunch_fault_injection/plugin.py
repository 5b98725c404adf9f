"""The hooks of `--inject`, which pass the events of a launch to the injector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch import hookimpl
from plaunch.agent import WorkerState
from plaunch.errors import UsageError

from plaunch_fault_injection.faults import parse_faults
from plaunch_fault_injection.injector import Injector

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.agent import GroupInfo, WorkerExit, WorkerInfo
    from plaunch.plugin import PluginContext


class FaultInjection:
    """The plugin object of one launch."""

    def __init__(self) -> None:
        self._injector: Injector | None = None

    @hookimpl
    def plaunch_extensions(self, context: PluginContext) -> list[Injector]:
        """Create the injector, if the option is given.

        Raises:
            UsageError: the option is malformed.
        """
        given = context.options.get("inject")
        if given is None:
            return []
        if not isinstance(given, str):
            raise UsageError(f"inject is {given!r}; give a text as in 'kill:rank=1,after=30s'")
        try:
            faults = parse_faults(given)
        except ValueError as error:
            raise UsageError(f"inject: {error}") from None
        self._injector = Injector(context, faults)
        return [self._injector]

    @hookimpl
    def plaunch_worker_env(self, worker: WorkerInfo) -> Mapping[str, str]:
        """The variables that make a worker exit on request, for an `exit` fault."""
        return {} if self._injector is None else self._injector.environment(worker.global_rank)

    @hookimpl
    def plaunch_after_rendezvous(self, group: GroupInfo) -> None:
        """Record the state of the step files and the ranks."""
        if self._injector is not None:
            self._injector.prepare(group)

    @hookimpl
    def plaunch_workers_started(self, group: GroupInfo) -> None:
        """Start the clock of the round."""
        if self._injector is not None:
            self._injector.begin(group)

    @hookimpl
    def plaunch_worker_exited(self, exit: WorkerExit) -> None:
        """Remove the worker; a failure ends the round."""
        if self._injector is not None:
            self._injector.remove_worker(exit.worker.global_rank)
            if exit.stopped or exit.exitcode:
                self._injector.end()

    @hookimpl
    def plaunch_state_changed(self, new: WorkerState) -> None:
        """End the round when its workers must stop."""
        if self._injector is not None and new is not WorkerState.HEALTHY:
            self._injector.end()
