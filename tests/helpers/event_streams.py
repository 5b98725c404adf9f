"""Events of an agent, at times that a test sets."""

from __future__ import annotations

from plaunch.events import Event
from plaunch_events import SCHEMA


class Stream:
    """Creates events of one agent; `at` is the time on both clocks."""

    def __init__(self, *takers):
        self.takers = takers
        self.common = {
            "run_id": "job",
            "attempt": 0,
            "round": -1,
            "host": "node0",
            "role": "trainer",
            "agent_pid": 1,
            "group_rank": -1,
            "ranks": "",
        }

    def tell(self, at, name, **values):
        name = f"plaunch.{name}"
        metadata = {**self.common, **dict.fromkeys(SCHEMA[name].keys), **values}
        event = Event(name, SCHEMA[name].source, 1000.0 + at, metadata, float(at))
        for take in self.takers:
            take(event)
        return event

    def begin(self, at=0):
        self.tell(
            at,
            "launcher.started",
            backend="c10d",
            endpoint="user:secret@host",
            min_nodes=1,
            max_nodes=2,
            local_world_size=2,
            max_restarts=3,
        )
        self.tell(at, "rendezvous.begun")

    def form(self, at, *, attempt=0, round=0, nodes=2):
        """A round forms and its workers start, two seconds later."""
        if round:
            cause = "failure" if attempt > self.common["attempt"] else "membership"
            self.tell(at, "restart", cause=cause, reason="why", max_restarts=3)
        self.common.update(attempt=attempt, round=round, group_rank=0, ranks="0-1")
        self.tell(
            at,
            "rendezvous.completed",
            duration=1.0,
            world_size=2 * nodes,
            group_world_size=nodes,
            master_addr="node0",
            master_port=29500,
        )
        for rank in range(2):
            self.tell(at + 2, "worker.started", **self.worker(rank))
        self.tell(at + 2, "workers.started", duration=2.0)
        self.tell(at + 2, "state.changed", old="INIT", new="HEALTHY")

    def worker(self, rank):
        pid = 100 * self.common["round"] + rank
        return {"local_rank": rank, "global_rank": rank, "role_rank": rank, "worker_pid": pid}

    def end(self, at, rank, exit_code, *, stopped=False, signal_name=None):
        self.tell(
            at,
            "worker.exited",
            **self.worker(rank),
            exit_code=exit_code,
            signal_name=signal_name,
            stopped=stopped,
            lifetime=1.0,
            message="secret",
        )

    def fail(self, at):
        """Rank 1 fails, and rank 0 is stopped, three seconds later."""
        self.end(at, 1, -9, signal_name="SIGKILL")
        self.tell(
            at,
            "failure",
            global_rank=1,
            failed_host="node0",
            worker_pid=1,
            exit_code=-9,
            signal_name="SIGKILL",
            message="secret",
            last_lines="secret",
            is_first=True,
        )
        self.tell(at, "stop.step", step="signalled", signal_name="SIGTERM", seconds=0.0)
        self.end(at + 3, 0, -15, stopped=True, signal_name="SIGTERM")
        self.tell(at + 3, "state.changed", old="HEALTHY", new="STOPPED")
