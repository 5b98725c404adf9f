"""Let etcd lose its data under a job of two agents, again and again: both must notice every time.

    python benchmarks/lost_data.py [--count 50] [--seed 0] [--only WAY]

It measures nothing. Real agents meet over a real etcd, which then loses what it holds in one of
three ways: `empty`, its data are gone and it is back within 0.4 s; `expired`, the lease of the
job's keys ends while the agents are paused, as `job_ttl` does; `older`, it is back with the data of
a snapshot from before a failure. Half of the runs have `--nnodes=1:2`, the others `2:2`. A run is
passed if the workers of both agents are started again, into one world of two, with the attempt that
the job had reached. It exits with 1 if any was not.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import measuring
from measuring import BenchmarkError, Pipes, command, positive, start

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    from plaunch_rendezvous_etcd.testing import EtcdServer

BOUND = 30.0  # seconds until all is well again, however busy the machine
QUIET = 2.0  # seconds for which nothing changes then: two looks of every agent
JOB_TTL = 7200  # seconds; plaunch's default

# A worker says where it is; rank 1 fails when it is told to.
WORKER = """\
import os, sys, time
env = os.environ
said = os.open(env["BENCHMARK_SAID"], os.O_WRONLY)
names = ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT")
words = [sys.argv[1], *(env[name] for name in names), str(os.getpid())]
os.write(said, (" ".join(words) + "\\n").encode())
if env["RANK"] == "1" and env["TORCHELASTIC_RESTART_COUNT"] == "0":
    with open(env["BENCHMARK_GO"], "rb") as go:
        go.read(1)
    sys.exit(3)
time.sleep(600)
"""


@dataclass(frozen=True)
class Worker:
    """Where a worker is, as it said when it was there."""

    node: int
    rank: int
    world_size: int
    attempt: int
    port: int
    pid: int


class Job:
    """Two agents with a worker each."""

    def __init__(self, endpoint: str, nnodes: str) -> None:
        self.workers: dict[int, Worker] = {}  # the last one of each node
        self._options = [
            f"--nnodes={nnodes}",
            "--rdzv-backend=etcd-v2",
            f"--rdzv-endpoint={endpoint}",
            f"--rdzv-id=lost-{os.urandom(6).hex()}",
            "--rdzv-conf=last_call_timeout=1",
            "--max-restarts=3",
        ]
        self._pids: set[int] = set()
        self.agents: list[subprocess.Popen[bytes]] = []

    @contextlib.contextmanager
    def running(self) -> Iterator[Job]:
        """Start it, and end it with the block."""
        with Pipes() as self._pipes:
            script = measuring.write_script(self._pipes.folder, "worker.py", WORKER)
            try:
                for node in range(2):
                    argv = command("plaunch", *self._options, script, str(node))
                    self.agents.append(start(argv, env=self._pipes.env))
                yield self
            finally:
                for pid in (*(agent.pid for agent in self.agents), *self._pids):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                for agent in self.agents:
                    agent.wait()

    def await_world(self, what: str, attempt: int, before: dict[int, Worker]) -> None:
        """Wait until both nodes have other workers than `before`, in one world.

        Raises:
            BenchmarkError: they have not.
        """
        deadline = time.monotonic() + BOUND
        while not self._is_one_world(attempt, before):
            self._hear(deadline)
            if time.monotonic() >= deadline:
                raise BenchmarkError(f"no {what} within {BOUND:g} s, but {self._found()}")

    def stays(self, attempt: int, before: dict[int, Worker]) -> None:
        """Make sure that this is not changed any more.

        Raises:
            BenchmarkError: it is.
        """
        deadline = time.monotonic() + QUIET
        while time.monotonic() < deadline:
            self._hear(deadline)
        if not self._is_one_world(attempt, before):
            raise BenchmarkError(f"the world does not last: {self._found()}")

    def let_fail(self) -> None:
        """Let the worker of rank 1 fail."""
        self._pipes.let_go()

    def _hear(self, deadline: float) -> None:
        for line in self._pipes.hear_until(deadline):
            worker = Worker(*map(int, line.split()))
            self._pids.add(worker.pid)
            self.workers[worker.node] = worker
            return

    def _is_one_world(self, attempt: int, before: dict[int, Worker]) -> bool:
        found = self.workers.values()
        return (
            len(found) == 2
            and {worker.rank for worker in found} == {0, 1}
            and {(worker.world_size, worker.attempt) for worker in found} == {(2, attempt)}
            and len({worker.port for worker in found}) == 1
            and not any(self.workers[node] == worker for node, worker in before.items())
        )

    def _found(self) -> str:
        ended = [agent.poll() for agent in self.agents]
        return f"{list(self.workers.values())}; agents: {ended}"


def lose_all(server: EtcdServer, job: Job, dice: random.Random) -> int:
    """The server is back without its data after a moment; the attempt that follows."""
    del job
    server.forget()
    time.sleep(dice.uniform(0.0, 0.3))
    server.start()
    return 0


def expire(server: EtcdServer, job: Job, dice: random.Random) -> int:
    """The time of the job's keys is over, while the agents do not run."""
    for agent in job.agents:
        agent.send_signal(signal.SIGSTOP)
    time.sleep(dice.choice([0.2, 2.0, 6.0]))
    for lease in server.ask("lease/leases").get("leases", ()):
        if int(server.ask("lease/timetolive", ID=lease["ID"])["grantedTTL"]) >= JOB_TTL:
            server.ask("lease/revoke", ID=lease["ID"])
    for agent in dice.sample(job.agents, 2):
        agent.send_signal(signal.SIGCONT)
    return 0


def go_back(server: EtcdServer, job: Job, dice: random.Random) -> int:
    """The server is back with what it held before a restart of the workers."""
    saved = server.save()
    before = dict(job.workers)
    job.let_fail()
    job.await_world("second attempt", 1, before)
    time.sleep(dice.uniform(0.0, 2.0))
    server.restore(saved)
    server.start()
    return 1


WAYS: dict[str, Callable[[EtcdServer, Job, random.Random], int]] = {
    "empty": lose_all,
    "expired": expire,
    "older": go_back,
}


def run_once(way: str, nnodes: str, dice: random.Random) -> float:
    """One job, one loss; the seconds until all was well again.

    Raises:
        BenchmarkError: it was not.
    """
    with measuring.etcd_server() as server, Job(server.endpoint, nnodes).running() as job:
        job.await_world("first world", 0, {})
        time.sleep(dice.uniform(0.0, 2.0))  # anywhere between two looks
        before = dict(job.workers)
        attempt = WAYS[way](server, job, dice)
        if attempt:
            before = dict(job.workers)
        began = time.monotonic()
        job.await_world("new world", attempt, before)
        took = time.monotonic() - began
        job.stays(attempt, before)
        return took


def main() -> int:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
    )
    parser.add_argument("--count", type=positive, default=50, help="how many runs")
    parser.add_argument("--seed", type=int, default=0, help="for the times of all runs")
    parser.add_argument("--only", choices=sorted(WAYS), help="one way to lose data")
    options = parser.parse_args()
    ways = [options.only] if options.only else list(WAYS)
    failed = 0
    for number in range(options.count):
        way = ways[number % len(ways)]
        nnodes = ("1:2", "2:2")[number // len(ways) % 2]
        try:
            took = run_once(way, nnodes, random.Random(options.seed * 1_000_003 + number))
        except BenchmarkError as error:
            failed += 1
            print(f"{number + 1:4} {way:8} {nnodes}  FAILED: {error}", flush=True)
        else:
            print(f"{number + 1:4} {way:8} {nnodes}  {took:5.1f} s", flush=True)
    print(f"{options.count - failed} of {options.count} runs: both agents in one new world")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
