"""start_processes of a binary: pids, wait, exit codes and returns."""

from api import failures, multiprocessing, show

specs = multiprocessing.DefaultLogsSpecs()
context = multiprocessing.start_processes(
    "job", "sh", {0: ("-c", "exit 0"), 1: ("-c", "sleep 0.5; exit 3")}, {0: {}, 1: {}}, specs
)
pids = context.pids()
result = context.wait(20, 0.05)
show(type=type(context).__name__, name=context.name, ranks=sorted(pids))
show(failed=result.is_failed(), failures=failures(result.failures), returns=result.return_values)
context.close()
