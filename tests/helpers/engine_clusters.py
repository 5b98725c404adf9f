"""Nodes on which engines start agents: processes of this machine, ssh servers, a Slurm, a Ray.

`tools/cluster` starts them. A test is skipped where something for it is missing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from helpers.engine_commands import LEFT_LIMIT, EngineCommand
from helpers.machine_parts import need
from helpers.waiting import wait_until

TOOL = Path(__file__).parents[2] / "tools/cluster"
START_LIMIT = 200.0  # seconds


class LocalNodes:
    """Agents on this machine. A node is lost with its agent."""

    kept = ()  # nodes whose loss ends every job

    def __init__(self, count=3):
        del count  # the command starts them

    def launch(self, folder, *words, nodes, further=0, **more):
        """Start a job on nodes of the cluster; `further` ones can replace others."""
        del further
        return EngineCommand(folder, f"--on=local:{nodes}", *words, **more)

    def lose(self, command, worker):
        """Let the node of a worker fail."""
        os.kill(command.agent_of(worker), signal.SIGKILL)

    def left(self):
        """Return what a job has left in the cluster, beside processes with its tag."""
        return []

    def close(self):
        """End all nodes."""


class ToolNodes(LocalNodes):
    """Nodes that the tool has started. Losing one kills all of its processes."""

    system = ""

    def __init__(self, count=3):
        need(self.system)
        # Slurm and Ray keep sockets in it, whose paths are limited.
        self._parent = tempfile.TemporaryDirectory(prefix="nodes-", dir="/tmp")
        self.folder = Path(self._parent.name, "c")
        started = self._run("start", self.system, f"--nodes={count}")
        if started.returncode != 0:
            self._parent.cleanup()
            pytest.fail(started.stderr.strip())
        self.printed = started.stdout
        self.nodes = self.printed.partition(" (")[0].partition(": ")[2].split(", ")

    @property
    def prefix(self):
        """The words in front of a command, which run it in the cluster."""
        return [sys.executable, str(TOOL), f"--folder={self.folder}", "run", self.system]

    def start(self, folder, *words, inside=(), **more):
        """Start plaunch in the cluster; `inside` are words in front of it."""
        return EngineCommand(folder, *words, prefix=[*self.prefix, *inside], **more)

    def run(self, *words):
        """Run a command in the cluster; return what it prints."""
        done = subprocess.run(
            [*self.prefix, *words], capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    def lose(self, command, worker):
        self.lose_node(worker["node"])

    def lose_node(self, node):
        self.nodes.remove(node)
        self._run("lose", self.system, node).check_returncode()

    def close(self):
        self._run("stop", self.system).check_returncode()
        self._parent.cleanup()

    def _run(self, *words):
        return self.run_tool(self.folder, *words)

    @staticmethod
    def run_tool(folder, *words):
        """Run the tool."""
        return subprocess.run(
            [sys.executable, TOOL, f"--folder={folder}", *words],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=START_LIMIT,
            check=False,
        )  # fmt: skip


class SshNodes(ToolNodes):
    """ssh servers."""

    system = "ssh"

    @property
    def ssh(self):
        """The command that connects to them."""
        return f"ssh -F {self.folder}/config"

    def launch(self, folder, *words, nodes, further=0, **more):
        hosts = self.nodes[: nodes + further]
        return self.start(folder, f"--on=ssh:{','.join(hosts)}", *words, **more)

    def server_of(self, node):
        return int((self.folder / f"{node}.pid").read_text())

    def set_shell(self, text):
        """Let a script run instead of the login shell; it finds the command in a variable."""
        script = self.folder / "shell"
        script.write_text(f"#!/bin/bash\n{text}\n")
        script.chmod(0o755)
        key = (self.folder / "user_key.pub").read_text()
        (self.folder / "authorized_keys").write_text(f'command="{script}" {key}')


class SlurmNodes(ToolNodes):
    """A Slurm."""

    system = "slurm"

    def launch(self, folder, *words, nodes, further=0):
        inside = []
        if further:  # only an allocation that exists has nodes that are left
            inside = ["salloc", "--no-kill", "--exclusive", f"--nodes={nodes + further}"]
        return self.start(folder, "--on=slurm", *words, inside=inside)

    def left(self):
        return self.jobs()

    def jobs(self):
        """Return the jobs that are pending or running."""
        return self.run("squeue", "--noheader", "--states=PD,R", "--format=%i").split()


class RayNodes(ToolNodes):
    """A Ray cluster, whose first node hosts its control service and the command's connection."""

    system = "ray"
    kept = ("node1",)

    def launch(self, folder, *words, nodes, further=0):
        return self.start(folder, "--on=ray", *words)

    @property
    def address(self):
        return self.run("printenv", "RAY_ADDRESS").strip()

    def left(self):
        """Return the actors; Ray keeps other processes for the next job."""
        mark = f"CLUSTER_NODE={self.folder}/".encode()
        return [
            path.name
            for path in Path("/proc").glob("[0-9]*")
            if b"ray::AgentActor" in _read(path / "cmdline") and mark in _read(path / "environ")
        ]


def wait_for_nothing_left(cluster, command):
    """Assert that the job soon has left nothing on any node."""
    began = time.monotonic()
    command.check_nothing_left()
    wait_until(lambda: not cluster.left(), cluster.left)
    assert time.monotonic() - began < LEFT_LIMIT


def _read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


CLUSTERS = {"local": LocalNodes, "ssh": SshNodes, "slurm": SlurmNodes, "ray": RayNodes}
