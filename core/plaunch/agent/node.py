"""What a node brings to its job, as the specification of its workers says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.durations import bounded
from plaunch.rendezvous.api import NodeSettings, RendezvousHandler
from plaunch.rendezvous.job import JobRendezvous

if TYPE_CHECKING:
    from plaunch.agent.worker import WorkerSpec

_AFTER_GRACE = 15.0  # seconds that a stop may take beyond the grace, with workers that hardly die


def longest_stop(shutdown_timeout: float) -> float:
    """Seconds within which workers with this grace have been stopped, in all likelihood."""
    return bounded(shutdown_timeout) + _AFTER_GRACE


def prepare_rendezvous(spec: WorkerSpec, shutdown_timeout: float) -> None:
    """Let the rendezvous of `spec` know what this node is going to run.

    Whoever launches has said so before, and nobody else has: an agent that is built by hand gets
    its handler from parameters that say nothing of workers.

    Raises:
        UsageError: the rendezvous was told otherwise before.
    """
    handler = spec.rdzv_handler
    if not isinstance(handler, (RendezvousHandler, JobRendezvous)):
        return  # one of torch's, which may have a method of that name and another meaning
    prepare = getattr(handler, "prepare", None)  # a `JobRendezvous` need not be derived from ours
    if prepare is None:
        return
    prepare(
        NodeSettings(
            role=spec.role,
            local_world_size=spec.local_world_size,
            max_restarts=spec.max_restarts,
            stop_timeout=longest_stop(shutdown_timeout),
            local_addr=spec.local_addr,
        )
    )
