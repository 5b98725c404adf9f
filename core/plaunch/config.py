"""The validated settings of a launch, from options, variables or code."""

from __future__ import annotations

import os
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any

from plaunch.agent.worker import WORKER_STORES, check_choice, check_workers
from plaunch.durations import EXIT_BARRIER_TIMEOUT, LIMIT, PATIENCE, PERIOD, SHUTDOWN_TIMEOUT
from plaunch.errors import NodeRangeError, UsageError
from plaunch.numbers import MOST_NODES
from plaunch.plugin.kinds import EVENT_HANDLERS, RENDEZVOUS, RESTART_POLICIES, SIGNAL_POLICIES
from plaunch.process.components import START_METHODS
from plaunch.process.marks import RUN_ID_VARIABLE
from plaunch.process.signals import DEFAULT_SIGNALS
from plaunch.values import Record, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch.plugin.context import PluginContext
    from plaunch.process.logs import LogsSpecs

PREFIX_VARIABLE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
SHUTDOWN_TIMEOUT_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
# Parameters of a rendezvous that have options of their own.
_OF_OTHER_OPTIONS = {
    "backend": "--rdzv-backend",
    "endpoint": "--rdzv-endpoint",
    "local_addr": "--local-addr",
    "max_nodes": "--nnodes",
    "min_nodes": "--nnodes",
    "run_id": "--rdzv-id",
}


@plain_dataclass
class LaunchConfig(Record):
    """The settings of one launch. Names and defaults are torchrun's, except for the backend.

    Args:
        min_nodes: the smallest number of nodes of a world.
        max_nodes: the largest number of nodes of a world.
        nproc_per_node: the number of workers on this node.
        logs_specs: decides where logs go; None means the logs spec named `default`.
        run_id: the id of the job, the same on all nodes; generated if empty.
        role: the name of the workers; part of the default prefix.
        rdzv_endpoint: the address of the rendezvous.
        rdzv_backend: the name of the rendezvous backend (torchrun's default is `etcd`).
        rdzv_configs: options of the backend.
        rdzv_timeout: sets the backend option `timeout`, in seconds, unless it is -1; deprecated.
        max_restarts: the number of failures after which all workers are restarted.
        monitor_interval: seconds between checks for changes that do not wake the agent.
        start_method: `spawn`, `fork` or `forkserver`, for functions.
        log_line_prefix_template: the prefix of teed lines, with `${role_name}`, `${local_rank}`,
            `${rank}`, `${hostname}`, `${attempt}` and `${time}`; with `${line}` in it, all of a
            line of JSON, in which `${line}`, `${stream}` and `${utc}` become values. None takes it
            from `TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE`.
        metrics_cfg: has no effect, as in torchrun; see docs/metrics.md.
        local_addr: the address of this node, or None.
        event_log_handler: the name of the event handler, or several between commas.
        numa_options: binds workers to processors near their devices, as `NumaOptions` or torch's
            class of that name; None does not.
        signals_to_handle: the signals that stop the job, separated by commas.
        duplicate_stdout_filters: teed lines with one of these texts also go to a separate file.
        duplicate_stderr_filters: the same for stderr.
        virtual_local_rank: show each worker its own device only, with `LOCAL_RANK` 0 for all.
        shutdown_timeout: seconds that workers have to stop before they are killed, on every path;
            None means `TORCH_ELASTIC_SHUTDOWN_TIMEOUT`, or 30 without it. (In torchrun it applies
            only when a signal ends the job.)
        signal_policy: the name of the signal policy (plaunch's own).
        restart_policy: the name of the restart policy (plaunch's own).
        max_restarts_by_cause: the number of restarts after failures of a cause, not counted against
            `max_restarts`, as `{"hang": 1}`; `math.inf` for any number (plaunch's own).
        health_checks: the names of health checks, each with its argument behind a colon if it has
            one, as `memory:8G` (plaunch's own).
        worker_env: more environment variables for all workers (plaunch's own).
        keep_daemons: leave orphans running if all workers have succeeded, instead of ending them
            (plaunch's own).
        exit_barrier_timeout: seconds that a node whose workers have succeeded waits for the others
            (plaunch's own; torchrun always waits 300).
        node_rank: the index that this node requests, or None (plaunch's own). The backend `static`
            has the option `rank` instead.
        port_range: the first and the last port that plaunch may pick on this node, or None for any
            (plaunch's own).
        start_timeout: seconds until the first worker of this node must run, or None (plaunch's
            own).
        devices: the device numbers for the workers of this node, one each, among the visible ones;
            None for all (plaunch's own).
        worker_store: the host of the workers' store: `agent`, the launcher on the node of rank 0,
            or `rank0`, the worker of that rank (plaunch's own).
        job_id: the id that the job keeps when it is started again under another run id, for its
            workers; the run id if empty (plaunch's own).
        stdin: what each worker that is a program reads from its stdin, from the beginning in every
            attempt; None for the launcher's own stdin (plaunch's own).
        options: values of options that plugins declare, by attribute, as `metrics_port`; each loads
            its plugin (plaunch's own).

    Raises:
        UsageError: a value is invalid; the message names it.
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    logs_specs: LogsSpecs | None = None
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = RENDEZVOUS.default
    rdzv_configs: dict[str, Any] = field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: str | None = None
    metrics_cfg: dict[str, str] = field(default_factory=dict)
    local_addr: str | None = None
    event_log_handler: str = EVENT_HANDLERS.default
    numa_options: object = None
    signals_to_handle: str = DEFAULT_SIGNALS
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    shutdown_timeout: float | None = None
    signal_policy: str = SIGNAL_POLICIES.default
    restart_policy: str = RESTART_POLICIES.default
    max_restarts_by_cause: dict[str, float] = field(default_factory=dict)
    health_checks: list[str] = field(default_factory=list)
    worker_env: dict[str, str] = field(default_factory=dict)
    keep_daemons: bool = False
    exit_barrier_timeout: float = EXIT_BARRIER_TIMEOUT
    node_rank: int | None = None
    port_range: tuple[int, int] | None = None
    start_timeout: float | None = None
    devices: list[str] | None = None
    worker_store: str = "agent"
    job_id: str = ""
    stdin: bytes | None = None
    options: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.duplicate_stdout_filters = self.duplicate_stdout_filters or None
        self.duplicate_stderr_filters = self.duplicate_stderr_filters or None
        self.job_id = self.job_id or ""
        if self.rdzv_timeout != -1:
            self.rdzv_configs = {**self.rdzv_configs, "timeout": self.rdzv_timeout}
        for name in _OF_OTHER_OPTIONS.keys() & self.rdzv_configs.keys():
            raise UsageError(
                f"{name!r} is not an option of a rendezvous backend (--rdzv-conf); set it with "
                f"{_OF_OTHER_OPTIONS[name]}"
            )
        if self.shutdown_timeout is None:
            self.shutdown_timeout = shutdown_timeout_of(os.environ)
        if self.log_line_prefix_template is None:
            self.log_line_prefix_template = os.environ.get(PREFIX_VARIABLE)
        if self.devices is not None and len(self.devices) != self.nproc_per_node:
            raise UsageError(
                f"there are {len(self.devices)} devices ({','.join(map(str, self.devices))}) for "
                f"{self.nproc_per_node} workers; with --devices each worker has one: leave out "
                "--nproc-per-node, or name as many devices"
            )
        nodes = f"the node range is {self.min_nodes}:{self.max_nodes} (--nnodes)"
        check_nodes(self.min_nodes, self.max_nodes, nodes)
        workers = f"nproc_per_node is {self.nproc_per_node} (--nproc-per-node)"
        check_workers(self.nproc_per_node, workers)
        if not self.max_restarts >= 0:
            raise UsageError(
                f"max_restarts is {self.max_restarts} (--max-restarts); it cannot be negative"
            )
        if self.max_restarts_by_cause:
            from plaunch.restarts import check_budgets  # if there are any

            check_budgets(self.max_restarts_by_cause)
        check_choice("start_method", self.start_method, START_METHODS)
        check_choice("worker_store", self.worker_store, WORKER_STORES)
        if self.node_rank is not None and not 0 <= self.node_rank < self.max_nodes:
            raise UsageError(
                f"node rank {self.node_rank} (--node-rank) is outside the job of {self.max_nodes} "
                f"nodes (--nnodes); ranks go from 0 to {self.max_nodes - 1}"
            )
        PERIOD.check(self.monitor_interval, "monitor_interval (--monitor-interval)")
        PATIENCE.check(self.shutdown_timeout, "shutdown_timeout (--shutdown-timeout)")
        PATIENCE.check(self.exit_barrier_timeout, "exit_barrier_timeout (--exit-barrier-timeout)")
        if self.start_timeout is not None:
            LIMIT.check(self.start_timeout, "start_timeout (--start-timeout)")

    def worker_variables(self) -> dict[str, str]:
        """Return the variables that a launch with these settings adds for all workers."""
        return {SIGNALS_VARIABLE: self.signals_to_handle, **self.worker_env}

    def settings(self) -> dict[str, object]:
        """Return the fields by name, for plugins."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def context(self, logs_specs: LogsSpecs | None = None) -> PluginContext:
        """Return the context for plugins, without options of their own.

        Args:
            logs_specs: the logs spec of the launch, if the settings have none.
        """
        from plaunch.plugin.context import PluginContext  # launches only

        logs_specs = logs_specs or self.logs_specs
        log_dir = None if logs_specs is None else logs_specs.root_log_dir
        return PluginContext(
            run_id=self.run_id,
            role=self.role,
            host=os.uname().nodename,
            log_dir=None if log_dir is None else str(log_dir),
            settings=self.settings(),
        )


def check_nodes(low: int, high: int, what: str) -> None:
    """Check a range of numbers of nodes.

    Raises:
        NodeRangeError: it is invalid; the message begins with `what`.
    """
    if not 0 < low <= high:
        raise NodeRangeError(f"{what}; it needs 0 < minimum <= maximum")
    if not high <= MOST_NODES:
        raise NodeRangeError(f"{what}; a job has at most {MOST_NODES} nodes")


def shutdown_timeout_of(environ: Mapping[str, str]) -> float:
    """Return the seconds of `TORCH_ELASTIC_SHUTDOWN_TIMEOUT`, or 30 without it.

    Raises:
        UsageError: the variable is invalid.
    """
    text = environ.get(SHUTDOWN_TIMEOUT_VARIABLE)
    if text is None:
        return SHUTDOWN_TIMEOUT
    return PATIENCE.read(text, f"variable {SHUTDOWN_TIMEOUT_VARIABLE}")


NO_RUN_ID = "none"  # the default of the command line, as in torchrun
SIGNALS_VARIABLE = "TORCHELASTIC_SIGNALS_TO_HANDLE"  # torchrun sets it for its workers, too


def make_run_id() -> str:
    """Generate a run id: 16 random hexadecimal digits; that of the launch that is described."""
    return os.environ.get(RUN_ID_VARIABLE) or os.urandom(8).hex()


def default_run_id(max_nodes: int) -> str:
    """Return the run id of a job that was given an empty one.

    The nodes of a job must agree; on one, an id of its own keeps the logs of jobs apart.
    """
    return make_run_id() if max_nodes == 1 else NO_RUN_ID
