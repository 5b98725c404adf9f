"""The plugin behind `--hang-timeout` and `--on-hang`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.errors import UsageError
from plaunch.plugin import hookimpl

from plaunch_hang.extension import HangExtension
from plaunch_hang.options import ACTIONS, AUTO, hang_timeout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.agent import GroupInfo, WorkerInfo
    from plaunch.plugin import PluginContext


class Hangs:
    """The hooks of one launch."""

    def __init__(self) -> None:
        self._extension: HangExtension | None = None

    @hookimpl
    def plaunch_extensions(self, context: PluginContext) -> list[HangExtension]:
        """Watch the launch, if a timeout is given.

        Raises:
            UsageError: the timeout is invalid, or an action is given without one.
        """
        given, action = context.options.get("hang_timeout"), context.options.get("on_hang")
        if given is None:
            if action is not None:
                raise UsageError(f"--on-hang={action} needs --hang-timeout")
            return []
        if action not in (None, *ACTIONS):
            raise UsageError(f"on_hang is {action!r}; give one of {', '.join(ACTIONS)}")
        try:
            timeout = hang_timeout(str(given))
        except ValueError as error:
            raise UsageError(f"hang_timeout: {error}") from None
        seconds = None if timeout == AUTO else float(timeout)
        self._extension = HangExtension(context, seconds, action or "warn")
        return [self._extension]

    @hookimpl
    def plaunch_after_rendezvous(self, group: GroupInfo) -> None:
        """Record the round before its workers start."""
        if self._extension is not None:
            self._extension.begin(group.round, group.group_rank, group.group_world_size)

    @hookimpl
    def plaunch_worker_env(self, worker: WorkerInfo) -> Mapping[str, str]:
        """Set the variable for a worker's heartbeats."""
        return {} if self._extension is None else self._extension.environment(worker)
