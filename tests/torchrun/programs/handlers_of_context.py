"""The handlers of the programs that a context has started."""

import signal

from api import multiprocessing, show

context = multiprocessing.start_processes(
    "job",
    "sleep",
    {0: ("60",), 1: ("60",)},
    {0: {}, 1: {}},
    multiprocessing.DefaultLogsSpecs(),
)
handlers = context.subprocess_handlers
show(
    ranks=[handlers[rank].local_rank_id for rank in sorted(handlers)],
    pids={rank: one.proc.pid for rank, one in handlers.items()} == context.pids(),
    running=[one.proc.poll() for one in handlers.values()],
)
handlers[1].close(signal.SIGINT)
result = context.wait(30)
show(codes=result.failures[1].exitcode)
