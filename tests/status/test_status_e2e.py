"""A real job of two nodes, scraped through its life."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from helpers.ports import free_port
from helpers.waiting import BOUND, wait_until

pytest.importorskip("torch")
pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families

WORKER = """\
import os, sys, time
print("out", file=sys.stderr, flush=True)
while not os.path.exists("exit." + sys.argv[1]):
    time.sleep(0.02)
"""


class Node:
    """One launcher, with its pages."""

    def __init__(self, folder, name, *options):
        self.log = folder / f"{name}.log"
        self.log.touch()
        environ = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("PET_", "PLAUNCH_", "TORCHELASTIC_")) and key != "LOGLEVEL"
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "plaunch", *options, "worker.py", name],
                cwd=folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def url(self):
        found = re.search(r"status at (http://[^/]+)/status", self.log.read_text())
        return found and found.group(1)

    def get(self, path):
        with urllib.request.urlopen(self.url() + path, timeout=BOUND) as answer:
            return answer.status, answer.read().decode()

    def status(self):
        assert self.get("/healthz") == (200, "ok\n")
        return json.loads(self.get("/status")[1])

    def metrics(self):
        return {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(self.get("/metrics")[1])
            for sample in family.samples
        }

    def until(self, condition):
        def look():
            assert self.process.poll() is None, self.log.read_text()
            return condition()

        return wait_until(look, self.log.read_text)

    def until_status(self, condition):
        def look():
            data = self.status()
            return data if condition(data) else None

        return self.until(look)


@pytest.fixture
def start(tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    nodes = []

    def start_node(*arguments):
        nodes.append(Node(tmp_path, *arguments))
        return nodes[-1]

    yield start_node
    for node in nodes:
        if node.process.poll() is None:
            node.process.terminate()
    for node in nodes:
        node.process.wait(BOUND)


def test_a_restart_that_is_delayed(start, tmp_path):
    (tmp_path / "worker.py").write_text("import sys; sys.exit(17)")
    node = start("a", "--metrics-port=0", "--max-restarts=1", "--restart-delay=10m")
    node.until(node.url)
    data = node.until_status(lambda data: data["phase"] == "pausing")
    assert re.match(r"the time of the restart, \d\d:\d\d:\d\d ", data["waiting_for"])
    assert data["state"] == "STOPPED"
    assert node.metrics()["plaunch_phase", "pausing"] == 1


@pytest.mark.slow
def test_a_job_from_the_first_wait_to_the_end(start, tmp_path):
    job = ("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}")
    job = (*job, "--rdzv-id=job", "--max-restarts=1")
    first = start("a", *job, "--metrics-port=0", "--nproc-per-node=2")
    first.until(first.url)

    # Its own record may come a moment after the first look.
    data = first.until_status(lambda data: "1 came" in (data["waiting_for"] or ""))
    assert (data["phase"], data["state"], data["round"]) == ("rendezvous", "INIT", None)
    assert data["workers"] == []
    numbers = first.metrics()
    assert numbers["plaunch_phase", "rendezvous"] == 1
    assert numbers["plaunch_rounds_total",] == 0
    assert ("plaunch_world_size",) not in numbers

    start("b", *job, "--metrics-port=127.0.0.1:0")
    data = first.until_status(lambda data: data["phase"] == "training")
    assert (data["world_size"], data["group_world_size"], data["round"]) == (3, 2, 0)
    assert data["backend"] == "c10d"
    workers = [worker["pid"] for worker in data["workers"]]
    numbers = first.metrics()
    assert numbers["plaunch_workers", "running"] == 2
    assert numbers["plaunch_phase_duration_seconds_count", "rendezvous"] == 1

    os.kill(workers[0], signal.SIGKILL)
    data = first.until_status(lambda data: data["phase"] == "training" and data["attempt"] == 1)
    assert data["failure"]["signal_name"] == "SIGKILL"
    assert not {worker["pid"] for worker in data["workers"]} & set(workers)
    numbers = first.metrics()
    assert numbers["plaunch_restarts_total", "failure"] == 1
    assert numbers["plaunch_restarts_total", "membership"] == 0
    assert numbers["plaunch_rounds_total",] == 2
    assert numbers["plaunch_worker_exits_total", "", "SIGKILL", "failed"] == 1
    first.until(lambda: first.metrics()["plaunch_tee_bytes_total",] >= 8)

    (tmp_path / "exit.a").touch()
    data = first.until_status(lambda data: data["phase"] == "lingering")
    assert (data["state"], [worker["state"] for worker in data["workers"]]) == (
        "SUCCEEDED",
        ["succeeded", "succeeded"],
    )
    (tmp_path / "exit.b").touch()
    assert first.process.wait(BOUND) == 0
    with pytest.raises(urllib.error.URLError):
        first.get("/healthz")


def test_while_workers_are_stopped_that_will_not_end(start, tmp_path):
    text = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    (tmp_path / "worker.py").write_text(text + WORKER)
    node = start("a", "--metrics-port=0", "--shutdown-timeout=2")
    node.until(node.url)
    node.until(lambda: "out" in node.log.read_text())
    node.process.terminate()
    data = node.until_status(lambda data: data["stop"])
    assert (data["phase"], data["stop"]["signal_name"]) == ("stopping", "SIGTERM")
    assert data["workers"][0]["state"] == "running"
    assert node.process.wait(BOUND) == 128 + signal.SIGTERM


def test_a_taken_port_is_a_usage_error_before_anything_starts(start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        node = start("a", f"--metrics-port={port}")
        assert node.process.wait(BOUND) == 2
    said = node.log.read_text()
    assert "--metrics-port" in said
    assert f"pid {os.getpid()}" in said
    assert "Traceback" not in said
