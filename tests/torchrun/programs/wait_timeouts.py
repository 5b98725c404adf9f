"""wait(0) is a poll, and a wait that times out returns None; close then wait."""

from api import multiprocessing, show

context = multiprocessing.start_processes(
    "job", "sleep", {0: ("30",)}, {0: {}}, multiprocessing.DefaultLogsSpecs()
)
show(poll=context.wait(0), short=context.wait(0.2, 0.05))
context.close()
result = context.wait(5)
show(after_close=result if result is None else [one.exitcode for one in result.failures.values()])
context.close()
show(closed_twice=True)
