"""Start or end a Ray cluster of several nodes on this machine, to try the engine `ray`.

    python tools/cluster/ray.py start [NODES [STATE]]
    python tools/cluster/ray.py stop [STATE]

`start` prints the address of the cluster, for --on=ray:ADDRESS. Each node has one CPU and one unit
of the resource `node`. STATE is a file that describes the cluster. Needs the package `ray`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_NODES = 3
_OBJECT_STORE = 80 << 20  # bytes of each node, about the smallest that Ray accepts
_START_WAIT = 180.0  # seconds
_STOP_WAIT = 30.0  # seconds
_STATE = Path(tempfile.gettempdir(), f"plaunch-ray-{os.getuid()}.json")

# The folder of a script precedes site-packages, and this one hides `ray` there.
sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).parent]


def start(count: int, state: Path) -> str:
    """Start a cluster of `count` nodes; return its address.

    Args:
        count: the number of nodes.
        state: a file that describes the cluster, for `stop`.

    Raises:
        RuntimeError: it has not started, or runs already.
    """
    if state.exists() and _runs(json.loads(state.read_text())["pid"]):
        raise RuntimeError(f"a cluster runs already: {state}")
    state.unlink(missing_ok=True)
    log = state.with_suffix(".log")
    with log.open("wb") as file:
        holder = subprocess.Popen(
            [sys.executable, __file__, "hold", str(count), str(state)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    until = time.monotonic() + _START_WAIT
    while not state.exists():
        if holder.poll() is not None or time.monotonic() > until:
            holder.terminate()
            raise RuntimeError(f"Ray has not started; see {log}")
        time.sleep(0.1)
    return str(json.loads(state.read_text())["address"])


def stop(state: Path) -> None:
    """End the cluster, and wait until none of its processes is left."""
    if not state.exists():
        return
    cluster = json.loads(state.read_text())
    with contextlib.suppress(ProcessLookupError):
        os.kill(cluster["pid"], signal.SIGTERM)
    pids = [cluster["pid"], *cluster["pids"]]
    until = time.monotonic() + _STOP_WAIT
    while any(map(_runs, pids)):
        if time.monotonic() > until:
            for pid in filter(_runs, pids):
                os.kill(pid, signal.SIGKILL)
            break
        time.sleep(0.1)
    state.unlink(missing_ok=True)


def hold(count: int, state: Path) -> None:
    """Run a cluster until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:  # a short path, for sockets in it
        os.environ["RAY_TMPDIR"] = folder
        from ray.cluster_utils import Cluster

        cluster = Cluster()
        try:
            for index in range(count):
                cluster.add_node(
                    node_name=f"node-{'abcdefghijklmnopqrstuvwxyz'[index]}",
                    node_ip_address="127.0.0.2",
                    num_cpus=1,
                    resources={"node": 1},
                    object_store_memory=_OBJECT_STORE,
                    include_dashboard=False,
                )
            nodes = [cluster.head_node, *cluster.worker_nodes]
            text = json.dumps(
                {
                    "address": cluster.address,
                    "pid": os.getpid(),
                    "pids": [one.pid for node in nodes for _, one in node.live_processes()],
                }
            )
            unfinished = state.with_suffix(".new")
            unfinished.write_text(text)
            unfinished.replace(state)
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
            while True:
                signal.sigwaitinfo([signal.SIGCHLD])
                for node in nodes:
                    node.live_processes()  # reaps: Ray's workers outlive a raylet that is a zombie
        finally:
            cluster.shutdown()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["start", *rest] if len(rest) <= 2:
            count, state = [*rest, *(str(_NODES), str(_STATE))[len(rest) :]]
            sys.stdout.write(start(int(count), Path(state)) + "\n")
        case ["stop", *rest] if len(rest) <= 1:
            stop(Path(rest[0]) if rest else _STATE)
        case ["hold", count, path]:
            hold(int(count), Path(path))
        case _:
            sys.exit(__doc__)
