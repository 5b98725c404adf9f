"""A subclass of LocalElasticAgent that overrides the steps and calls super."""

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


calls = []


class Own(agent.LocalElasticAgent):
    def _rendezvous(self, worker_group):
        calls.append("rendezvous")
        return super()._rendezvous(worker_group)

    def _start_workers(self, worker_group):
        calls.append("start")
        return super()._start_workers(worker_group)

    def _stop_workers(self, worker_group, *args, **kwargs):
        calls.append("stop")
        return super()._stop_workers(worker_group, *args, **kwargs)

    def _monitor_workers(self, worker_group):
        if calls[-1] != "monitor":
            calls.append("monitor")
        return super()._monitor_workers(worker_group)


own = Own(spec(), multiprocessing.DefaultLogsSpecs())
show(state=own.run().state.name, calls=calls)
