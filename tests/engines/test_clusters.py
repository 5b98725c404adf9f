"""`tools/cluster`, which starts the nodes of these tests."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.engine_clusters import RayNodes, SlurmNodes, SshNodes, ToolNodes

SLOW = [pytest.mark.slow, pytest.mark.heavy]


def processes_of(cluster):
    """Return the processes that are marked as those of nodes, or that name the folder."""
    folder = os.fsencode(cluster.folder)
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if folder in (path / "environ").read_bytes() + (path / "cmdline").read_bytes():
                found.append((path.name, (path / "cmdline").read_bytes()))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    "nodes", [SshNodes, pytest.param(SlurmNodes, marks=SLOW), pytest.param(RayNodes, marks=SLOW)]
)
def test_what_start_prints_works_and_stop_leaves_nothing(nodes, tmp_path):
    (tmp_path / "train.py").write_text("print('trained')\n")
    cluster = nodes(2)
    try:
        assert processes_of(cluster)
        lines = dict(re.findall(r"^(\w+ \w+): +(.*)$", cluster.printed, re.MULTILINE))
        assert set(lines) == {"use them", "lose one", "end them"}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            [*shlex.split(lines["use them"])[:-1], tmp_path / "train.py"],
            env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert done.stdout.count("] trained\n") == 2, done.stderr
    finally:
        cluster.close()
    assert processes_of(cluster) == []
    assert not cluster.folder.exists()


def strays_in(cluster):
    return [title for _, title in processes_of(cluster) if title.startswith(b"sleep")]


def test_processes_that_have_left_their_session_are_processes_of_the_node():
    cluster = SshNodes(2)
    try:
        for node in cluster.nodes:
            cluster.run("ssh", node, "cd /; setsid sleep 600 < /dev/null > /dev/null 2>&1 &")
        assert len(strays_in(cluster)) == 2
        cluster.lose_node("node2")
        assert len(strays_in(cluster)) == 1
    finally:
        cluster.close()
    assert processes_of(cluster) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["run", "ssh", "true"],
            r"ssh: /\S+ has no cluster: python .*tools/cluster --folder=\S+ start ssh\n",
        ),
        (["lose", "ssh", "node1"], r"ssh: /\S+ has no cluster: .*\n"),
        (["install", "mpi"], r"(.*\n)+.*unknown: mpi; choose from ray, slurm, ssh\n"),
    ],
)
def test_errors_are_one_line(tmp_path, words, message):
    done = ToolNodes.run_tool(tmp_path / "none", *words)
    assert done.returncode != 0
    assert re.fullmatch(message, done.stderr), done.stderr


def test_stop_without_a_cluster_does_nothing(tmp_path):
    (tmp_path / "file").touch()
    assert ToolNodes.run_tool(tmp_path, "stop", "ssh").returncode == 0
    assert (tmp_path / "file").exists()
