"""The built-in schedulers: they read from the environment what a launcher is part of.

None of them asks a service or resolves a name.
"""

from __future__ import annotations

from plaunch_schedulers.kubernetes import find_kubernetes_allocation
from plaunch_schedulers.mpi import find_mpi_allocation
from plaunch_schedulers.none import find_no_allocation
from plaunch_schedulers.slurm import find_slurm_allocation

__all__ = [
    "find_kubernetes_allocation",
    "find_mpi_allocation",
    "find_no_allocation",
    "find_slurm_allocation",
]
