"""A Slurm whose nodes are network namespaces: node01, node02 and so on.

Needs root, and Debian's packages slurmctld, slurmd and slurm-client. Everything runs in namespaces
of its own; see slurm_cluster.sh.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from processes import (
    ClusterError,
    CommandContext,
    children_of,
    kill_all,
    pids,
    require_short,
    words_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

NODE = "node{:02}"
ON = "--on=slurm --nnodes={count}"
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "iproute2", "openmpi-bin")  # mpirun for tests
EXTRAS = ()
SCRIPT = Path(__file__).with_name("slurm_cluster.sh")
NAMESPACES = [
    *("unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
]
UP = ["sh", "-c", "echo up; exec sleep infinity"]


def find_missing() -> str:
    """Return what this machine lacks; empty if nothing."""
    if shutil.which("slurmctld-wlm") is None or shutil.which("slurmd-wlm") is None:
        return "Slurm is not installed"
    tried = subprocess.run([*NAMESPACES, "true"], capture_output=True, timeout=20, check=False)
    return "" if tried.returncode == 0 else "this user may not create namespaces"


def start(folder: Path, nodes: Sequence[str]) -> None:
    """Start the cluster, and wait until all nodes are idle."""
    require_short(folder)
    log = folder / "start.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*NAMESPACES, "bash", str(SCRIPT), str(folder), str(len(nodes)), *UP],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
            start_new_session=True,
        )
    (folder / "pid").write_text(str(process.pid))
    with process.stdout as stdout:
        if stdout.readline() != b"up\n":
            raise ClusterError(f"Slurm has not started: {log.read_text()}")


def enter(folder: Path) -> CommandContext:
    """Return how a command runs in the cluster, in this folder."""
    target = f"--target={_first_process(folder)}"
    prefix = ["nsenter", target, "--net", "--uts", "--mount", "--pid", f"--wd={os.getcwd()}"]
    return CommandContext(prefix, {"SLURM_CONF": f"{folder}/etc/slurm.conf"})


def lose(folder: Path, node: str) -> None:
    """Kill all processes of a node, and let Slurm know."""
    inside = _space_of(_first_process(folder), "pid")
    [space] = {
        _space_of(pid, "net")
        for pid in pids()
        if words_of(pid)[-2:] == ["-N", node] and _space_of(pid, "pid") == inside
    }
    kill_all(lambda: [pid for pid in pids() if _space_of(pid, "net") == space])
    context = enter(folder)
    subprocess.run(
        [*context.prefix, "scontrol", "update", f"nodename={node}", "state=down", "reason=lost"],
        env={**os.environ, **context.env},
        check=True,
    )


def stop(folder: Path) -> None:
    """End the cluster: the kernel kills all processes of a namespace with the first one."""
    with contextlib.suppress(FileNotFoundError):
        pid = int((folder / "pid").read_text())
        first = children_of(pid)
        if "unshare" in words_of(pid):
            kill_all(lambda: [pid, *first])


def _first_process(folder: Path) -> int:
    """Return the first process of the cluster's namespaces."""
    return children_of(int((folder / "pid").read_text()))[0]


def _space_of(pid: int, kind: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return ""
