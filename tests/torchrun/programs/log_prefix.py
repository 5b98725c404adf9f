"""The prefix template of teed lines, and macros in arguments."""

import sys

from api import launcher, multiprocessing, show, utils

config = launcher.LaunchConfig(
    1,
    1,
    2,
    run_id="me",
    role="trainer",
    rdzv_backend="static",
    max_restarts=0,
    monitor_interval=0.05,
    rdzv_endpoint=f"127.0.0.1:{utils.get_free_port()}",
    rdzv_configs={"rank": 0},
    log_line_prefix_template="[${role_name}-${local_rank}-${rank}]: ",
    logs_specs=multiprocessing.DefaultLogsSpecs(tee=multiprocessing.Std.ALL),
)
launcher.elastic_launch(config, "echo")("hello", utils.macros.local_rank)
sys.stdout.flush()
show(lines=sorted(open("stdout").read().splitlines()))
show(substituted=utils.macros.substitute(["--dev", "cuda:${local_rank}"], "3"))
