"""A store host with few descriptors and many connections from unknown clients."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
import time

import pytest

from helpers.nodes import options
from helpers.ports import free_port

pytest.importorskip("torch.distributed")

FEW = 160  # a launcher with two workers has about fifty open, sometimes more
LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
os.execv(sys.argv[3], sys.argv[3:])
"""


def within(soft, hard):
    """A command that runs another one with these limits."""
    return (sys.executable, "-c", LIMITED, str(soft), str(hard))


def start(agents, port, limits, store="torch"):
    more = ["--nproc-per-node=2", "--max-restarts=1", agents.script, "host"]
    argv = options(f"127.0.0.1:{port}", "1:2", *more, conf=f"is_host=true,store={store}")
    return agents.launch(argv, "host", {}, within=limits)


def connect_strangers(port, count):
    """Open connections one after the other; rejected ones count too."""
    strangers = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            strangers.append(socket.create_connection(("127.0.0.1", port), timeout=5.0))
        time.sleep(0.01)  # slower than the host accepts
    return strangers


def open_files(agent):
    return len(os.listdir(f"/proc/{agent.process.pid}/fd"))


@pytest.mark.slow
def test_workers_restart_although_other_programs_use_all_descriptors(agents):
    port = free_port()
    host = start(agents, port, within(FEW, FEW))
    agents.until_round(0, host, workers=2)
    strangers = connect_strangers(port, 2 * FEW)
    agents.until(lambda: "rejected" in host.stderr, "strangers are turned away")
    # Meanwhile the host may have no free descriptor.
    agents.until(lambda: open_files(host) <= FEW - 40, "there is room again")
    agents.tell("exit.1.0", 3)
    again = agents.until_round(1, host, workers=2)
    assert {worker["TORCHELASTIC_RESTART_COUNT"] for worker in again} == {"1"}
    agents.finish(host)
    for stranger in strangers:
        stranger.close()


@pytest.mark.slow
def test_strangers_take_no_descriptors_of_the_launcher(agents):
    """They connect to the process of the store."""
    port = free_port()
    host = start(agents, port, within(FEW, FEW), store="job")
    agents.until_round(0, host, workers=2)
    before = open_files(host)
    strangers = connect_strangers(port, 2 * FEW)
    assert open_files(host) <= before + 5
    agents.tell("exit.1.0", 3)
    agents.until_round(1, host, workers=2)
    agents.finish(host)
    for stranger in strangers:
        stranger.close()


@pytest.mark.slow
def test_the_soft_limit_is_raised_only_for_the_launcher(agents):
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    port = free_port()
    host = start(agents, port, within(FEW, most))
    agents.until_round(0, host, workers=2)
    strangers = connect_strangers(port, 2 * FEW)
    assert len(strangers) == 2 * FEW

    def soft_limit(pid):
        words = ["prlimit", "--pid", str(pid), "--nofile", "--output=SOFT", "--noheadings"]
        return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)

    agents.until(lambda: soft_limit(host.process.pid) == most, "the limit is raised")
    agents.tell("exit.1.0", 3)
    (again, _) = agents.until_round(1, host, workers=2)
    agents.until(lambda: soft_limit(again["pid"]) == FEW, "the worker has the limit of before")
    agents.finish(host)
    assert "rejected" not in host.stderr
    for stranger in strangers:
        stranger.close()
