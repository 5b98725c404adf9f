"""An agent that uses the round's store before its workers start, and its workers share it."""

from api import agent, multiprocessing, rendezvous, show, utils


def spec(entrypoint="sh", args=("-c", "exit 0"), workers=2, restarts=0, backend="static", **more):
    port = utils.get_free_port()
    params = rendezvous.RendezvousParameters(
        backend,
        f"127.0.0.1:{port}" if backend == "static" else f"localhost:{port}",
        "me",
        1,
        1,
        **({"rank": 0, "timeout": 20} if backend == "static" else {}),
    )
    return agent.WorkerSpec(
        role="trainer",
        local_world_size=workers,
        entrypoint=entrypoint,
        args=args,
        rdzv_handler=rendezvous.get_rendezvous_handler(params),
        max_restarts=restarts,
        monitor_interval=0.05,
        **more,
    )


class Own(agent.LocalElasticAgent):
    def _start_workers(self, worker_group):
        worker_group.store.set("key", "value")
        return super()._start_workers(worker_group)


own = Own(spec(workers=1, backend="c10d"), multiprocessing.DefaultLogsSpecs())
show(state=own.run().state.name, kind=type(own.get_worker_group().store).__name__)
