"""Messages about the program that started this launcher. They change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.durations import SHUTDOWN_TIMEOUT
from plaunch.numbers import digits

from plaunch_schedulers.slurm import LAST_STEP

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.cli import Arguments

# Options that configure the rendezvous.
_RENDEZVOUS_OPTIONS = (
    "scheduler",
    "nnodes",
    "node_rank",
    "standalone",
    "rdzv_backend",
    "rdzv_endpoint",
    "rdzv_id",
    "master_addr",
    "master_port",
)

_WORKER = "TORCHELASTIC_RUN_ID"  # set for workers, and so for launchers that they start

# Open MPI's setting, in the environments of Open MPI up to 4 and from 5 on, and its default.
_SIGKILL_TIMEOUT = "odls_base_sigkill_timeout"
_PREFIXES = ("OMPI_MCA_", "PRTE_MCA_")
_DEFAULT_SIGKILL_TIMEOUT = 1  # seconds


def offer_scheduler(args: Arguments, environ: Mapping[str, str]) -> str:
    """Describe how this launcher and others can become one job, if there are others.

    It is only advice: under torchrun each of them is a separate job, as in a sweep. Empty if the
    user has configured the rendezvous, or no other launcher was started.
    """
    if _WORKER in environ or any(map(args.is_given, _RENDEZVOUS_OPTIONS)):
        return ""
    mpi = _count(environ, "OMPI_COMM_WORLD_SIZE") or (
        _count(environ, "PMI_SIZE") if "MPI_LOCALNRANKS" in environ else 0
    )
    if mpi:
        return _offer("mpirun", mpi, "mpi") if mpi > 1 else ""
    if "SLURM_JOB_ID" not in environ or "SLURM_PTY_PORT" in environ:  # an interactive shell
        return ""
    step = digits(environ.get("SLURM_STEP_ID", ""))
    if step is not None and step <= LAST_STEP:
        nodes = _count(environ, "SLURM_STEP_NUM_NODES")
        is_one_each = (
            _count(environ, "SLURM_STEP_NUM_TASKS") == nodes
            and environ.get("SLURM_STEP_TASKS_PER_NODE") == f"1(x{nodes})"
        )
        return _offer("srun", nodes, "slurm") if nodes > 1 and is_one_each else ""
    nodes = _count(environ, "SLURM_JOB_NUM_NODES")
    if nodes < 2:
        return ""
    return (
        f"this job of Slurm's has {nodes} nodes, but this launcher uses only one, because srun "
        f"did not start it; start it with srun --nodes={nodes} --ntasks={nodes} "
        "--ntasks-per-node=1 plaunch --scheduler=slurm ... to use them all (--scheduler=none "
        "leaves this line out)"
    )


def warn_of_hasty_stop(shutdown_timeout: float | None, environ: Mapping[str, str]) -> str:
    """Return a warning if `mpirun` kills workers before their grace is over; else empty.

    Args:
        shutdown_timeout: the grace of the workers in seconds; None for the default.
        environ: the environment variables of this launcher.
    """
    if "OMPI_COMM_WORLD_SIZE" not in environ or _WORKER in environ:
        return ""
    grace = SHUTDOWN_TIMEOUT if shutdown_timeout is None else shutdown_timeout
    values = [digits(environ.get(prefix + _SIGKILL_TIMEOUT, "")) for prefix in _PREFIXES]
    timeout = next((number for number in values if number is not None), _DEFAULT_SIGKILL_TIMEOUT)
    if grace == 0 or timeout > grace:
        return ""
    return (
        f"Open MPI's mpirun kills its processes {timeout} s after SIGTERM, in spite of "
        f"--shutdown-timeout ({grace:g} s), so workers cannot save; set --mca {_SIGKILL_TIMEOUT} "
        "to more seconds than that"
    )


def _offer(program: str, count: int, scheduler: str) -> str:
    return (
        f"{program} has started {count} launchers, each running its own job; "
        f"--scheduler={scheduler} makes them one (--scheduler=none leaves this line out)"
    )


def _count(environ: Mapping[str, str], variable: str) -> int:
    """Return the number in a variable; 0 if there is none."""
    return digits(environ.get(variable, "")) or 0
