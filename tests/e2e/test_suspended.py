"""All launchers of a job are suspended for longer than the store's timeout, and continue."""

from __future__ import annotations

import secrets
import signal
import time

import pytest

from helpers.nodes import of, options

SHORT = "keep_alive_interval=0.25,unreachable_timeout=2"
SHORT_PAUSE = 3.5  # seconds: longer than the timeout and each lease of a heartbeat
LONG_PAUSE = 65.0  # the same with the defaults


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "pause", "conf"),
    [
        *((nodes, SHORT_PAUSE, SHORT) for nodes in (1, 2)),
        *(pytest.param(nodes, LONG_PAUSE, "", marks=pytest.mark.exhaustive) for nodes in (1, 2, 3)),
    ],
)
@pytest.mark.parametrize("backend", ["c10d", "etcd-v2"])
def test_a_job_continues_after_a_pause(agents, endpoint_of, backend, nodes, pause, conf):
    """Its workers are not suspended."""
    run_id = f"suspended-{secrets.token_hex(4)}"
    argv = options(endpoint_of(backend), nodes, backend=backend, run_id=run_id, conf=conf)
    all_ = [agents.start(*argv) for _ in range(nodes)]
    workers = agents.until_round(0, *all_)
    for agent in all_:
        agent.process.send_signal(signal.SIGSTOP)
    time.sleep(pause)
    for agent in all_:
        agent.process.send_signal(signal.SIGCONT)
    agents.finish(*all_)
    for agent in all_:
        assert len(agent.workers()) == 1, "its workers were started again"
        assert agent.stderr == ""
    agents.until_gone(*of("pid", workers))
