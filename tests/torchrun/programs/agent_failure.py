"""Failures in the result of an agent, restarts included."""

from api import agent, failures, multiprocessing, rendezvous, show, utils


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
    spec(args=("-c", "echo >> ran; exit 4"), workers=1, restarts=1),
    multiprocessing.DefaultLogsSpecs(),
)
result = local.run()
show(
    state=result.state.name, failures=failures(result.failures), ran=open("ran").read().count("\n")
)
show(group=local.get_worker_group().state.name, left=local._remaining_restarts)
