"""A real Slurm of three nodes on this machine, node01 to node03, to try things and for tests.

    python tools/cluster/slurm.py start FOLDER
    python tools/cluster/slurm.py run FOLDER plaunch --on=slurm --nnodes=3 hello.py
    python tools/cluster/slurm.py lose FOLDER node03
    python tools/cluster/slurm.py stop FOLDER

FOLDER has a short path, such as /tmp/slurm, because Slurm keeps sockets in it. `lose` kills all
processes of a node, as a failure of the machine does. Needs root, and Debian's packages
slurmctld, slurmd and slurm-client. Everything runs in namespaces of its own; see slurm_cluster.sh.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

SCRIPT = Path(__file__).with_name("slurm_cluster.sh")
NAMESPACES = [
    *("unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
]
UP = ["sh", "-c", "echo up; exec sleep infinity"]
STOP_LIMIT = 10.0  # seconds


def why_not() -> str:
    """Return why no cluster can run here; empty if one can."""
    if shutil.which("slurmctld-wlm") is None or shutil.which("slurmd-wlm") is None:
        return "Slurm is not installed"
    tried = subprocess.run([*NAMESPACES, "true"], capture_output=True, timeout=20, check=False)
    return "" if tried.returncode == 0 else "this user may not create namespaces"


def start(folder: Path) -> str:
    """Start a cluster; return what is wrong, or nothing."""
    if reason := why_not():
        return reason
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "start.log").open("wb") as log:
        process = subprocess.Popen(
            [*NAMESPACES, "bash", str(SCRIPT), str(folder), *UP],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    with process.stdout as stdout:
        if stdout.readline() != b"up\n":
            process.kill()
            return f"the cluster has not started: {(folder / 'start.log').read_text()}"
    (folder / "pid").write_text(str(process.pid))
    return ""


def first_process(folder: Path) -> int:
    """Return the first process of the cluster's namespaces."""
    pid = (folder / "pid").read_text()
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a command in the cluster, with this Python first in PATH."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "SLURM_CONF": str(folder / "etc/slurm.conf")}


def enter(folder: Path) -> list[str]:
    """Return the words in front of a command that runs in the cluster, in this folder."""
    target = f"--target={first_process(folder)}"
    return ["nsenter", target, "--net", "--uts", "--mount", "--pid", f"--wd={os.getcwd()}"]


def lose(folder: Path, node: str) -> None:
    """Kill all processes of a node, and let Slurm know."""
    spaces = {pid: space for pid in _pids() if (space := _link(pid, "net"))}
    inside = _link(first_process(folder), "pid")
    daemon = next(
        pid for pid in spaces if _link(pid, "pid") == inside and _words(pid)[-2:] == ["-N", node]
    )
    for pid, space in spaces.items():
        if space == spaces[daemon]:
            os.kill(pid, signal.SIGKILL)
    subprocess.run(
        [*enter(folder), "scontrol", "update", f"nodename={node}", "state=down", "reason=lost"],
        env=environment(folder),
        check=True,
    )


def stop(folder: Path) -> None:
    """End the cluster and all of its processes."""
    pid = int((folder / "pid").read_text())
    os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + STOP_LIMIT
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < until:
        time.sleep(0.05)


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _link(pid: int, space: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/{space}")
    except OSError:
        return ""


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    except OSError:
        return []


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=["start", "run", "lose", "stop"])
    parser.add_argument("folder", type=lambda text: Path(text).resolve())
    parser.add_argument("words", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    if given.action == "start":
        sys.exit(start(given.folder) or None)
    if given.action == "run":
        command = [*enter(given.folder), *given.words]
        os.execvpe(command[0], command, environment(given.folder))  # noqa: S606
    if given.action == "lose":
        lose(given.folder, *given.words)
    else:
        stop(given.folder)


if __name__ == "__main__":
    main()
