"""elastic_launch of a function and of a program, on one node."""

import os

from api import launcher, show, utils


def work(x):
    return x, {
        k: os.environ[k]
        for k in (
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "GROUP_RANK",
            "ROLE_NAME",
            "TORCHELASTIC_RUN_ID",
            "TORCHELASTIC_MAX_RESTARTS",
            "TORCHELASTIC_RESTART_COUNT",
            "LOCAL_WORLD_SIZE",
            "ROLE_WORLD_SIZE",
        )
    }


config = launcher.LaunchConfig(
    1,
    1,
    2,
    run_id="me",
    role="trainer",
    rdzv_backend="static",
    start_method="fork",
    rdzv_endpoint=f"127.0.0.1:{utils.get_free_port()}",
    rdzv_configs={"rank": 0, "timeout": 60},
    max_restarts=0,
    monitor_interval=0.05,
)
show(function=launcher.elastic_launch(config, work)(7))
config.rdzv_endpoint = f"127.0.0.1:{utils.get_free_port()}"
show(program=launcher.elastic_launch(config, "true")())
