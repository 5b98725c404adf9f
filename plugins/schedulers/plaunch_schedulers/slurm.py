"""Slurm: the job step that `srun` has started, with one launcher on each of its nodes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from plaunch.errors import UsageError
from plaunch.scheduling import Allocation
from plaunch_network import expand_hostlist

from plaunch_schedulers.numbers import find_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch_schedulers.numbers import Number

# Jobs may share nodes, so each has its own port: outside of Linux's ephemeral ports (from 32768),
# of Kubernetes' node ports (from 30000), and of torchrun's 29400 and 29500.
FIRST_PORT = 20000
PORTS = 8192
_APART = 1021  # the distance between the ports of two steps of one job; a prime

# Higher ids are not steps of srun, but batch scripts, shells and the like.
LAST_STEP = 0xFFFFFFF0

_TASKS = re.compile(r"([0-9]{1,9})(?:\(x[0-9]+\))?")


def find_slurm_allocation(environ: Mapping[str, str]) -> Allocation:
    """Return the allocation of this launcher's job step, or of the batch script of one node.

    The job id consists of the ids of job and step; the run id also has the number of requeues. The
    endpoint is on the first node of the step, at a port that follows from the two ids.

    Raises:
        UsageError: this is not a job of Slurm's, one of its variables is malformed or missing, or
            there are several launchers on one node.
    """
    job = find_number(environ, "SLURM_JOB_ID", "SLURM_JOBID")
    if job is None:
        raise UsageError(
            "--scheduler=slurm, but SLURM_JOB_ID is not set: this launcher runs outside of Slurm's "
            "jobs; start it with srun or sbatch, or leave the option out"
        )
    _refuse_mpirun(environ)
    restarts = find_number(environ, "SLURM_RESTART_COUNT")
    again = f"-restart-{restarts.value}" if restarts is not None and restarts.value else ""
    step = find_number(environ, "SLURM_STEP_ID", "SLURM_STEPID")
    if step is None or step.value > LAST_STEP:
        return _outside_of_steps(environ, job, again)

    nnodes = _number(environ, "SLURM_STEP_NUM_NODES", "SLURM_NNODES", at_least=1)
    node_rank = _number(environ, "SLURM_NODEID")
    _refuse_several(environ, nnodes)
    if node_rank.value >= nnodes.value:
        raise UsageError(
            f"variable SLURM_NODEID is {node_rank.value} in a step of {nnodes.value} nodes "
            f"({nnodes.variable}); something other than Slurm has changed one of them"
        )
    endpoint, variable = _endpoint(environ, nnodes, job, step)
    return Allocation(
        nnodes=nnodes.value,
        node_rank=node_rank.value,
        endpoint=endpoint,
        run_id=f"slurm-{job.value}.{step.value}{again}",
        job_id=f"slurm-{job.value}.{step.value}",
        sources={
            "nnodes": nnodes.variable,
            "node_rank": node_rank.variable,
            "endpoint": f"{variable}, {job.variable}, {step.variable}",
            "run_id": f"{job.variable}, {step.variable}"
            + (", SLURM_RESTART_COUNT" if again else ""),
            "job_id": f"{job.variable}, {step.variable}",
        },
    )


def _outside_of_steps(environ: Mapping[str, str], job: Number, again: str) -> Allocation:
    """Return the allocation of a batch script or a shell of `salloc`, which run on one node."""
    job_id = f"slurm-{job.value}"
    run_id = f"{job_id}{again}"
    sources = {
        "run_id": job.variable + (", SLURM_RESTART_COUNT" if again else ""),
        "job_id": job.variable,
    }
    nnodes = _number(environ, "SLURM_JOB_NUM_NODES", "SLURM_NNODES", at_least=1)
    if nnodes.value > 1:
        return Allocation(
            run_id=run_id,
            job_id=job_id,
            sources=sources,
            missing={
                "nnodes": (
                    f"job {job.value} has {nnodes.value} nodes ({nnodes.variable}), but this "
                    "launcher is not a task of a step: a batch script, or a shell of salloc, runs "
                    f"on one node only; start it with {_srun(nnodes.value)}"
                )
            },
        )
    return Allocation(
        nnodes=1,
        node_rank=0,
        run_id=run_id,
        job_id=job_id,
        sources={"nnodes": nnodes.variable, "node_rank": nnodes.variable, **sources},
    )


def _refuse_mpirun(environ: Mapping[str, str]) -> None:
    """Reject launchers of mpirun, whose variables of Slurm describe the step of MPI's daemons.

    Open MPI and MPICH start their daemons with srun. Ranks on the first node of a batch script see
    no step at all, so this check comes first.
    """
    for variable, program in (
        ("OMPI_COMM_WORLD_SIZE", "Open MPI's mpirun"),
        ("MPI_LOCALNRANKS", "MPICH's mpiexec"),
    ):
        if variable in environ:
            raise UsageError(
                f"--scheduler=slurm, but this launcher was started by {program} ({variable} is "
                "set): Slurm's variables describe mpirun's own step; write --scheduler=mpi"
            )


def _refuse_several(environ: Mapping[str, str], nnodes: Number) -> None:
    """Reject several launchers on one node, which would compete for one index."""
    most, variable = _most_tasks(environ, nnodes)
    if most > 1:
        raise UsageError(
            f"this step runs {most} launchers on one node ({variable}) with the same run id; one "
            "launcher on each node starts all its workers (--nproc-per-node): start it with "
            f"{_srun(nnodes.value)}, or write --scheduler=none for launchers of separate jobs"
        )


def _most_tasks(environ: Mapping[str, str], nnodes: Number) -> tuple[int, str]:
    """Return the maximum number of tasks on one node, and the variable that it comes from.

    `SLURM_NTASKS_PER_NODE` is not read, because it is the requested number, which may differ.
    """
    local = find_number(environ, "SLURM_LOCALID")
    variable = "SLURM_STEP_TASKS_PER_NODE"
    text = environ.get(variable)
    if text:
        counts = [_TASKS.fullmatch(part) for part in text.split(",")]
        if not all(counts):
            raise UsageError(f"variable {variable} is {text!r}; Slurm writes it as 2(x3),1")
        most = max(int(count[1]) for count in counts if count)
    else:
        tasks = _number(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", at_least=1)
        most, variable = -(-tasks.value // nnodes.value), tasks.variable
    if local is not None and local.value >= most:
        return local.value + 1, local.variable
    return most, variable


def _endpoint(
    environ: Mapping[str, str], nnodes: Number, job: Number, step: Number
) -> tuple[str, str]:
    for variable in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if environ.get(variable):
            break
    else:
        raise _missing("SLURM_STEP_NODELIST")
    try:
        hosts = expand_hostlist(environ[variable])
    except UsageError as error:
        raise UsageError(f"variable {variable}: {error}") from None
    if len(hosts) != nnodes.value:
        raise UsageError(
            f"variable {variable} is {environ[variable]!r}, which has {len(hosts)} of "
            f"{nnodes.value} nodes ({nnodes.variable}); something other than Slurm has changed "
            "one of them"
        )
    port = FIRST_PORT + (job.value + _APART * step.value) % PORTS
    return f"{hosts[0]}:{port}", variable


def _srun(nnodes: int) -> str:
    # --ntasks, too: otherwise srun uses the job's, and ignores --ntasks-per-node.
    return f"srun --nodes={nnodes} --ntasks={nnodes} --ntasks-per-node=1 plaunch ..."


def _number(environ: Mapping[str, str], *variables: str, at_least: int = 0) -> Number:
    number = find_number(environ, *variables, at_least=at_least)
    if number is None:
        raise _missing(variables[0])
    return number


def _missing(variable: str) -> UsageError:
    return UsageError(
        f"--scheduler=slurm, but {variable} is not set, although srun sets it; something has "
        "removed it from the environment, as containers may (--scheduler=none ignores it)"
    )
