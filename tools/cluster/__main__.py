"""Several nodes on this machine, to try engines and for tests: ssh servers, a Slurm, a Ray cluster.

    python tools/cluster install [ssh] [slurm] [ray]
    python tools/cluster start ssh --nodes=3
    python tools/cluster run ssh plaunch --on=ssh:node1,node2,node3 train.py
    python tools/cluster lose ssh node3
    python tools/cluster stop ssh

`start` prints the names of the nodes and such commands. `run` runs a command as on a login node of
the cluster. `lose` kills all processes of a node, as a failure of the machine does. `stop` ends the
cluster with all processes of its nodes, and removes its folder. `--folder` names another folder,
for a second cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import ray_nodes
import slurm_nodes
import ssh_nodes
from processes import ClusterError, CommandContext

if TYPE_CHECKING:
    from collections.abc import Sequence

SYSTEMS = {"ssh": ssh_nodes, "slurm": slurm_nodes, "ray": ray_nodes}
ROOT = Path(__file__).resolve().parents[2]
MAX_NODES = 250
PARTS_ARE_MISSING = 3  # the exit code of `start` on a machine that lacks something
STATE = "cluster.json"  # marks a folder of a cluster


def install(systems: Sequence[str]) -> None:
    """Install what the systems need: packages of Debian, as root, and of Python."""
    packages = [package for name in systems for package in SYSTEMS[name].PACKAGES]
    if packages:
        apt = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
        if os.geteuid() != 0:
            sys.exit(f"only root can install packages of Debian: {shlex.join(apt)}")
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["apt-get", "update"], apt):
            subprocess.run(command, check=True, env=quiet, stdin=subprocess.DEVNULL)
    extras = ",".join(extra for name in systems for extra in SYSTEMS[name].EXTRAS)
    if extras:
        pip = [sys.executable, "-m", "pip", "install", "--constraint", ROOT / "constraints.txt"]
        subprocess.run([*pip, "--editable", f"{ROOT}[{extras}]"], check=True)


def start(name: str, folder: Path, count: int) -> None:
    """Start a cluster, and print what can be done with it."""
    system = SYSTEMS[name]
    if missing := system.find_missing():
        sys.stderr.write(f"{name}: {missing}; try: {shown('install')} {name}\n")
        sys.exit(PARTS_ARE_MISSING)
    if (folder / STATE).exists():
        raise ClusterError(f"{folder} has a cluster; end it: {shown('stop', name, folder)}")
    folder.mkdir(parents=True, exist_ok=True)
    nodes = [system.NODE.format(number) for number in range(1, count + 1)]
    (folder / STATE).write_text(json.dumps({"nodes": nodes}))
    try:
        system.start(folder, nodes)
    except BaseException:
        stop(name, folder)
        raise
    on = system.ON.format(nodes=",".join(nodes), count=count)
    sys.stdout.write(
        f"{name}: {', '.join(nodes)} (in {folder})\n"
        f"use them:  {shown('run', name, folder)} plaunch {on} train.py\n"
        f"lose one:  {shown('lose', name, folder)} {nodes[-1]}\n"
        f"end them:  {shown('stop', name, folder)}\n"
    )


def stop(name: str, folder: Path) -> None:
    """End a cluster, and remove its folder; a no-op if there is none."""
    if (folder / STATE).exists():
        SYSTEMS[name].stop(folder)
        shutil.rmtree(folder, ignore_errors=True)


def run(name: str, folder: Path, words: Sequence[str]) -> None:
    """Run a command in a cluster, in the place of this process."""
    find_nodes(name, folder)
    context: CommandContext = SYSTEMS[name].enter(folder)
    path = [*context.path, str(Path(sys.executable).parent), os.environ["PATH"]]
    command = [*context.prefix, *words]
    os.execvpe(command[0], command, {**os.environ, "PATH": ":".join(path), **context.env})  # noqa: S606


def lose(name: str, folder: Path, node: str) -> None:
    """Kill all processes of a node."""
    nodes = find_nodes(name, folder)
    if node not in nodes:
        raise ClusterError(f"{node!r} is not one of {', '.join(nodes)}")
    SYSTEMS[name].lose(folder, node)


def find_nodes(name: str, folder: Path) -> list[str]:
    """Return the names of the nodes of a cluster."""
    try:
        return list(json.loads((folder / STATE).read_text())["nodes"])
    except FileNotFoundError:
        raise ClusterError(f"{folder} has no cluster: {shown('start', name, folder)}") from None


def default_folder(name: str) -> Path:
    """Return the folder of a cluster of this user."""
    return Path(tempfile.gettempdir(), f"plaunch-{name}-{os.getuid()}")


def shown(action: str, name: str = "", folder: Path | None = None) -> str:
    """Return a command line of this program."""
    tool, here = ROOT / "tools/cluster", Path.cwd()
    words = ["python", str(tool.relative_to(here) if tool.is_relative_to(here) else tool)]
    if folder not in (None, default_folder(name)):
        words.append(f"--folder={folder}")
    return shlex.join([*words, action, *([name] if name else [])])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        prog="python tools/cluster",
    )  # fmt: skip
    parser.add_argument("--folder", type=Path, help="default: plaunch-SYSTEM-UID in /tmp")
    actions = parser.add_subparsers(dest="action", required=True)

    def add_action(name: str, text: str) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=text)
        action.add_argument("system", choices=SYSTEMS)
        return action

    installing = actions.add_parser("install", help="install what is needed")
    installing.add_argument("systems", nargs="*", metavar="SYSTEM", help="default: all")
    starting = add_action("start", "start nodes")
    starting.add_argument("--nodes", type=int, default=3, choices=range(1, MAX_NODES), metavar="N")
    add_action("run", "run a command").add_argument("words", nargs=argparse.REMAINDER)
    add_action("lose", "kill all processes of a node").add_argument("node")
    add_action("stop", "end all nodes")
    args = parser.parse_args()
    if args.action == "install":
        if unknown := sorted({*args.systems} - {*SYSTEMS}):
            parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(sorted(SYSTEMS))}")
        install(args.systems or list(SYSTEMS))
        return
    folder = (args.folder or default_folder(args.system)).resolve()
    try:
        if args.action == "start":
            start(args.system, folder, args.nodes)
        elif args.action == "run":
            run(args.system, folder, args.words)
        elif args.action == "lose":
            lose(args.system, folder, args.node)
        else:
            stop(args.system, folder)
    except ClusterError as error:
        sys.exit(f"{args.system}: {error}")


if __name__ == "__main__":
    main()
