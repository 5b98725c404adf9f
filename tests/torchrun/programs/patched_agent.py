"""A class of its own in the place of torchrun's agent, as vendors' agents are installed."""

import os
import sys

from api import show, torchs

api = torchs("launcher.api")
run = torchs("run")
local = torchs("elastic.agent.server.local_elastic_agent")
calls = []


class Mine(local.LocalElasticAgent):
    def _start_workers(self, worker_group):
        calls.append(f"start {len(worker_group.workers)}")
        return super()._start_workers(worker_group)

    def _stop_workers(self, worker_group, *args, **kwargs):
        calls.append("stop")
        return super()._stop_workers(worker_group, *args, **kwargs)


api.LocalElasticAgent = Mine
WORKER = "import os; open('out' + os.environ['RANK'], 'w').write(os.environ['WORLD_SIZE'])"
run.main(["--nproc-per-node=2", "--no-python", sys.executable, "-c", WORKER])
show(calls=calls, outputs=[open(f"out{rank}").read() for rank in (0, 1)])

config = api.LaunchConfig(1, 1, 1, rdzv_backend="c10d", rdzv_endpoint="localhost:0", run_id="me")
config.max_restarts = 0
calls.clear()
try:
    api.elastic_launch(config, "sh")("-c", "exit 3")
except Exception as error:
    failure = error.failures[0]
    show(failed=[type(error).__name__, failure.exitcode, failure.local_rank], then=calls)
os.environ.pop("OMP_NUM_THREADS", None)
show(same=api.LocalElasticAgent is Mine)
