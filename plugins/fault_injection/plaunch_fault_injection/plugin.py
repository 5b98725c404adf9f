"""The plugin behind `--inject`: what it is told of a launch, and what workers need of it."""

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


class Chaos:
    """Has the faults of one launch injected."""

    def __init__(self) -> None:
        self._injector: Injector | None = None

    @hookimpl
    def plaunch_extensions(self, context: PluginContext) -> list[Injector]:
        """Inject faults, if some are asked for.

        Raises:
            UsageError: what is asked for is none.
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
        """Let a worker be told to exit, if it may be."""
        return {} if self._injector is None else self._injector.environment(worker.global_rank)

    @hookimpl
    def plaunch_after_rendezvous(self, group: GroupInfo) -> None:
        """See the step files as they are, and which ranks there are."""
        if self._injector is not None:
            self._injector.prepare(group)

    @hookimpl
    def plaunch_workers_started(self, group: GroupInfo) -> None:
        """Begin to count the time."""
        if self._injector is not None:
            self._injector.begin(group)

    @hookimpl
    def plaunch_worker_exited(self, exit: WorkerExit) -> None:
        """Know that a worker is gone; a failure ends the round."""
        if self._injector is not None:
            self._injector.forget(exit.worker.global_rank)
            if exit.stopped or exit.exitcode:
                self._injector.end()

    @hookimpl
    def plaunch_state_changed(self, new: WorkerState) -> None:
        """End the round when its workers are to stop."""
        if self._injector is not None and new is not WorkerState.HEALTHY:
            self._injector.end()
