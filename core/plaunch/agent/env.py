"""The environment of a worker, with torchrun's variables and two more, and its arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.agent.worker import Worker, WorkerGroup
    from plaunch.process.components import Binder


def worker_environment(
    group: WorkerGroup,
    worker: Worker,
    *,
    attempt: int,
    round: int,
    environ: Mapping[str, str],
    binder: Binder | None = None,
) -> dict[str, str]:
    """The variables of one worker, beside those that it inherits from the launcher.

    Two are plaunch's own: `PLAUNCH_ROUND`, how many worlds were formed before this one, and
    `PLAUNCH_JOB_ID`, the id that the job keeps when it is started again. The logs spec adds
    `TORCHELASTIC_ERROR_FILE`, and `binder` the variables that select devices.

    Raises:
        UsageError: the worker's devices are not there.
    """
    spec = group.spec
    handler = spec.rdzv_handler
    env = {
        "LOCAL_RANK": str(worker.local_rank),
        "RANK": str(worker.global_rank),
        "GROUP_RANK": str(group.group_rank),
        "ROLE_RANK": str(worker.role_rank),
        "ROLE_NAME": spec.role,
        "LOCAL_WORLD_SIZE": str(spec.local_world_size),
        "WORLD_SIZE": str(worker.world_size),
        "GROUP_WORLD_SIZE": str(group.group_world_size),
        "ROLE_WORLD_SIZE": str(worker.role_world_size),
        "MASTER_ADDR": str(group.master_addr),
        "MASTER_PORT": str(group.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(spec.max_restarts),
        "TORCHELASTIC_RUN_ID": handler.get_run_id(),
        "TORCHELASTIC_USE_AGENT_STORE": str(spec.uses_agent_store),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        "PLAUNCH_ROUND": str(round),
        "PLAUNCH_JOB_ID": spec.job_id or handler.get_run_id(),
    }
    if "OMP_NUM_THREADS" in environ:
        env["OMP_NUM_THREADS"] = environ["OMP_NUM_THREADS"]
    if binder is not None:
        env.update(binder.environment(worker.local_rank, {**environ, **env}))
    return env


class macros:  # noqa: N801 - the name is torchrun's
    """The macros that worker arguments may contain; names are torchrun's."""

    local_rank = "${local_rank}"

    @staticmethod
    def substitute(args: list[Any], local_rank: str) -> list[Any]:
        """Replace `${local_rank}` in every string of `args`; everything else stays as it is.

        torchrun substitutes with string templates, which also turn `$$` into `$`; an argument
        without the macro is left alone here.
        """
        return [
            arg.replace(macros.local_rank, local_rank) if isinstance(arg, str) else arg
            for arg in args
        ]
