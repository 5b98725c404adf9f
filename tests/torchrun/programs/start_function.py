"""start_processes of a function: results by local rank."""

import os

from api import multiprocessing, show


def work(x):
    return x * 10 + int(os.environ["ME"])


context = multiprocessing.start_processes(
    "job",
    work,
    {0: (1,), 1: (2,)},
    {0: {"ME": "3"}, 1: {"ME": "4"}},
    multiprocessing.DefaultLogsSpecs(),
    start_method="fork",
)
result = context.wait(20)
show(type=type(context).__name__, failed=result.is_failed(), returns=result.return_values)
show(again=context.wait(1).return_values)
context.close()
