"""The signal given to close reaches the workers; one that ignores it is killed after timeout."""

import os
import signal
import time

from api import multiprocessing, show

SHELL = "trap 'echo got > {0}; exit 0' USR1; touch {0}.up; while :; do sleep 0.05; done"
STUBBORN = "trap '' USR1; touch {0}.up; while :; do sleep 0.05; done"


def started(script, name):
    context = multiprocessing.start_processes(
        "job", "bash", {0: ("-c", script.format(name))}, {0: {}}, multiprocessing.DefaultLogsSpecs()
    )
    while not os.path.exists(f"{name}.up"):
        time.sleep(0.02)
    return context


context = started(SHELL, "kind")
context.close(signal.SIGUSR1, 20)
show(heard=os.path.exists("kind"))
context = started(STUBBORN, "stubborn")
(pid,) = context.pids().values()
began = time.monotonic()
context.close(signal.SIGUSR1, 1)
show(waited=round(time.monotonic() - began) in (1, 2), gone=not os.path.exists(f"/proc/{pid}"))
