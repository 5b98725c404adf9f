"""Workers that something holds, as an agent knows them, with real workers."""

from __future__ import annotations

import os
import signal
import time

import pytest
from plaunch.agent import WorkerState
from plaunch.process.proc import read_state
from plaunch.testing.rendezvous import FakeElasticRendezvous

from helpers.agents import UP, Node
from helpers.calls import meanwhile
from helpers.waiting import wait_until

STOPS = UP + "up()\nif rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\n"
LONG = 9.0  # seconds, of which the agent's own looks need five to seven


@pytest.mark.slow
def test_a_worker_is_seen_to_be_held_although_nobody_asks(tmp_path):
    with FakeElasticRendezvous(world_size=1) as handler:
        node = Node(tmp_path, handler)
        agent = node.agent(STOPS)
        seen = []

        def ask():
            (pid,) = (worker["pid"] for worker in node.workers("0.0.1"))
            wait_until(lambda: read_state(pid) == "T", "it is suspended")
            time.sleep(LONG)
            asked = time.time()
            seen.append((asked, pid, agent.held()))
            os.kill(pid, signal.SIGCONT)

        with meanwhile(ask):
            assert agent.run().state is WorkerState.SUCCEEDED
    ((asked, pid, held),) = seen
    assert [*held] == [1]
    assert (held[1].how, held[1].pid) == ("suspended", pid)
    assert asked - LONG - 1 <= held[1].since < asked - 1
