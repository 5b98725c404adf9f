"""The end of a job with a store on one of its nodes, for nodes that notice it late."""

from __future__ import annotations

import json
import signal
import time
import urllib.error
import urllib.request

import pytest

from helpers.nodes import options
from helpers.ports import free_port

pytest.importorskip("torch.distributed")

SAID = 1.0  # seconds in which a finished node has reported its success
CONF = "keep_alive_interval=0.25,keep_alive_max_attempt=4"


def phase_at(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=60.0) as answer:
        return json.load(answer)["phase"]


def pause_one_that_is_done(agents, conf):
    """The store host of a job, and the other node, which is paused when its workers are done."""
    pytest.importorskip("prometheus_client")
    endpoint, port = f"127.0.0.1:{free_port()}", free_port()
    joins = f"{conf},is_host=false"
    host = agents.start(*options(endpoint, 2, conf=f"{conf},is_host=true"), name="host")
    other = agents.start(*options(endpoint, 2, f"--metrics-port={port}", conf=joins), name="other")
    agents.until_round(0, host, other)
    agents.tell("exit.other", 0)
    agents.until(lambda: phase_at(port) == "lingering", "the other is done")
    time.sleep(SAID)
    other.process.send_signal(signal.SIGSTOP)
    return host, other


@pytest.mark.slow
@pytest.mark.parametrize("before", [0.0, 3.0], ids=["for the end", "and lost already"])
def test_a_node_that_is_paused_at_the_end_gets_the_verdict(agents, before):
    """It has finished, and the host waits for it as long as it is connected."""
    host, other = pause_one_that_is_done(agents, f"{CONF},unreachable_timeout=3")
    time.sleep(before)
    agents.tell("exit.host", 0)
    agents.until(
        lambda: host.process.poll() is not None or "how the job ended" in host.stderr,
        "the host waits for the other one, or ends",
    )
    other.process.send_signal(signal.SIGCONT)
    assert [agent.exit_code() for agent in (other, host)] == [0, 0]
    assert other.stderr.strip().count("\n") == 0  # where its status is


@pytest.mark.slow
def test_the_host_does_not_wait_for_a_node_that_died_at_the_end(agents):
    host, other = pause_one_that_is_done(agents, f"{CONF},close_timeout=600")
    agents.tell("exit.host", 0)
    agents.until(lambda: "how the job ended" in host.stderr, "the host waits")
    other.kill()
    assert host.exit_code() == 0


@pytest.mark.slow
def test_a_job_on_the_store_of_another_one_is_warned(agents):
    endpoint = f"127.0.0.1:{free_port()}"
    first = agents.start(*options(endpoint, "1:2", run_id="one", conf=CONF), name="first")
    agents.until_round(0, first)
    conf = f"{CONF},unreachable_timeout=2"
    second = agents.start(*options(endpoint, "1:2", run_id="two", conf=conf), name="second")
    agents.until_round(0, second)
    assert f"the store at {endpoint} is hosted by a launcher of another job, 'one'" in second.stderr
    assert "--rdzv-endpoint" in second.stderr
    agents.tell("exit.first", 0)
    assert first.exit_code() == 0
    assert second.exit_code() == 113  # the store is lost
    assert second.stderr.count("hosted by a launcher of another job") == 1
