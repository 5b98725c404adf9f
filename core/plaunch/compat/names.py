"""Where each public name of torch's launcher is in plaunch, or why it is nowhere.

`plaunch.compat.page` compares this with the torch that is installed, and makes
docs/compatibility.md of it. A name that torch gets needs a row here.
"""

from __future__ import annotations

ELASTIC = "torch.distributed.elastic"
LAUNCHER = "torch.distributed.launcher"

# torch's module: ours, and the names that are the same in both.
SAME: dict[str, tuple[tuple[str, str], ...]] = {
    "torch.distributed.run": (
        (
            "plaunch.compat.torchrun",
            "config_from_args determine_local_world_size get_args_parser get_rdzv_endpoint "
            "get_use_env main parse_args parse_min_max_nnodes run run_script_path",
        ),
    ),
    "torch.distributed.launch": (("plaunch.compat.launch", "launch main parse_args"),),
    "torch.distributed.argparse_util": (("plaunch.compat.torchrun", "check_env env"),),
    f"{LAUNCHER}.api": (("plaunch.compat.torchrun", "elastic_launch launch_agent"),),
    f"{ELASTIC}.agent.server.api": (
        (
            "plaunch.agent",
            "ElasticAgent RunResult Worker WorkerGroup WorkerSpec WorkerState",
        ),
    ),
    f"{ELASTIC}.agent.server.health_check_server": (
        ("plaunch.agent", "HealthCheckServer create_healthcheck_server"),
    ),
    f"{ELASTIC}.agent.server.local_elastic_agent": (
        (
            "plaunch.agent",
            "TORCHELASTIC_ENABLE_FILE_TIMER TORCHELASTIC_HEALTH_CHECK_PORT TORCHELASTIC_TIMER_FILE "
            "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT",
        ),
    ),
    f"{ELASTIC}.control_plane": (("plaunch.control_plane", "worker_main"),),
    f"{ELASTIC}.events": (
        ("plaunch.compat.events", "construct_and_record_rdzv_event record record_rdzv_event"),
    ),
    f"{ELASTIC}.events.api": (
        ("plaunch.events", "EventSource"),
        ("plaunch.compat.events", "NodeState RdzvEvent"),
    ),
    f"{ELASTIC}.events.handlers": (("plaunch.compat.events", "get_logging_handler"),),
    f"{ELASTIC}.metrics": (("plaunch.metrics", "initialize_metrics"),),
    f"{ELASTIC}.metrics.api": (
        (
            "plaunch.metrics",
            "ConsoleMetricHandler MetricData MetricHandler MetricStream MetricsConfig "
            "NullMetricHandler configure getStream get_elapsed_time_ms prof publish_metric "
            "put_metric",
        ),
    ),
    f"{ELASTIC}.multiprocessing": (("plaunch.process", "start_processes"),),
    f"{ELASTIC}.multiprocessing.api": (
        (
            "plaunch.process",
            "LogsDest LogsSpecs MultiprocessContext PContext RunProcsResult SignalException Std "
            "SubprocessContext to_map",
        ),
        ("plaunch.compat.redirects", "get_std_cm"),
        ("plaunch_logs_default", "DefaultLogsSpecs"),
    ),
    f"{ELASTIC}.multiprocessing.errors": (("plaunch.process", "record"),),
    f"{ELASTIC}.multiprocessing.errors.error_handler": (("plaunch.process", "ErrorHandler"),),
    f"{ELASTIC}.multiprocessing.errors.handlers": (("plaunch.process", "get_error_handler"),),
    f"{ELASTIC}.multiprocessing.redirects": (("plaunch.compat.redirects", "redirect"),),
    f"{ELASTIC}.multiprocessing.subprocess_handler.handlers": (
        ("plaunch.process", "get_subprocess_handler"),
    ),
    f"{ELASTIC}.multiprocessing.subprocess_handler.subprocess_handler": (
        ("plaunch.process", "SubprocessHandler"),
    ),
    f"{ELASTIC}.multiprocessing.tail_log": (
        ("plaunch.process", "TailLog"),
        ("plaunch.process.streams.tail", "tail_logfile"),
    ),
    f"{ELASTIC}.rendezvous.api": (
        (
            "plaunch.rendezvous",
            "RendezvousClosedError RendezvousConnectionError RendezvousError "
            "RendezvousGracefulExitError RendezvousHandler RendezvousHandlerCreator "
            "RendezvousInfo RendezvousParameters RendezvousStateError RendezvousTimeoutError",
        ),
        ("plaunch.compat", "RendezvousHandlerRegistry rendezvous_handler_registry"),
    ),
    f"{ELASTIC}.rendezvous.registry": (("plaunch.compat", "get_rendezvous_handler"),),
    f"{ELASTIC}.rendezvous.utils": (("plaunch.rendezvous", "parse_rendezvous_endpoint"),),
    f"{ELASTIC}.timer.api": (
        ("plaunch_timer", "RequestQueue TimerClient TimerRequest TimerServer configure expires"),
    ),
    f"{ELASTIC}.timer.file_based_local_timer": (
        ("plaunch_timer", "FileTimerClient FileTimerRequest"),
    ),
    f"{ELASTIC}.timer.local_timer": (
        ("plaunch_timer", "LocalTimerClient LocalTimerServer MultiprocessingRequestQueue"),
    ),
    f"{ELASTIC}.utils.api": (
        ("plaunch.compat.system", "get_env_variable_or_raise get_socket_with_port"),
    ),
    f"{ELASTIC}.utils.distributed": (
        ("plaunch.compat.system", "get_free_port get_socket_with_port"),
    ),
    f"{ELASTIC}.utils.log_level": (("plaunch.compat.system", "get_log_level"),),
    f"{ELASTIC}.utils.logging": (("plaunch.compat.system", "get_logger"),),
    f"{ELASTIC}.utils.process_state": (
        ("plaunch.compat.system", "is_uninterruptible_state read_proc_state"),
    ),
    f"{ELASTIC}.utils.store": (
        ("plaunch.compat.stores", "barrier get_all store_timeout synchronize"),
    ),
    "torch.numa.binding": (("plaunch.process", "AffinityMode NumaOptions"),),
}

# torch's name: ours, and the part of docs/differences.md that says what is different.
DIFFERENT: dict[str, tuple[str, str]] = {
    f"{LAUNCHER}.api.LaunchConfig": ("plaunch.config.LaunchConfig", "python-names"),
    f"{ELASTIC}.agent.server.api.SimpleElasticAgent": (
        "plaunch.agent.SimpleElasticAgent",
        "python-names",
    ),
    f"{ELASTIC}.agent.server.local_elastic_agent.LocalElasticAgent": (
        "plaunch.agent.LocalElasticAgent",
        "python-names",
    ),
    f"{ELASTIC}.events.api.Event": ("plaunch.events.Event", "python-names"),
    f"{ELASTIC}.metrics.api.profile": ("plaunch.metrics.profile", "python-names"),
    f"{ELASTIC}.multiprocessing.errors.ProcessFailure": (
        "plaunch.process.ProcessFailure",
        "python-names",
    ),
    f"{ELASTIC}.multiprocessing.errors.ChildFailedError": (
        "plaunch.process.ChildFailedError",
        "python-names",
    ),
    f"{ELASTIC}.rendezvous.api.RendezvousStoreInfo": (
        "plaunch.rendezvous.RendezvousStoreInfo",
        "python-names",
    ),
    f"{ELASTIC}.rendezvous.dynamic_rendezvous.DynamicRendezvousHandler": (
        "plaunch.rendezvous.DynamicRendezvousHandler",
        "python-names",
    ),
    f"{ELASTIC}.rendezvous.dynamic_rendezvous.RendezvousBackend": (
        "plaunch.rendezvous.RendezvousStore",
        "python-names",
    ),
    f"{ELASTIC}.rendezvous.static_tcp_rendezvous.StaticTCPRendezvous": (
        "plaunch_rendezvous_static.StaticRendezvous",
        "python-names",
    ),
    f"{ELASTIC}.rendezvous.static_tcp_rendezvous.create_rdzv_handler": (
        "plaunch_rendezvous_static.create_static_handler",
        "python-names",
    ),
    f"{ELASTIC}.timer.file_based_local_timer.FileTimerServer": (
        "plaunch_timer.FileTimerServer",
        "python-names",
    ),
    f"{ELASTIC}.utils.api.macros": ("plaunch.agent.macros", "python-names"),
}

_ETCD = (
    "speaks etcd's API v2, which is gone from etcd 3.6; the backends `etcd` and `etcd-v2` speak v3"
)
_TRAINING = "training code's own, which does not launch; torch's works in workers as it is"
_ALGORITHM = (
    "a part of torch's algorithm for meeting; ours is over `plaunch.rendezvous.RendezvousStore`"
)

# torch's name, or all names of a module: why there is none.
MISSING: dict[str, str] = {
    f"{ELASTIC}.multiprocessing.redirects.get_libc": (
        "is for flushing C's buffers with ctypes; `redirect` does that itself"
    ),
    f"{ELASTIC}.rendezvous.c10d_rendezvous_backend.*": _ALGORITHM,
    f"{ELASTIC}.rendezvous.dynamic_rendezvous.RendezvousSettings": _ALGORITHM,
    f"{ELASTIC}.rendezvous.dynamic_rendezvous.RendezvousTimeout": (
        "times are options of a backend (`--rdzv-conf`)"
    ),
    f"{ELASTIC}.rendezvous.dynamic_rendezvous.create_handler": _ALGORITHM,
    f"{ELASTIC}.rendezvous.etcd_rendezvous.*": _ETCD,
    f"{ELASTIC}.rendezvous.etcd_rendezvous_backend.*": _ETCD,
    f"{ELASTIC}.rendezvous.etcd_server.*": (
        "starts an etcd for tests; `plaunch.testing` has one for pytest"
    ),
    f"{ELASTIC}.rendezvous.etcd_store.*": (
        "a store for workers in etcd; they have a TCPStore with every backend"
    ),
    f"{ELASTIC}.timer.debug_info_logging.log_debug_info_for_expired_timers": (
        "does nothing in torch but to be replaced; `FileTimerServer` takes `log_event`"
    ),
    f"{ELASTIC}.utils.data.cycling_iterator.CyclingIterator": _TRAINING,
    f"{ELASTIC}.utils.data.elastic_distributed_sampler.ElasticDistributedSampler": _TRAINING,
    f"{ELASTIC}.utils.distributed.create_c10d_store": (
        "makes a store of torch's, which plaunch does only in its backend `c10d`; "
        "`torch.distributed.TCPStore` is public"
    ),
}

# An option of torchrun's that is not the same here: the part of docs/differences.md about it.
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

# Variables that torch's launcher reads or sets: whether plaunch does the same, or what else.
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
        "every round has a fresh store, which is what 1 asks for; with `--worker-store=rank0` "
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
    "USE_LIBUV": ("is read by `create_c10d_store`", "missing", "there is no such function"),
    "CUDA_VISIBLE_DEVICES": ("is read, and is given to workers", "same", ""),
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
