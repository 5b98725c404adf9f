"""The option that selects the host of the workers' store."""

from __future__ import annotations

from plaunch.options import Option

PLUGIN = "plaunch_worker_store.plugin"
KNOWN_AS = "the workers' store"

OPTIONS = (
    Option(
        ("--worker-store",),
        "host of the workers' store: agent (the launcher on the node of rank 0; the store outlives "
        "all workers) or rank0 (the worker of rank 0, for programs that bind MASTER_PORT "
        "themselves, and with USE_LIBUV=0) (default: agent)",
        default="agent",
        metavar="WHO",
        choices=("agent", "rank0"),
        fill="plaunch_worker_store.filling:fill_in",
        fill_variables=("USE_LIBUV",),
    ),
)
