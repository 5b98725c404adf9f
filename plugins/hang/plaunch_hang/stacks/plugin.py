"""The plugin behind `--stacks-on-failure` and `--flight-recorder`."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from plaunch import hookimpl
from plaunch.errors import ThreadStartError
from plaunch.threads import BoundedCall

from plaunch_hang.stacks.grouping import group as group_ranks
from plaunch_hang.stacks.grouping import merge
from plaunch_hang.stacks.records import dump_groups, load_groups
from plaunch_hang.stacks.taking import take
from plaunch_hang.stacks.telling import only_alive, tell, workers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plaunch.agent import Control, Extension, GroupInfo, RunResult, WorkerInfo
    from plaunch.events import Event
    from plaunch.plugin import PluginContext

    from plaunch_hang.stacks.flight_recorder import FlightRecorder
    from plaunch_hang.stacks.grouping import Group
    from plaunch_hang.stacks.stack import ProcessStacks

    Take = Callable[..., dict[int, ProcessStacks]]

logger = logging.getLogger("plaunch")

# Seconds; a hook may take one, within which the agent's loop waits.
TAKE_BOUND = 0.8
COLLECT_BOUND = 0.8
_TELL_BOUND = 1.5  # seconds, at the end of the launch
_PAUSE = 0.05  # seconds between two looks at what other nodes have seen
_NAME = "stacks-on-failure"
_ROOM = 64  # bytes of a text beside the groups
_MOST_TEXT = 16 << 10
_HEADLINE = "the other workers were here when one had failed:"


class Seen(NamedTuple):
    """What this node has seen at the failure of a worker of the job.

    Args:
        workers: the workers of this node then.
        stacks: of those that lived, by global rank.
        groups: these in groups.
        is_own: whether some of this node had ended.
    """

    workers: GroupInfo
    stacks: Mapping[int, ProcessStacks]
    groups: list[Group]
    is_own: bool


class Stacks:
    """Looks at the workers that live when one fails, before they are stopped.

    The node of the failed worker shows the groups of the whole job, once the others have had the
    time to look at theirs: before the next round, or at the end.

    Args:
        take: looks at processes by rank, within `timeout` seconds.
        clock: seconds that never go back.
        sleep: waits for so many seconds.
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
        self._seen: Seen | None = None
        self._telling: BoundedCall | None = None
        self._recorder: FlightRecorder | None = None

    # --- hooks ------------------------------------------------------------------------------------

    @hookimpl
    def plaunch_extensions(self, context: PluginContext) -> list[Extension]:
        """Give the extensions that are asked for."""
        found: list[Extension] = []
        if context.options.get("stacks_on_failure"):
            self._context = context
            found.append(self)
        if context.options.get("flight_recorder"):
            from plaunch_hang.stacks.flight_recorder import FlightRecorder  # one option

            self._recorder = FlightRecorder(context)
            found.append(self._recorder)
        return found

    @hookimpl
    def plaunch_worker_env(self, worker: WorkerInfo, env: Mapping[str, str]) -> Mapping[str, str]:
        """Set what the flight recorder needs."""
        return {} if self._recorder is None else self._recorder.environment(worker, env)

    @hookimpl
    def plaunch_before_stop(self, group: GroupInfo, cause: str) -> None:
        """Look at those that live, and let the other nodes know."""
        if self._context is None or self._control is None or cause != "failure":
            return
        stacks = self._take(workers_of(group), timeout=TAKE_BOUND)
        alive = only_alive(stacks)
        groups = group_ranks({self._context.host: alive})
        self._seen = Seen(group, alive, groups, is_own=len(alive) < len(stacks))
        if group.group_world_size > 1:
            text = dump_groups(groups, most=_MOST_TEXT - _ROOM)
            self._control.publish(_NAME, f"{group.round} {text}")
        else:
            self._tell(groups, is_shown=True)

    @hookimpl
    def plaunch_before_rendezvous(self) -> None:
        """Tell what was seen, before there are other workers."""
        self._conclude()

    @hookimpl
    def plaunch_agent_finished(self) -> None:
        """Tell what was seen, while other nodes can still be asked."""
        self._conclude()

    # --- the extension ----------------------------------------------------------------------------

    def start(self, control: Control) -> None:
        """Know how to reach the other nodes."""
        self._control = control

    def handle(self, event: Event) -> None:
        """Wait for nothing: the hooks come in time, events may not."""

    def stop(self, result: RunResult | None) -> None:
        """Have the last stacks in their files."""
        self.rest()

    def rest(self) -> None:
        """Have no thread, as far as files are soon written."""
        if self._telling is not None:
            self._telling.wait(_TELL_BOUND)
            self._telling = None

    # ----------------------------------------------------------------------------------------------

    def _conclude(self) -> None:
        seen, control = self._seen, self._control
        if seen is not None and control is not None:
            others = self._collect(seen, control) if seen.is_own else []
            self._tell(merge([*seen.groups, *others]), is_shown=seen.is_own)

    def _collect(self, seen: Seen, control: Control) -> list[Group]:
        """The groups of all nodes that have told theirs in time, or can at all."""
        until = self._clock() + COLLECT_BOUND
        while True:
            left = until - self._clock()
            texts = control.published(_NAME, max(left, _PAUSE)) or {}
            told = [groups for text in texts.values() if (groups := _read(text, seen)) is not None]
            if len(told) >= seen.workers.group_world_size or left <= _PAUSE or not texts:
                return [item for groups in told for item in groups]
            self._sleep(_PAUSE)

    def _tell(self, groups: list[Group], *, is_shown: bool) -> None:
        seen, context, self._seen = self._seen, self._context, None
        if seen is None or context is None:
            return
        say = partial(
            tell,
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
            self._telling = BoundedCall("stacks", say)
        except ThreadStartError as error:
            logger.warning("stacks are not told: %s", error)


def _read(text: str, seen: Seen) -> list[Group] | None:
    """The groups of a node at the same failure; None for what is of another one."""
    number, _, rest = text.partition(" ")
    if number != str(seen.workers.round):
        return None
    try:
        return load_groups(rest)
    except ValueError as error:
        logger.debug("the stacks of another node are left out: %s", error)
        return []
