"""elastic_launch over c10d, with local_addr."""

import os

from api import launcher, show, utils


def work():
    return os.environ["MASTER_ADDR"], os.environ["RANK"]


config = launcher.LaunchConfig(
    1,
    1,
    2,
    run_id="me",
    rdzv_backend="c10d",
    rdzv_endpoint=f"localhost:{utils.get_free_port()}",
    start_method="fork",
    monitor_interval=0.05,
    local_addr="127.0.0.1",
    max_restarts=0,
    rdzv_configs={},
)
show(returns=launcher.elastic_launch(config, work)())
