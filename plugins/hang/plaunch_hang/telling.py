"""What is said of a hang: where all ranks are, in lines for the user and in files."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, NamedTuple

from plaunch.durations import format_duration
from plaunch.errors import PlaunchError
from plaunch.numbers import name_ranks

from plaunch_hang.stacks import format_groups, group, take, write

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from plaunch.plugin import PluginContext
    from plaunch.process import Held

    from plaunch_hang.stacks import Group, ProcessStacks

logger = logging.getLogger("plaunch")


class Scene(NamedTuple):
    """Where workers of this node were at one moment.

    Args:
        stacks: all of each, by global rank.
        groups: the ranks by place, the likely cause first.
    """

    stacks: Mapping[int, ProcessStacks]
    groups: list[Group]

    @property
    def lines(self) -> list[str]:
        """One for each group."""
        return format_groups(self.groups)

    @property
    def first(self) -> int:
        """The rank that stands for the hang: the lowest of the first group with a stack."""
        known = [item for item in self.groups if item.frames] or self.groups
        return known[0].all_ranks[0]


class Scenes:
    """Looks at workers once more, as a whole, and keeps what it has seen.

    Args:
        context: the launch.
        take: the stacks of processes, by rank.
    """

    def __init__(
        self,
        context: PluginContext,
        take: Callable[[Mapping[int, int]], dict[int, ProcessStacks]] = take,
    ) -> None:
        self._context = context
        self._take = take
        self._count = 0

    def see(self, pids: Mapping[int, int], held: Mapping[int, Held] | None = None) -> Scene:
        """Where the workers with these processes are now, and what holds them."""
        stacks = self._take(pids)
        return Scene(stacks, group({self._context.host: stacks}, held))

    def keep(self, scene: Scene, title: str, groups: Sequence[Group] = ()) -> str:
        """Write whole stacks into the folder of the run; that folder, or nothing.

        Args:
            scene: the stacks.
            title: why they were looked at.
            groups: those of all nodes; none if they are as in the scene.
        """
        context = self._context
        if context.log_dir is None:
            return ""
        create = getattr(context.settings.get("logs_specs"), "create_run_dir", None)
        self._count += 1
        try:
            run = (None if create is None else create(context.run_id)) or context.log_dir
            folder = os.path.join(
                os.path.abspath(run), f"hang-{context.host}-{os.getpid()}-{self._count}"
            )
            write(folder, scene.stacks, groups or scene.groups, title)
        except (OSError, PlaunchError) as error:
            logger.warning("the stacks are kept in no file: %s", error)
            return ""
        return folder


def describe_held(held: Mapping[int, Held], host: str) -> str:
    """`rank 1 on node-a is suspended since 14:02:11`, for all that are held."""
    ranks: dict[str, list[int]] = {}
    for rank, hold in sorted(held.items()):
        ranks.setdefault(str(hold), []).append(rank)
    return ", ".join(
        f"{name_ranks(own)} on {host} {'is' if len(own) == 1 else 'are'} {hold}"
        for hold, own in ranks.items()
    )


def describe_time(seconds: float) -> str:
    """A time that has passed, without parts of seconds beyond the first minute."""
    return format_duration(round(seconds) if seconds >= 10 else round(seconds, 1))
