"""A function worker that a signal ends."""

import os
import signal

from api import failures, multiprocessing, show


def work():
    os.kill(os.getpid(), signal.SIGKILL)


context = multiprocessing.start_processes(
    "job", work, {0: ()}, {0: {}}, multiprocessing.DefaultLogsSpecs(), start_method="fork"
)
result = context.wait(20)
show(failures=failures(result.failures), message=result.failures[0].message.rpartition(" ")[0])
context.close()
