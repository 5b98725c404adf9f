"""The option that selects a scheduler."""

from __future__ import annotations

from plaunch.options import Option

OPTIONS = (
    Option(
        ("--scheduler",),
        "scheduler from whose variables the number of nodes, node index, endpoint and run id are "
        "taken: slurm, kubernetes, mpi, none, or a plugin's name (default: none)",
        metavar="NAME",
        plugins="schedulers",
        is_shared=True,
        fill="plaunch_schedulers.filling:fill_in",
        # Variables that cause a message even if no scheduler is selected.
        fill_variables=("SLURM_JOB_ID", "OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS"),
    ),
)
