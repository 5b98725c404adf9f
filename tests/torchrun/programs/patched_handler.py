"""A program's own function to start workers, in the place of torch's get_subprocess_handler."""

import functools
import os

from api import caught, show, torchs

api = torchs("elastic.multiprocessing.api")
launcher = torchs("launcher.api")
original = api.get_subprocess_handler
calls = []


@functools.wraps(original)
def wrapped(entrypoint, args, env, stdout, stderr, local_rank_id, *more, **named):
    calls.append([entrypoint, list(args), local_rank_id, env["RANK"], stdout is None])
    env = {**env, "ADDED": str(local_rank_id + 5)}
    return original(entrypoint, args, env, stdout, stderr, local_rank_id, *more, **named)


api.get_subprocess_handler = wrapped
config = launcher.LaunchConfig(
    1,
    1,
    2,
    start_method="fork",
    rdzv_backend="c10d",
    rdzv_endpoint="localhost:0",
    run_id="me",
    max_restarts=1,
)
launcher.elastic_launch(config, "sh")("-c", "echo $ADDED > added$RANK")
show(calls=calls, added=[open(f"added{rank}").read() for rank in (0, 1)])
calls.clear()
once = "test -e once || { touch once; exit 3; }"
config.nproc_per_node = 1
launcher.elastic_launch(config, "sh")("-c", once)
show(restarted=len(calls))
os.unlink("once")
config.max_restarts, calls[:] = 0, []
show(failed=caught(launcher.elastic_launch(config, "sh"), "-c", "echo no >&2; exit 4"))
launcher.elastic_launch(config, max)(3, 4)
show(functions=len(calls))
