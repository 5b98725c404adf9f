"""The stacks of workers that hang, as lines for the log and as files."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, NamedTuple

from plaunch.durations import format_duration
from plaunch.errors import PlaunchError
from plaunch.numbers import name_ranks
from plaunch.process import find_run_dir

from plaunch_hang.stacks import format_groups, group, keep, take

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from plaunch.plugin import PluginContext
    from plaunch.process import Held

    from plaunch_hang.stacks import ProcessStacks, StackGroup

logger = logging.getLogger("plaunch")


class StackSnapshot(NamedTuple):
    """The stacks of workers of this node at one time.

    Args:
        stacks: the stacks, by global rank.
        groups: the ranks grouped by stack, the likely cause first.
    """

    stacks: Mapping[int, ProcessStacks]
    groups: list[StackGroup]

    @property
    def lines(self) -> list[str]:
        """One line for each group."""
        return format_groups(self.groups)

    @property
    def first(self) -> int:
        """The rank to report as failed: the lowest of the first group."""
        return self.groups[0].all_ranks[0]


class StackSnapshots:
    """Takes the complete stacks of workers, and writes them to files.

    Args:
        context: the launch.
        take: reads the stacks of processes, by rank.
    """

    def __init__(
        self,
        context: PluginContext,
        take: Callable[[Mapping[int, int]], dict[int, ProcessStacks]] = take,
    ) -> None:
        self._context = context
        self._take = take

    def take(
        self, pids: Mapping[int, int], held: Mapping[int, Held] | None = None
    ) -> StackSnapshot:
        """Take the stacks of these processes; `held` says what holds workers."""
        stacks = self._take(pids)
        return StackSnapshot(stacks, group({self._context.host: stacks}, held))

    def keep(self, snapshot: StackSnapshot, title: str, groups: Sequence[StackGroup] = ()) -> str:
        """Write the stacks to a folder below that of the run; return it, or an empty text.

        Args:
            snapshot: the stacks.
            title: why they were taken.
            groups: the groups of all nodes; by default those of `snapshot`.
        """
        context = self._context
        if context.log_dir is None:
            return ""
        name = f"hang-{context.host}-{os.getpid()}-{{}}"
        try:
            run_dir = find_run_dir(context.settings.get("logs_specs"), context.run_id)
            return keep(
                snapshot.stacks,
                groups or snapshot.groups,
                title,
                run_dir or context.log_dir,
                name,
            )
        except (OSError, PlaunchError) as error:
            logger.warning("the stacks cannot be written to a file: %s", error)
            return ""


def describe_held(held: Mapping[int, Held], host: str) -> str:
    """Describe what holds workers: `rank 1 on node-a is suspended since 14:02:11`."""
    ranks: dict[str, list[int]] = {}
    for rank, hold in sorted(held.items()):
        ranks.setdefault(str(hold), []).append(rank)
    return ", ".join(
        f"{name_ranks(own)} on {host} {'is' if len(own) == 1 else 'are'} {hold}"
        for hold, own in ranks.items()
    )


def describe_time(seconds: float) -> str:
    """Format a duration; from ten seconds on, in whole seconds."""
    return format_duration(round(seconds) if seconds >= 10 else round(seconds, 1))
