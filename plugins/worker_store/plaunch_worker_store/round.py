"""What a round of an agent has to do with its workers' store."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from plaunch.errors import ExitCode
from plaunch.process.failures.failure import ProcessFailure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.agent.worker import WorkerGroup
    from plaunch_worker_store.hosting import Interpreter
    from plaunch_worker_store.store import WorkerStore
    from plaunch.errors import WorkerStoreError

LAUNCHER = -1  # the "rank" of a failure that is no worker's; its launcher's, in reports


def open_store(
    store: WorkerStore, group: WorkerGroup, envs: Mapping[int, Mapping[str, str]]
) -> None:
    """Begin the store of a round, if it is up to this node to host it.

    Args:
        store: the agent's.
        group: the group of workers that is about to start.
        envs: what their environments have beside the launcher's, by local rank.

    Raises:
        WorkerStoreError: another program listens at its address.
    """
    store.close()
    if group.group_rank == 0 and group.spec.hosts_worker_store:
        store.open(
            str(group.master_addr),
            int(group.master_port or 0),
            nodes=group.group_world_size or 1,
            interpreter=lambda: find_interpreter(group.spec.entrypoint, envs.get(0, {})),
        )


def find_interpreter(entrypoint: object, env: Mapping[str, str]) -> Interpreter:
    """The interpreter that runs `entrypoint`, or if that cannot be told, scripts in general."""
    from plaunch_worker_store.hosting import Interpreter  # noqa: PLC0415 - once it is needed

    environ = {**os.environ, **env}
    if isinstance(entrypoint, str):
        from plaunch._names import is_python  # noqa: PLC0415 - as above

        if is_python(entrypoint):
            return Interpreter(entrypoint, environ)
        return Interpreter(os.environ.get("PYTHON_EXEC") or sys.executable, environ)
    # What multiprocessing starts finds modules where this process does.
    return Interpreter(_own_interpreter(), environ, tuple(filter(None, sys.path)))


def lost_store(error: WorkerStoreError) -> ProcessFailure:
    """The failure of a round whose store was lost, or could not be hosted: the launcher's own."""
    failure = ProcessFailure(LAUNCHER, os.getpid(), ExitCode.CONTROL_PLANE_LOST, "")
    failure.message = str(error)
    failure.error_file_data = {"message": str(error)}
    failure.global_rank = LAUNCHER
    return failure


def _own_interpreter() -> str:
    from multiprocessing import spawn  # noqa: PLC0415 - loaded already where functions run

    executable = spawn.get_executable()
    return os.fsdecode(executable) if executable else sys.executable
