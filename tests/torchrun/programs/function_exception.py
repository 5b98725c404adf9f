"""An exception in a function worker: the failure and its error file."""

import json
import os

from api import failures, multiprocessing, show


def work():
    raise ValueError("on purpose")


context = multiprocessing.start_processes(
    "job",
    multiprocessing.record(work),
    {0: ()},
    {0: {}},
    multiprocessing.DefaultLogsSpecs(log_dir="logs"),
    start_method="fork",
)
result = context.wait(20)
failure = result.failures[0]
show(failures=failures(result.failures), file=os.path.basename(failure.error_file))
show(
    said="on purpose" in failure.message,
    keys=sorted(json.load(open(failure.error_file))["message"]),
)
context.close()
