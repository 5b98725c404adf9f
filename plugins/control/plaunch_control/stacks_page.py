"""The page with the stacks of all workers; imports the library that reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plaunch.numbers import format_ranks, parse_ranks
from plaunch_hang.stacks import JobStacks, format_groups

from plaunch_control.requests import HttpResponse, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from plaunch.agent import Control
    from plaunch.plugin import PluginContext
    from plaunch_hang.stacks import JobView, StackGroup

_MOST_GROUPS = 1000  # as lines


class StacksPage:
    """Answers requests for stacks, of clients and of other nodes.

    Args:
        context: the launch.
        control: the control of the agent.
        count_nodes: returns the number of nodes of the job, or None.
    """

    def __init__(
        self, context: PluginContext, control: Control, count_nodes: Callable[[], int | None]
    ) -> None:
        self.stacks = JobStacks(context, control)
        self._count_nodes = count_nodes

    def show(self, given: Mapping[str, Any]) -> HttpResponse:
        """Return the stacks of all workers, or of the requested ranks."""
        wanted = parse_ranks(given["ranks"]) if given.get("ranks") else None
        try:
            view = self.stacks.ask()
        except TimeoutError as error:
            return refusal(503, str(error))
        groups = view.groups if wanted is None else view.of(wanted)
        if not groups:
            where = "" if view.is_job_wide else " on this node"
            return refusal(
                409,
                f"no worker runs{where} now" if wanted is None else f"none of them runs{where}",
                silent=view.silent,
            )
        return HttpResponse(
            {
                "lines": format_groups(groups, most=_MOST_GROUPS),
                "groups": [_describe(group) for group in groups],
                "folders": [{"host": host, "folder": folder} for host, folder in view.folders],
                "notes": [*self._notes_on(view)],
                "silent": view.silent,
            }
        )

    def _notes_on(self, view: JobView) -> Iterator[str]:
        if view.silent:
            word = "has" if len(view.silent) == 1 else "have"
            yield f"{', '.join(view.silent)} {word} not answered within 3 s"
        if not view.has_store:
            yield "the store of the job did not answer: these are the workers of this node"
        if not view.is_job_wide and self._count_nodes() != 1:
            yield "the nodes of this job do not know each other: these are the workers of this node"
        for host, problem in view.problems:
            yield f"whole stacks of {host} are not kept: {problem}"
        if not view.folders and not view.problems:
            yield "whole stacks are kept with --log-dir"


def _describe(group: StackGroup) -> dict[str, Any]:
    return {
        "ranks": format_ranks(group.all_ranks),
        "hosts": {host: format_ranks(ranks) for host, ranks in group.ranks.items()},
        "frames": [frame._asdict() for frame in group.frames],
        "state": group.state,
        "reason": group.reason,
        "child": [frame._asdict() for frame in group.child],
        "held": group.held,
        "child_kind": None if group.kind is None else group.kind.value,
    }
