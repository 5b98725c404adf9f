"""Simulated runs: events as agents write them, on hosts with different clocks."""

from __future__ import annotations

import json

import pytest
from plaunch_report.event_files import read_folders
from plaunch_report.summary import SummaryBuilder

from helpers.error_files import child_file
from helpers.machine_parts import find_browser, need

__all__ = ["child_file"]

EPOCH = 1_800_000_000.0  # the date at second 0 of a run


class Agent:
    """Writes the events of an agent, at given seconds of the run.

    `boot` is how long before the run its host was started, and `ahead` how far its date is ahead,
    in seconds.
    """

    def __init__(self, folder, host, pid=100, *, run_id="job", rank=0, ahead=0.0, boot=5000.0):
        self.path = folder / "events" / f"{host}-{pid}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.common = {
            "run_id": run_id, "attempt": 0, "round": -1, "host": host, "role": "default",
            "agent_pid": pid, "group_rank": rank, "ranks": "",
        }  # fmt: skip
        self.ahead, self.boot = ahead, boot
        self.lines = []

    def tell(self, second, name, **metadata):
        source = "WORKER" if name in ("worker.started", "worker.exited", "failure") else "AGENT"
        event = {
            "name": f"plaunch.{name}",
            "source": source,
            "timestamp": EPOCH + second + self.ahead,
            "metadata": {**self.common, **metadata},
            "monotonic": self.boot + second,
            "version": 1,
        }
        self.lines.append(json.dumps(event))
        return self

    def start(self, second, workers=2, **metadata):
        self.workers = workers
        facts = {
            "plaunch": "0.1.0", "python": "3.11.7", "entry_point": "train.py", "backend": "c10d",
            "endpoint": "a:29400", "min_nodes": 1, "max_nodes": 4, "max_restarts": 2,
            "local_world_size": workers, **metadata,
        }  # fmt: skip
        return self.tell(second, "launcher.started", **facts)

    def join(
        self, begun, formed, started, *, round, world, nodes, rank, attempt=0, port=29500, why=None
    ):
        """Form a round, for the cause and reason `why`, and start the workers of this node."""
        first = rank * self.workers
        self.tell(begun, "rendezvous.begun")
        self.common.update(round=round, attempt=attempt, group_rank=rank)
        self.common["ranks"] = f"{first}-{first + self.workers - 1}"
        if why is not None:
            self.tell(formed, "restart", cause=why[0], reason=why[1], max_restarts=2)
        self.tell(
            formed, "rendezvous.completed", duration=formed - begun, group_world_size=nodes,
            world_size=world, master_addr="a", master_port=port + round,
        )  # fmt: skip
        for local in range(self.workers):
            self.tell(started, "worker.started", **self.worker(local))
        self.tell(started, "workers.started", duration=started - formed)
        if why is not None:
            self.restart(started, 0.5, 2.0, formed - begun, started - formed)
        return self.tell(started, "state.changed", old="INIT", new="HEALTHY")

    def restart(self, second, *parts):
        names = ("noticing", "stopping", "waiting", "starting", "total")
        seconds = zip(names, [*parts, sum(parts)], strict=True)
        facts = {f"seconds_{name}": value for name, value in seconds}
        return self.tell(second, "restart.completed", **facts)

    def worker(self, local):
        rank = self.common["group_rank"] * self.workers + local
        pid = 10_000 * (self.common["round"] + 1) + rank
        return {"local_rank": local, "global_rank": rank, "role_rank": rank, "worker_pid": pid}

    def exit(self, second, local, code, *, stopped=False, signal=None):
        return self.tell(
            second, "worker.exited", exit_code=code, signal_name=signal, stopped=stopped,
            lifetime=1.0, **self.worker(local),
        )  # fmt: skip

    def fail(self, second, rank, pid, **metadata):
        """Record the failure of a worker, by default on this node and without a message."""
        facts = {
            "failed_host": self.common["host"], "exit_code": 1, "signal_name": None,
            "message": "", "error_file": "", "last_lines": "", "is_first": True, **metadata,
        }  # fmt: skip
        return self.tell(second, "failure", global_rank=rank, worker_pid=pid, **facts)

    def stop_all(self, second, skip=()):
        for local in range(self.workers):
            if local not in skip:
                self.exit(second, local, -15, stopped=True, signal="SIGTERM")
        return self

    def succeed(self, second, end):
        for local in range(self.workers):
            self.exit(second, local, 0)
        self.tell(second, "state.changed", old="HEALTHY", new="SUCCEEDED")
        return self.finish(end, "succeeded", 0)

    def finish(self, second, outcome, code, reason="", **seconds):
        return self.tell(
            second, "launcher.finished", outcome=outcome, reason=reason, exit_code=code, **seconds
        )

    def write(self):
        self.path.write_text("".join(f"{line}\n" for line in self.lines))
        return self.path


class Runs:
    """Writes whole runs below a folder."""

    def __init__(self, folder):
        self.folder = folder

    def agent(self, host, pid=100, **arguments):
        return Agent(self.folder, host, pid, **arguments)

    def read(self):
        return read_folders([str(self.folder)])

    def builder(self):
        """A builder of the summary of all agents, and what was read."""
        event_files = self.read()
        return SummaryBuilder(event_files.agents, event_files), event_files

    def elastic(self, *, run_id="job", shift=0.0, last_lines="Traceback:\nValueError: bad batch"):
        """Two nodes train, rank 3 fails, they restart, a third arrives, and all succeed.

        Host b's date is 100 s ahead, and c's 7 s behind.
        """
        s = shift
        a = self.agent("a", run_id=run_id)
        b = self.agent("b", run_id=run_id, rank=1, ahead=100.0, boot=90.0)
        c = self.agent("c", run_id=run_id, rank=2, ahead=-7.0, boot=70_000.0)
        for agent, rank in ((a, 0), (b, 1)):
            agent.start(s + rank * 0.5)
            agent.join(s + 1, s + 4, s + 5, round=0, world=4, nodes=2, rank=rank)
        b.exit(s + 20, 1, 1)
        for agent in (a, b):
            knows = {"message": "ValueError: bad batch", "last_lines": last_lines}
            agent.fail(s + 20, 3, 10_003, failed_host="b", **(knows if agent is b else {}))
            agent.tell(s + 20, "state.changed", old="HEALTHY", new="STOPPED")
            agent.stop_all(s + 22, skip=(1,) if agent is b else ())
        for agent, rank in ((a, 0), (b, 1)):
            agent.join(
                s + 22, s + 23, s + 24, round=1, attempt=1, world=4, nodes=2, rank=rank,
                why=("failure", "rank 3 failed"),
            )  # fmt: skip
        c.start(s + 38).tell(s + 39, "rendezvous.begun")
        for agent in (a, b):
            agent.tell(
                s + 40, "membership.changed", kind="arrived", node="c", reason="it came late"
            )
            agent.tell(s + 40, "state.changed", old="HEALTHY", new="STOPPED")
            agent.stop_all(s + 41)
        for rank, agent in enumerate((a, b, c)):
            begun = s + 39 if agent is c else s + 41
            agent.join(
                begun, s + 42, s + 43, round=2, attempt=1, world=6, nodes=3, rank=rank,
                why=None if agent is c else ("membership", "node c arrived"),
            )  # fmt: skip
        for agent in (a, b, c):
            agent.succeed(s + 60, s + 61)
            agent.write()
        return a, b, c

    def large(self, nodes=125, workers=8, rounds=4):
        """Every round ends in a failure that all nodes record, with 40 last lines each."""
        agents = [self.agent(f"node-{i:03}", boot=900.0 * i) for i in range(nodes)]
        for rank, agent in enumerate(agents):
            agent.start(0, workers)
            for number in range(rounds):
                at = 100.0 * number
                agent.join(
                    at + 1, at + 4, at + 5, round=number, attempt=number, rank=rank,
                    world=nodes * workers, nodes=nodes,
                )  # fmt: skip
                if number == rounds - 1:
                    agent.succeed(at + 90, at + 91)
                    break
                if rank == 7:
                    agent.exit(at + 80, 3, 1)
                agent.fail(
                    at + 80, 7 * workers + 3, 10_000 * (number + 1), failed_host="node-007",
                    message="RuntimeError", last_lines="a line of a log\n" * 40,
                )  # fmt: skip
                agent.tell(at + 80, "state.changed", old="HEALTHY", new="STOPPED")
                agent.stop_all(at + 85, skip=(3,) if rank == 7 else ())
            agent.write()


@pytest.fixture
def runs(tmp_path):
    return Runs(tmp_path / "logs")


@pytest.fixture(scope="session")
def browser():
    """The path of a browser that runs without a screen."""
    need("browser")
    return find_browser()
