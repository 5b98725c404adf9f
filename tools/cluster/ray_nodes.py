"""A Ray cluster whose nodes are raylets at one loopback address.

Each node has one CPU and one unit of the resource `node`. A process holds the cluster: it starts
the raylets, and collects the exit codes of those that are killed.

    python tools/cluster/ray_nodes.py FOLDER NODE...
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from processes import (
    VARIABLE,
    ClusterError,
    CommandContext,
    is_running,
    kill_all,
    marked,
    require_short,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

NODE = "node{}"
ON = "--on=ray --nnodes={count}"
PACKAGES = ()
EXTRAS = ("ray",)
START_LIMIT = 180.0  # seconds
STOP_LIMIT = 20.0  # seconds for the cluster to end by itself
_OBJECT_STORE = 80 << 20  # bytes of each node, about the smallest that Ray accepts
_STATE = "ray.json"


def find_missing() -> str:
    """Return what this machine lacks; empty if nothing."""
    return "" if importlib.util.find_spec("ray") else "the package ray is not installed"


def start(folder: Path, nodes: Sequence[str]) -> None:
    """Start the process that holds the cluster, and wait until all nodes run."""
    require_short(folder)
    log = folder / "start.log"
    with log.open("wb") as file:
        holder = subprocess.Popen(
            [sys.executable, __file__, str(folder), *nodes],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, VARIABLE: f"{folder}/"},
            start_new_session=True,
        )
    until = time.monotonic() + START_LIMIT
    while not (folder / _STATE).exists():
        if holder.poll() is not None or time.monotonic() > until:
            raise ClusterError(f"Ray has not started: {log.read_text()}")
        time.sleep(0.1)


def enter(folder: Path) -> CommandContext:
    """Return how a command runs in the cluster."""
    return CommandContext(env={"RAY_ADDRESS": _read(folder)["address"]})


def lose(folder: Path, node: str) -> None:
    """Kill the raylet of a node, and all processes that were started there."""
    kill_all(lambda: marked(folder, node))


def stop(folder: Path) -> None:
    """End the cluster; kill what is left after a while."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        holder = _read(folder)["pid"]
        os.kill(holder, signal.SIGTERM)
        until = time.monotonic() + STOP_LIMIT
        while is_running(holder) and time.monotonic() < until:
            time.sleep(0.05)
    kill_all(lambda: marked(folder))


def hold(folder: Path, nodes: Sequence[str]) -> None:
    """Run a cluster until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    os.environ["RAY_TMPDIR"] = str(folder)
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        for name in nodes:
            cluster.add_node(
                node_name=name,
                node_ip_address="127.0.0.2",
                num_cpus=1,
                resources={"node": 1},
                object_store_memory=_OBJECT_STORE,
                env_vars={VARIABLE: f"{folder}/{name}"},
                include_dashboard=False,
                include_log_monitor=False,
                no_monitor=True,
            )
        unfinished = folder / f"{_STATE}.new"
        unfinished.write_text(json.dumps({"address": cluster.address, "pid": os.getpid()}))
        unfinished.rename(folder / _STATE)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        raylets = [cluster.head_node, *cluster.worker_nodes]
        while True:
            signal.sigwaitinfo([signal.SIGCHLD])
            for raylet in raylets:
                raylet.live_processes()  # reaps: Ray's workers outlive a raylet that is a zombie
    finally:
        cluster.shutdown()


def _read(folder: Path) -> dict:
    return json.loads((folder / _STATE).read_text())


if __name__ == "__main__":
    hold(Path(sys.argv[1]), sys.argv[2:])
