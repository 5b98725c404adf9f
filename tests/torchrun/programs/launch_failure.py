"""The content of ChildFailedError."""

import re

from api import failures, launcher, multiprocessing, show, utils

config = launcher.LaunchConfig(
    1,
    1,
    2,
    run_id="me",
    role="trainer",
    rdzv_backend="static",
    rdzv_endpoint=f"127.0.0.1:{utils.get_free_port()}",
    rdzv_configs={"rank": 0},
    max_restarts=0,
    monitor_interval=0.05,
)
try:
    launcher.elastic_launch(config, "sh")("-c", 'test "$RANK" = 0 && exec sleep 60; exit 7')
except multiprocessing.ChildFailedError as error:
    rank, first = error.get_first_failure()
    show(
        name=error.name, first=rank, code=first.exitcode, failures=sorted(failures(error.failures))
    )
    show(
        text="exitcode  : 7" in str(error),
        says=re.sub(r"^PID.*", "the worker ended", first.message)[:40],
    )
    show(file=first.error_file, time=bool(first.timestamp_isoformat()))
