"""A restart of two nodes: its overlapping phases, and their reported durations."""

from __future__ import annotations

import json
import re

import pytest

from helpers.nodes import WORKER, of, options
from helpers.processes import is_gone

# The workers of one node ignore the stop signal.
STUBBORN = """\
import signal, sys
if sys.argv[1] == "slow":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""


def restarts_of(agents, agent):
    """Return the events about its restarts."""
    lines = (agents.folder / f"{agent.name}.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    return [e["metadata"] for e in events if e["name"] == "plaunch.restart.completed"]


@pytest.mark.parametrize("backend", ["c10d", "etcd-v2"])
def test_a_stopped_node_joins_while_others_are_stopping(
    agents, plaunch, endpoint_of, request, backend
):
    agents.script = plaunch.write("worker.py", STUBBORN + WORKER)
    settings = {"backend": backend, "run_id": request.node.name}
    more = ("--nproc-per-node=2", "--max-restarts=1", "--shutdown-timeout=60")
    argv = options(endpoint_of(backend), "2", *more, "--event-log-handler=jsonl", **settings)
    slow, quick = (
        agents.start(*argv, f"--event-conf=jsonl.path={name}.jsonl", name=name, LOGLEVEL="INFO")
        for name in ("slow", "quick")
    )
    agents.until_round(0, slow, quick, workers=2)

    agents.tell(f"exit.{quick.workers()[0]['RANK']}.0", 3)
    # The job has decided to restart, and this node has joined the next round.
    here = r"waits for 2 nodes until [\d:]+; 1 came: .*\(since"
    agents.until(lambda: re.search(here, quick.stderr), "one node has come")
    agents.until_gone(*of("pid", quick.workers()))
    assert not any(map(is_gone, of("pid", slow.workers())))

    for worker in slow.workers():
        agents.tell(f"exit.{worker['RANK']}.0", 0)
    agents.until_round(1, slow, quick, workers=2)
    agents.finish(slow, quick)

    parts = ("noticing", "stopping", "waiting", "starting")
    told = {}
    for agent in (slow, quick):
        (metadata,) = restarts_of(agents, agent)
        told[agent] = {part: metadata[f"seconds_{part}"] for part in parts}
        assert sum(told[agent].values()) == pytest.approx(metadata["seconds_total"])
        assert metadata["round"] == metadata["attempt"] == 1
    # After three seconds it has logged that it waits, for the other node's stop.
    assert told[quick]["waiting"] > 3.0
    assert told[slow]["stopping"] > told[slow]["waiting"]
    assert re.search(r"^plaunch: restarted in .* s waiting", quick.stderr, re.M)
    assert re.search(r"^plaunch: restarted in .* s stopping", slow.stderr, re.M)
