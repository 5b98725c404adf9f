"""What an agent runs: the spec of its workers, the workers, their environment and their result."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plaunch.durations import PERIOD
from plaunch.errors import UsageError
from plaunch.numbers import MOST_WORKERS
from plaunch.process.components import WorkerInfo
from plaunch.values import Record, Value, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plaunch.process.child_failed import ChildFailedError
    from plaunch.process.components import Binder
    from plaunch.process.failure import EarlierAttempt, ProcessFailure
    from plaunch.process.logs import Std
    from plaunch.rendezvous.api import RendezvousHandler, RendezvousInfo, Store

# Who hosts the workers' store: the launcher of the node of rank 0, or the worker of rank 0.
WORKER_STORES = ("agent", "rank0")


class WorkerState(str, enum.Enum):
    """State of a worker group; names and values are torchrun's.

    A worker group starts in INIT, becomes HEALTHY once its workers run, and ends SUCCEEDED or
    FAILED. STOPPED is a group that its agent has stopped, normally to start it again; UNHEALTHY
    has workers that are alive but stuck.
    """

    UNKNOWN = "UNKNOWN"
    INIT = "INIT"
    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @staticmethod
    def is_running(state: WorkerState) -> bool:
        """Whether a group in `state` has live worker processes."""
        return state in (WorkerState.HEALTHY, WorkerState.UNHEALTHY)


@plain_dataclass
class WorkerSpec(Record):
    """What to run on one node. Names and defaults are torchrun's.

    Args:
        local_world_size: the number of workers on this node.
        rdzv_handler: finds the other nodes.
        fn: an older name of `entrypoint`.
        entrypoint: a function, or the path of a program.
        args: its arguments; `${local_rank}` in a string argument is replaced for each worker.
        master_port: overrides the port that the rendezvous found.
        master_addr: overrides the address that the rendezvous found.
        log_dir: with `redirects` and `tee`, the arguments that torchrun had before logs specs.

    All other fields are those of `LaunchConfig`.

    Raises:
        UsageError: `local_world_size` is not positive, `monitor_interval` cannot be used, or there
            is no entrypoint.
    """

    role: str
    local_world_size: int
    rdzv_handler: RendezvousHandler
    fn: Callable[..., Any] | None = None
    entrypoint: Callable[..., Any] | str = None  # type: ignore[assignment]  # else `fn` is set
    args: tuple[Any, ...] = ()
    max_restarts: int = 3
    monitor_interval: float = 0.1
    master_port: int | None = None
    master_addr: str | None = None
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: object = None
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    log_dir: str | None = None
    redirects: Std | Mapping[int, Std] | None = None
    tee: Std | Mapping[int, Std] | None = None
    devices: list[str] | None = None
    worker_store: str = "agent"
    job_id: str = ""

    def __post_init__(self) -> None:
        check_workers(self.local_world_size, f"local_world_size is {self.local_world_size}")
        PERIOD.check(self.monitor_interval, "monitor_interval")
        if self.max_restarts < 0:
            raise UsageError(f"max_restarts is {self.max_restarts}; it cannot be negative")
        check_choice("worker_store", self.worker_store, WORKER_STORES)
        if self.fn is not None:
            self.entrypoint = self.fn
        if self.entrypoint is None:
            raise UsageError("a WorkerSpec needs an entrypoint: a function or a program")

    @property
    def uses_agent_store(self) -> bool:
        """Whether workers connect to a store that none of them hosts."""
        is_wanted = self.worker_store == "agent" and self.rdzv_handler.use_agent_store
        return is_wanted or self._handler_hosts_store

    @property
    def hosts_worker_store(self) -> bool:
        """Whether it is up to the launcher of the node of rank 0 to host that store."""
        return self.uses_agent_store and not self._handler_hosts_store

    @property
    def _handler_hosts_store(self) -> bool:
        # A handler of torch has only `use_agent_store`, which stands for both.
        handler = self.rdzv_handler
        return bool(getattr(handler, "hosts_worker_store", handler.use_agent_store))

    def get_entrypoint_name(self) -> str:
        """The function's qualified name, or the program's base name."""
        if isinstance(self.entrypoint, str):
            return self.entrypoint.rpartition("/")[2]
        name: str = getattr(self.entrypoint, "__qualname__", repr(self.entrypoint))
        return name


def check_workers(count: float, what: str) -> None:
    """See whether a node may run so many workers.

    Raises:
        UsageError: it may not; the message begins with `what`.
    """
    if not count >= 1:
        raise UsageError(f"{what}; a node runs at least one worker")
    if not count <= MOST_WORKERS:
        raise UsageError(f"{what}; a node runs at most {MOST_WORKERS} workers")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Check that a setting has one of its choices.

    Raises:
        UsageError: it does not.
    """
    if value not in choices:
        raise UsageError(
            f"{name} {value!r} is unknown (--{name.replace('_', '-')}); choices: "
            f"{', '.join(choices)}"
        )


@dataclass(eq=False)
class Worker:
    """One worker as its agent knows it; names are torchrun's. Ranks are -1 until assigned."""

    local_rank: int
    global_rank: int = -1
    role_rank: int = -1
    world_size: int = -1
    role_world_size: int = -1
    # What the agent's _start_workers returned for it: a pid, with ours.
    id: Any = field(default=None, init=False)


class WorkerGroup:
    """The workers of one agent, and the round that they are in; names are torchrun's."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.workers = [Worker(local_rank=rank) for rank in range(spec.local_world_size)]
        self._info: RendezvousInfo | None = None
        self._store: Store | None = None
        self.group_rank: int | None = None
        self.group_world_size: int | None = None
        self.master_addr: str | None = None
        self.master_port: int | None = None
        self.state = WorkerState.INIT
        # The workers and their ids, and the description made from them.
        self._described: tuple[list[Worker], list[Any], tuple[WorkerInfo, ...]] = [], [], ()

    def describe_workers(self) -> tuple[WorkerInfo, ...]:
        """Return the public description of the workers: the same object until one has changed.

        A launch keeps thousands of notifications, and each has it.
        """
        ids = [worker.id for worker in self.workers]
        workers, known_ids, described = self._described
        if workers is not self.workers or known_ids != ids:
            described = tuple(map(describe_worker, self.workers))
            self._described = self.workers, ids, described
        return described

    @property
    def store(self) -> Store | None:
        """The store of the round; see `RendezvousInfo.store`. An agent may set another one."""
        if self._store is None and self._info is not None:
            return self._info.store
        return self._store

    @store.setter
    def store(self, store: Store | None) -> None:
        self._store, self._info = store, None

    @property
    def agent_store(self) -> Store | None:
        """The store through which agents wait for each other; None if they share none."""
        return self._store

    def enter_round(self, info: RendezvousInfo, agent_store: Store | None) -> None:
        """Set the rank, the size and the stores of a round that has formed."""
        store_info = info.bootstrap_store_info
        self._store, self._info = agent_store, info
        self.group_rank = info.rank
        self.group_world_size = info.world_size
        self.master_addr = self.spec.master_addr or store_info.master_addr
        self.master_port = self.spec.master_port or store_info.master_port


@plain_dataclass
class RunResult(Record):
    """How a run ended, by global rank; names are torchrun's.

    `return_values` has an entry for every worker of this agent that succeeded (None for programs),
    `failures` one for every worker that failed. `stopped` is plaunch's: the exit code of every
    worker that was ended because of another one (-15 for SIGTERM).

    Where the rendezvous knows the whole job, `failures` are those of all nodes, and `first_failure`
    is the rank that failed first, as the nodes agreed; else it is None. Of very large jobs,
    `counted` has how many more there are, by words for them such as "ranks 40-99 (exit code 1)".
    `early_ends` has a line for each node on which workers had succeeded before the first failure.
    `no_restart` is why a restart policy decided against a restart, or empty. `earlier` has the
    attempts of the job that were followed by a restart, as far as this agent was part of them.
    """

    state: WorkerState
    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    stopped: dict[int, int] = field(default_factory=dict)
    early_ends: list[str] = field(default_factory=list)
    first_failure: int | None = None
    counted: dict[str, int] = field(default_factory=dict)
    no_restart: str = ""
    earlier: list[EarlierAttempt] = field(default_factory=list)

    def is_failed(self) -> bool:
        """Whether the workers failed."""
        return self.state == WorkerState.FAILED

    def error(self, name: str) -> ChildFailedError:
        """What a launch of `name` raises whose workers have failed."""
        from plaunch.process import ChildFailedError  # failures only

        return ChildFailedError(
            name,
            self.failures,
            stopped=self.stopped,
            early_ends=self.early_ends,
            first=self.first_failure,
            counted=self.counted,
            no_restart=self.no_restart,
            earlier=self.earlier,
        )


LAUNCHER = -1  # the "rank" of a failure of the launcher, in reports


def launcher_failure(text: str, exitcode: int) -> ProcessFailure:
    """A failure of the launcher, for example of the store that it hosts.

    Args:
        text: what happened.
        exitcode: the exit code that the launch ends with because of it.
    """
    from plaunch.process.failure import ProcessFailure  # failures only

    return ProcessFailure(
        LAUNCHER,
        os.getpid(),
        exitcode,
        "",
        error_file_data={"message": text},
        global_rank=LAUNCHER,
    )


def describe_worker(worker: Worker) -> WorkerInfo:
    """The public description of `worker`, for plugins."""
    return WorkerInfo(
        local_rank=worker.local_rank,
        global_rank=worker.global_rank,
        role_rank=worker.role_rank,
        world_size=worker.world_size,
        role_world_size=worker.role_world_size,
        pid=worker.id if isinstance(worker.id, int) else None,
    )


@plain_dataclass
class GroupInfo(Value):
    """One agent's worker group as plugins see it; new fields may be added.

    Before the first round is complete, `group_rank` and `group_world_size` are -1, the address is
    empty and the port 0. `attempt` is `TORCHELASTIC_RESTART_COUNT`; `round` counts the worlds that
    were formed, from 0.
    """

    run_id: str
    role: str
    state: WorkerState = WorkerState.INIT
    attempt: int = 0
    round: int = -1
    max_restarts: int = 0
    group_rank: int = -1
    group_world_size: int = -1
    master_addr: str = ""
    master_port: int = 0
    workers: tuple[WorkerInfo, ...] = ()


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
