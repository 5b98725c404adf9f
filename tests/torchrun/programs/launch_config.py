"""LaunchConfig: defaults and its post-init."""

from api import launcher, multiprocessing, show

config = launcher.LaunchConfig(1, 2, 3, rdzv_backend="c10d")
for name in (
    "min_nodes",
    "max_nodes",
    "nproc_per_node",
    "run_id",
    "role",
    "rdzv_endpoint",
    "max_restarts",
    "monitor_interval",
    "start_method",
    "metrics_cfg",
    "local_addr",
    "log_line_prefix_template",
):
    show(**{name: getattr(config, name)})
show(specs=isinstance(config.logs_specs, multiprocessing.LogsSpecs), conf=config.rdzv_configs)
launcher.elastic_launch(config, None)
