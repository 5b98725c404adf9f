"""The allocation that a scheduler has made for a job, as one of its launchers sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """The nodes and ids that a scheduler has assigned to one job, for the launcher on one node.

    Fields that the scheduler does not set keep their default. New fields may be added.

    Args:
        nnodes: the number of nodes with a launcher of this job.
        node_rank: the index of this node among them, from 0.
        endpoint: the rendezvous endpoint if one of the nodes hosts it: `host` or `host:port` of the
            node with index 0, the same on all nodes.
        run_id: the id of the job, the same on all nodes; it differs after a restart by the
            scheduler.
        job_id: the id that the job keeps when the scheduler restarts it, under which workers may
            have saved data; empty if it is the run id.
        nproc_per_node: the number of workers on this node; not that of its processors or devices.
        sources: the variable of each field that is set, for messages.
        missing: for fields that are not set, one sentence on what the user can do. It becomes a
            usage error if the launch has several nodes and the user gives no value.

    Raises:
        ValueError: `nnodes` or `nproc_per_node` is below 1, or `node_rank` is out of range.
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
