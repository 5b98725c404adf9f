"""Real launches over a real etcd."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time

import pytest
from plaunch.errors import ExitCode

from helpers.etcd_versions import without_version_warning
from helpers.programs import running_python
from helpers.waiting import wait_until

WORKER = """
import os, sys, time
folder, stop = sys.argv[1:]
name = "-".join(os.environ[v] for v in ("PLAUNCH_ROUND", "RANK", "WORLD_SIZE"))
open(os.path.join(folder, name), "w").close()
while not os.path.exists(stop):
    time.sleep(0.05)
"""
BOUND = 60.0


@pytest.fixture
def start(tmp_path):
    """Starts agents; `folder` has a file for each worker that was started."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    folder, stop = tmp_path / "workers", tmp_path / "stop"
    folder.mkdir()
    with contextlib.ExitStack() as stack:

        def launch(endpoint, *arguments):
            words = ["--rdzv-backend=etcd-v2", f"--rdzv-endpoint={endpoint}", "--rdzv-id=real"]
            started = running_python(
                *("-m", "plaunch", *words, *arguments, script, folder, stop),
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "LOGLEVEL": "WARNING"},
            )
            return stack.enter_context(started)

        launch.workers = lambda: sorted(os.listdir(folder))
        launch.stop = stop.touch
        yield launch


def ended(process):
    """Wait for a launcher; return its exit code and output, without the warning of an old etcd."""
    output, _ = process.communicate(timeout=BOUND)
    return process.returncode, without_version_warning(output)


def peak_memory(process):
    """In MiB."""
    with open(f"/proc/{process.pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:")) / 1024


def mapped(process):
    with open(f"/proc/{process.pid}/maps") as file:
        return file.read()


def test_a_job_of_two_agents_is_light(start, etcd_server):
    agents = [start(etcd_server.endpoint, "--nnodes=2", "--rdzv-id=light") for _ in range(2)]
    wait_until(lambda: len(start.workers()) == 2, "both run")
    for agent in agents:
        assert peak_memory(agent) < 60
        assert "libtorch" not in mapped(agent)
    start.stop()
    for agent in agents:
        assert ended(agent) == (0, "")
    assert start.workers() == ["0-0-2", "0-1-2"]


def test_a_job_survives_the_death_of_etcds_leader(start, etcd_cluster):
    agents = [start(etcd_cluster.endpoint, "--nnodes=3") for _ in range(3)]
    wait_until(lambda: len(start.workers()) == 3, "all run")
    etcd_cluster.leader().kill()
    etcd_cluster.leader()
    time.sleep(6)  # longer than an agent may be silent
    start.stop()
    for agent in agents:
        assert ended(agent) == (0, "")
    assert start.workers() == ["0-0-3", "0-1-3", "0-2-3"]


def test_an_agent_that_is_killed_is_replaced(start, etcd_server):
    options = ("--nnodes=1:2", "--rdzv-id=killed", "--rdzv-conf=last_call_timeout=3")
    agents = [start(etcd_server.endpoint, *options) for _ in range(2)]
    wait_until(lambda: len(start.workers()) == 2, "both run")
    agents[1].send_signal(signal.SIGKILL)
    wait_until(lambda: "1-0-1" in start.workers(), "the other one continues alone")
    agents[1] = start(etcd_server.endpoint, *options)
    wait_until(lambda: "2-1-2" in start.workers(), "both run again")
    start.stop()
    assert [ended(agent)[0] for agent in agents] == [0, 0]


def test_the_launcher_reports_an_outage_beyond_the_timeout(start, own_etcd_server):
    conf = "--rdzv-conf=unreachable_timeout=3"
    agents = [start(own_etcd_server.endpoint, "--nnodes=2", conf) for _ in range(2)]
    wait_until(lambda: len(start.workers()) == 2, "both run")
    own_etcd_server.kill()
    for agent in agents:
        code, output = ended(agent)
        assert code == ExitCode.CONTROL_PLANE_LOST
        assert own_etcd_server.endpoint in output
        assert "Connection refused" in output


def test_no_secret_is_visible(start, secure_server, certificates, password_file):
    password = "ann's password"
    conf = (
        f"--rdzv-conf=protocol=https,ca_cert={certificates.ca},etcd_user=ann,"
        f"etcd_password_file={password_file}"
    )
    agent = start(secure_server.endpoint, "--rdzv-id=secret", conf)
    wait_until(lambda: len(start.workers()) == 1, "it runs")
    for name in ("cmdline", "environ"):
        with open(f"/proc/{agent.pid}/{name}") as file:
            assert password not in file.read()
    start.stop()
    code, output = ended(agent)
    assert code == 0
    assert password not in output
