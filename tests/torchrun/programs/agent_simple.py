"""A SimpleElasticAgent with workers of its own making."""

from api import agent, rendezvous, show, utils


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


class Own(agent.SimpleElasticAgent):
    def __init__(self, spec):
        super().__init__(spec, 5)
        self.polls = 0

    def _start_workers(self, worker_group):
        calls.append("start")
        return {worker.local_rank: f"w{worker.global_rank}" for worker in worker_group.workers}

    def _stop_workers(self, worker_group, *args, **kwargs):
        calls.append("stop")

    def _shutdown(self, *args, **kwargs):
        calls.append("shutdown")

    def _monitor_workers(self, worker_group):
        self.polls += 1
        states = agent.WorkerState
        if self.polls == 2:
            return agent.RunResult(states.UNHEALTHY)
        if self.polls < 5:
            return agent.RunResult(states.HEALTHY)
        return agent.RunResult(
            states.SUCCEEDED, return_values={w.global_rank: w.id for w in worker_group.workers}
        )


own = Own(spec(restarts=1))
result = own.run()
show(
    state=result.state.name, returns=result.return_values, calls=calls, left=own._remaining_restarts
)
show(ids=[worker.id for worker in own.get_worker_group().workers])
