"""All launchers of a job are suspended for longer than the store may be silent, and go on."""

from __future__ import annotations

import secrets
import signal
import time

import pytest

from helpers.nodes import of, options

pytest.importorskip("torch.distributed")

SHORT = "keep_alive_interval=0.25,unreachable_timeout=4"
SHORT_PAUSE = 8.0  # seconds: beyond the time-out, and every lease of a heartbeat
LONG_PAUSE = 65.0  # the same with the defaults


def suspend_and_go_on(agents, endpoint, backend, nodes, pause, conf=""):
    """Let a job begin, suspend its launchers, and let it end; its workers are not suspended."""
    run_id = f"suspended-{secrets.token_hex(4)}"
    argv = options(endpoint, nodes, backend=backend, run_id=run_id, conf=conf)
    all_ = [agents.start(*argv) for _ in range(nodes)]
    workers = agents.until_round(0, *all_)
    for agent in all_:
        agent.process.send_signal(signal.SIGSTOP)
    time.sleep(pause)
    for agent in all_:
        agent.process.send_signal(signal.SIGCONT)
    agents.tell("exit", 0)
    assert [agent.exit_code() for agent in all_] == [0] * nodes
    for agent in all_:
        assert len(agent.workers()) == 1, "its workers were started again"
        assert agent.stderr == ""
    agents.until_gone(*of("pid", workers))


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("backend", ["c10d", "etcd-v2"])
def test_a_job_goes_on_after_a_pause(agents, endpoint_of, backend, nodes):
    suspend_and_go_on(agents, endpoint_of(backend), backend, nodes, SHORT_PAUSE, SHORT)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.parametrize("backend", ["c10d", "etcd-v2"])
def test_a_job_goes_on_after_a_long_pause(agents, endpoint_of, backend, nodes):
    suspend_and_go_on(agents, endpoint_of(backend), backend, nodes, LONG_PAUSE)
