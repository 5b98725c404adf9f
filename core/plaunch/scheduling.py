"""What a scheduler says about the node that it has started a launcher on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """What a scheduler has given to one job, as the launcher on one of its nodes sees it.

    A field that the scheduler says nothing about keeps its default; the launcher then does without.
    New fields may be added.

    Args:
        nnodes: how many nodes run a launcher of this job.
        node_rank: the index of this node among them, from 0.
        endpoint: where launchers meet if one of the nodes hosts the rendezvous: `host` or
            `host:port`, the same on all nodes. The host is the node with index 0.
        run_id: the id of the job, the same on all nodes, and another one for the next job, also
            if the scheduler has only restarted it.
        job_id: the id that a job keeps when the scheduler restarts it, for its workers, which
            may have saved data under it; empty if that is the run id.
        nproc_per_node: how many workers this node shall run. Processors or devices that a job may
            use are not that number.
        sources: for the fields that are set, the variables that they were taken from, for messages.
        missing: for fields that are not set, what the user can do about it, as one sentence. It
            becomes a usage error if the launch has several nodes and the user gives no value.

    Raises:
        ValueError: `nnodes` or `nproc_per_node` is below 1, or `node_rank` is no index of a node.
    """

    nnodes: int | None = None
    node_rank: int | None = None
    endpoint: str = ""
    run_id: str = ""
    job_id: str = ""
    nproc_per_node: int | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("nnodes", "nproc_per_node"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it is at least 1")
        if self.node_rank is not None and (
            self.node_rank < 0 or (self.nnodes is not None and self.node_rank >= self.nnodes)
        ):
            raise ValueError(f"node_rank is {self.node_rank}, and nnodes is {self.nnodes}")
