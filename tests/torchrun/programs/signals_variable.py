"""The variable about signals, which the workers of a launch inherit."""

import os

from api import launcher, show, utils


def variable():
    return os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE")


config = launcher.LaunchConfig(
    1,
    1,
    1,
    run_id="me",
    rdzv_backend="static",
    rdzv_endpoint=f"127.0.0.1:{utils.get_free_port()}",
    rdzv_configs={"rank": 0, "timeout": 60},
    start_method="fork",
)
show(default=launcher.elastic_launch(config, variable)())
config.signals_to_handle = "SIGTERM,SIGUSR2"
config.rdzv_endpoint = f"127.0.0.1:{utils.get_free_port()}"
show(given=launcher.elastic_launch(config, variable)())
