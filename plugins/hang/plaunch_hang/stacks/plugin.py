"""The plugin behind `--stacks-on-failure` and `--flight-recorder`."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from plaunch import hookimpl
from plaunch.agent import Extension, collect_published
from plaunch.errors import ThreadStartError
from plaunch.threads import BoundedCall

from plaunch_hang.stacks.files import log_stacks, only_alive, workers_of
from plaunch_hang.stacks.grouping import group as group_ranks
from plaunch_hang.stacks.grouping import merge
from plaunch_hang.stacks.records import dump_groups, load_groups
from plaunch_hang.stacks.taking import take

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plaunch.agent import Control, GroupInfo, RunResult, WorkerInfo
    from plaunch.plugin import PluginContext

    from plaunch_hang.stacks.flight_recorder import FlightRecorder
    from plaunch_hang.stacks.grouping import StackGroup
    from plaunch_hang.stacks.stack import ProcessStacks

    Take = Callable[..., dict[int, ProcessStacks]]

logger = logging.getLogger("plaunch")

# Seconds; the agent's loop waits for a hook, which may take one second.
TAKE_TIMEOUT = 0.8
COLLECT_TIMEOUT = 0.7  # the last read may take 0.2 s more
_LOG_TIMEOUT = 1.5  # seconds, at the end of the launch
_NAME = "stacks-on-failure"
_ROOM = 64  # bytes of a text in addition to the groups
_MOST_TEXT = 16 << 10
_HEADLINE = "the other workers were here when one failed:"


class FailureStacks(NamedTuple):
    """The stacks of this node at a failure of the job.

    Args:
        workers: the workers of this node at that time.
        stacks: the stacks of running workers, by global rank.
        groups: the groups of these stacks.
        is_own: whether a worker of this node had ended.
    """

    workers: GroupInfo
    stacks: Mapping[int, ProcessStacks]
    groups: list[StackGroup]
    is_own: bool


class Stacks(Extension):
    """Reads the stacks of running workers when one fails, before they are stopped.

    The node of the failed worker logs the groups of the whole job, after a time for the other nodes
    to publish theirs: before the next round, or at the end.

    Args:
        take: reads the stacks of processes by rank, within `timeout` seconds.
        clock: monotonic seconds.
        sleep: sleeps for some seconds.
    """

    def __init__(
        self,
        take: Take = take,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._take = take
        self._clock = clock
        self._sleep = sleep
        self._context: PluginContext | None = None
        self._control: Control | None = None
        self._seen: FailureStacks | None = None
        self._logging: BoundedCall | None = None
        self._recorder: FlightRecorder | None = None

    # --- hooks ------------------------------------------------------------------------------------

    @hookimpl
    def plaunch_extensions(self, context: PluginContext) -> list[Extension]:
        """Create the selected extensions."""
        found: list[Extension] = []
        if context.options.get("stacks_on_failure"):
            self._context = context
            found.append(self)
        if context.options.get("flight_recorder"):
            from plaunch_hang.stacks.flight_recorder import FlightRecorder  # --flight-recorder

            self._recorder = FlightRecorder(context)
            found.append(self._recorder)
        return found

    @hookimpl
    def plaunch_worker_env(self, worker: WorkerInfo, env: Mapping[str, str]) -> Mapping[str, str]:
        """Set the variables of the flight recorder."""
        return {} if self._recorder is None else self._recorder.environment(worker, env)

    @hookimpl
    def plaunch_before_stop(self, group: GroupInfo, cause: str) -> None:
        """Read the stacks of running workers, and publish their groups."""
        if self._context is None or self._control is None or cause != "failure":
            return
        stacks = self._take(workers_of(group), timeout=TAKE_TIMEOUT)
        alive = only_alive(stacks)
        groups = group_ranks({self._context.host: alive})
        self._seen = FailureStacks(group, alive, groups, is_own=len(alive) < len(stacks))
        if group.group_world_size > 1:
            text = dump_groups(groups, most=_MOST_TEXT - _ROOM)
            self._control.publish(_NAME, f"{group.round} {text}")
        else:
            self._log(groups, is_shown=True)

    @hookimpl
    def plaunch_before_rendezvous(self) -> None:
        """Log the stacks before the next round."""
        self._conclude()

    @hookimpl
    def plaunch_agent_finished(self) -> None:
        """Log the stacks while other nodes can still be reached."""
        self._conclude()

    # --- the extension ----------------------------------------------------------------------------

    def start(self, control: Control) -> None:
        """Keep the control."""
        self._control = control

    def stop(self, result: RunResult | None) -> None:
        """Wait for the last stacks to be written."""
        self.rest()

    def rest(self) -> None:
        """Wait a bounded time for the thread that writes files."""
        if self._logging is not None:
            self._logging.wait(_LOG_TIMEOUT)
            self._logging = None

    # ----------------------------------------------------------------------------------------------

    def _conclude(self) -> None:
        seen, control = self._seen, self._control
        if seen is not None and control is not None:
            others = self._collect(seen, control) if seen.is_own else []
            self._log(merge([*seen.groups, *others]), is_shown=seen.is_own)

    def _collect(self, seen: FailureStacks, control: Control) -> list[StackGroup]:
        """The groups that nodes published in time."""
        _, found = collect_published(
            partial(control.published, _NAME),
            lambda node, text: _read(text, seen),
            COLLECT_TIMEOUT,
            count=seen.workers.group_world_size,
            clock=self._clock,
            sleep=self._sleep,
        )
        return [item for groups in found.values() for item in groups]

    def _log(self, groups: list[StackGroup], *, is_shown: bool) -> None:
        seen, context, self._seen = self._seen, self._context, None
        if seen is None or context is None:
            return
        log = partial(
            log_stacks,
            seen.stacks,
            _HEADLINE,
            host=context.host,
            attempt=seen.workers.attempt,
            occasion="failure",
            logs_specs=context.settings.get("logs_specs"),
            run_id=context.run_id,
            groups=groups,
            is_shown=is_shown,
        )
        try:
            self._logging = BoundedCall("stacks", log)
        except ThreadStartError as error:
            logger.warning("stacks are not logged: %s", error)


def _read(text: str, seen: FailureStacks) -> list[StackGroup] | None:
    """Parse the groups of a node; None if they are of another failure."""
    number, _, rest = text.partition(" ")
    if number != str(seen.workers.round):
        return None
    try:
        return load_groups(rest)
    except ValueError as error:
        logger.debug("the invalid stacks of another node are ignored: %s", error)
        return []
