"""The locations of torchrun's public names in plaunch, differences, and missing names.

`compatibility.py` compares this with the installed and the newest torch, and generates
docs/compatibility.md. When torch adds a name, add a row here.
"""

from __future__ import annotations

ELASTIC = "torch.distributed.elastic"
LAUNCHER = "torch.distributed.launcher"

NUMA = "torch.numa.binding"


def home(module: str) -> str:
    """Return plaunch's module for a module of torch; submodules of a room map to the room."""
    if module == NUMA:
        return "plaunch_devices"
    parts = module.removeprefix("torch.distributed.").split(".")
    return ".".join(["plaunch_torchrun", *parts[: 2 if parts[0] == "elastic" else 1]])


# torch's name: the section of docs/differences.md about the difference.
DIFFERENT: dict[str, str] = dict.fromkeys(
    (
        f"{LAUNCHER}.api.LaunchConfig",
        f"{ELASTIC}.agent.server.api.SimpleElasticAgent",
        f"{ELASTIC}.agent.server.local_elastic_agent.LocalElasticAgent",
        f"{ELASTIC}.events.api.Event",
        f"{ELASTIC}.metrics.api.profile",
        f"{ELASTIC}.multiprocessing.errors.ChildFailedError",
        f"{ELASTIC}.multiprocessing.errors.ProcessFailure",
        f"{ELASTIC}.rendezvous.api.RendezvousStoreInfo",
        f"{ELASTIC}.timer.file_based_local_timer.FileTimerServer",
        f"{ELASTIC}.utils.api.macros",
    ),
    "python-names",
)

_ETCD = "uses etcd's API v2, which etcd 3.6 does not have; the backends `etcd` and `etcd-v2` use v3"
_TRAINING = "is for training code and does not launch; torch's works in workers unchanged"
_ALGORITHM = "a part of torch's rendezvous algorithm; ours is [over a store](writing-a-backend.md)"
_BACKEND = "`get_rendezvous_handler` makes the handler of any backend, `static` among them"

# torch's name, or all names of a module: why plaunch has none.
MISSING: dict[str, str] = {
    f"{ELASTIC}.rendezvous.c10d_rendezvous_backend.*": _ALGORITHM,
    f"{ELASTIC}.rendezvous.dynamic_rendezvous.*": _ALGORITHM,
    f"{ELASTIC}.rendezvous.etcd_rendezvous.*": _ETCD,
    f"{ELASTIC}.rendezvous.etcd_rendezvous_backend.*": _ETCD,
    f"{ELASTIC}.rendezvous.etcd_server.*": (
        "starts an etcd for tests; `plaunch_rendezvous_etcd.testing` has one for pytest"
    ),
    f"{ELASTIC}.rendezvous.etcd_store.*": (
        "a store for workers in etcd; they have a TCPStore with every backend"
    ),
    f"{ELASTIC}.rendezvous.static_tcp_rendezvous.*": _BACKEND,
    f"{ELASTIC}.timer.debug_info_logging.log_debug_info_for_expired_timers": (
        "does nothing in torch and can only be replaced; `FileTimerServer` takes `log_event`"
    ),
    f"{ELASTIC}.utils.data.cycling_iterator.CyclingIterator": _TRAINING,
    f"{ELASTIC}.utils.data.elastic_distributed_sampler.ElasticDistributedSampler": _TRAINING,
    f"{ELASTIC}.utils.distributed.create_c10d_store": (
        "makes a store of torch's, which plaunch does only in its backend `c10d`; "
        "`torch.distributed.TCPStore` is public"
    ),
}

# torchrun's option that differs here: the section of docs/differences.md about it.
OPTIONS_DIFFERENT: dict[str, str] = {
    "--rdzv-conf": "one-node",
    "--shutdown-timeout": "one-node",
    "--node-rank": "several-nodes",
    "--master-addr": "python-names",
    "--logs-specs": "python-names",
    "--nproc-per-node": "one-node",
    "--event-log-handler": "python-names",
}
OPTIONS_MISSING: dict[str, str] = {}

# Variables that torchrun reads or sets: whether plaunch does the same, or the difference.
_READ = "is read"
_GIVEN = "is given to workers"
VARIABLES: dict[str, tuple[str, str, str]] = {  # name: what torchrun does, status, anchor or reason
    "PYTHON_EXEC": (_READ, "same", ""),
    "OMP_NUM_THREADS": ("is read, and set to 1 for several workers", "same", ""),
    "LOGLEVEL": (_READ, "different", "python-names"),
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": (_READ, "same", ""),
    "TORCHELASTIC_SIGNALS_TO_HANDLE": (_READ, "same", ""),
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": (_READ, "same", ""),
    "TORCH_ELASTIC_WORKER_IDENTICAL": (_READ, "different", "several-nodes"),
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": (
        _READ,
        "missing",
        "every round has a new store, as with 1; with `--worker-store=rank0` "
        "the worker of rank 0 hosts it",
    ),
    "TORCHELASTIC_ENABLE_FILE_TIMER": (_READ, "same", ""),
    "TORCHELASTIC_TIMER_FILE": ("is read, and is given to workers", "same", ""),
    "TORCHELASTIC_HEALTH_CHECK_PORT": (_READ, "same", ""),
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": (_READ, "same", ""),
    "TORCHELASTIC_ERROR_FILE": ("is read, and is given to workers", "same", ""),
    "TORCHELASTIC_ETCD_BINARY_PATH": (
        "is read by its test server",
        "missing",
        "there is no such helper",
    ),
    "TORCH_WORKER_SERVER_SOCKET": ("is read in workers", "same", ""),
    "USE_LIBUV": (
        "is read by `create_c10d_store`",
        "missing",
        "with 0 the worker of rank 0 hosts the workers' store; there is no such function",
    ),
    "CUDA_VISIBLE_DEVICES": ("is read, and is given to workers", "same", ""),
    "HIP_VISIBLE_DEVICES": ("is read, and is given to workers", "same", ""),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": ("is read, and is given to workers", "same", ""),
    "RANK": (_GIVEN, "same", ""),
    "LOCAL_RANK": (_GIVEN, "same", ""),
    "WORLD_SIZE": (_GIVEN, "same", ""),
    "LOCAL_WORLD_SIZE": (_GIVEN, "same", ""),
    "GROUP_RANK": (_GIVEN, "same", ""),
    "GROUP_WORLD_SIZE": (_GIVEN, "same", ""),
    "ROLE_RANK": (_GIVEN, "same", ""),
    "ROLE_NAME": (_GIVEN, "same", ""),
    "ROLE_WORLD_SIZE": (_GIVEN, "same", ""),
    "MASTER_ADDR": (_GIVEN, "same", ""),
    "MASTER_PORT": (_GIVEN, "same", ""),
    "TORCHELASTIC_RESTART_COUNT": (_GIVEN, "different", "several-nodes"),
    "TORCHELASTIC_MAX_RESTARTS": (_GIVEN, "same", ""),
    "TORCHELASTIC_RUN_ID": (_GIVEN, "same", ""),
    "TORCHELASTIC_USE_AGENT_STORE": (_GIVEN, "same", ""),
}

# Differences for jobs with the NCCL of torch 2.15: the subject, before, and now.
NCCL: tuple[tuple[str, str, str], ...] = (
    (
        "the device of a rank",
        "the one that its first collective uses, unless `device_id` names it",
        "is bound when the group is made: `device_id`, or else `LOCAL_RANK` modulo the number of "
        "visible devices. plaunch sets `LOCAL_RANK`; with `--virtual-local-rank` it is 0, and each "
        "worker sees one device",
    ),
    (
        "an operation that times out, or a communicator that fails",
        "the watchdog acts as `TORCH_NCCL_ASYNC_ERROR_HANDLING` says; plaunch gives workers 1, "
        "unless it is set: the process ends",
        "the same variable, with the same result. The worker writes `Aborting process on rank N "
        "due to` and the reason to stderr, which plaunch's report shows",
    ),
    (
        "a hang",
        "ends with that time-out, ten minutes by default; "
        "[`--hang-timeout`](hangs.md) notices it earlier",
        "the same",
    ),
    (
        "the [flight recorder](stacks.md#what-torch-knows)",
        "is a part of the implementation",
        "is attached to the group. It reads `TORCH_FR_DUMP_ON_TIMEOUT`; the older name "
        "`TORCH_NCCL_DUMP_ON_TIMEOUT`, which `--flight-recorder` sets, still works, but torch logs "
        "a warning",
    ),
)
