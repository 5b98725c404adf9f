"""A backend that a program has registered under the name of a built-in one."""

from api import show, torchs

rendezvous = torchs("elastic.rendezvous.api")
registry = torchs("elastic.rendezvous.registry")
launcher = torchs("launcher.api")
seen = []
original = rendezvous.rendezvous_handler_registry._registry["c10d"]


def create(params):
    seen.append([params.backend, params.run_id, params.get("last_call_timeout")])
    return original(params)


rendezvous.rendezvous_handler_registry._registry["c10d"] = create
config = launcher.LaunchConfig(
    1,
    1,
    1,
    start_method="fork",
    rdzv_backend="c10d",
    rdzv_endpoint="localhost:0",
    run_id="me",
    rdzv_configs={"last_call_timeout": 1},
)
show(values=launcher.elastic_launch(config, max)(3, 4), seen=seen)
