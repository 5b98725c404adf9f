"""A LocalElasticAgent's worker group, before and after a run."""

import os

from api import agent, caught, multiprocessing, rendezvous, show, utils


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


local = agent.LocalElasticAgent(
    spec(entrypoint=os.getcwd, args=()), multiprocessing.DefaultLogsSpecs(), start_method="fork"
)
group = local.get_worker_group()
show(before=[group.state.name, len(group.workers), group.group_rank, group.store is None])
result = local.run()
show(state=result.state.name, failed=result.is_failed(), returns=sorted(result.return_values))
show(after=[group.state.name, group.group_rank, group.group_world_size, type(group.store).__name__])
show(
    workers=[
        [
            w.local_rank,
            w.global_rank,
            w.role_rank,
            w.world_size,
            w.role_world_size,
            isinstance(w.id, int),
        ]
        for w in group.workers
    ]
)
show(name=group.spec.get_entrypoint_name(), other=spec().get_entrypoint_name())
show(running=[s.name for s in agent.WorkerState if agent.WorkerState.is_running(s)])
show(
    refused=[
        caught(spec, workers=0),
        caught(lambda: agent.WorkerSpec("r", 1, None, monitor_interval=0)),
    ]
)
