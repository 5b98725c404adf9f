"""The same agent runs twice."""

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


local = agent.LocalElasticAgent(
    spec(args=("-c", "echo >> ran")), multiprocessing.DefaultLogsSpecs()
)
show(
    states=[local.run().state.name, local.run().state.name],
    ran=len(open("ran").read().split("\n")) - 1,
)
