"""How fast a job of several nodes reacts to changes, and what idle agents cost.

    python benchmarks/membership.py [--backend c10d|etcd-v2] [--repeat N] [--only WORD] [--check]

All nodes are agents on this machine, with default settings except for `last_call_timeout=1`. With
c10d the first one hosts the store; for etcd this starts a server. Their workers are bare Python.
benchmarks/README.md says how to read the table.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import measuring
from measuring import ETCD, LIMIT, BenchmarkError, Goal, Launches, Measurement, command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# A worker reports its start through a named pipe, with the time of its first line;
# rank 1 fails on request. The monotonic clock is the same for the whole system.
WORKER = """\
import time
began = time.monotonic_ns()
import os, sys
rank, world_size = os.environ["RANK"], os.environ["WORLD_SIZE"]
restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
said = os.open(os.environ["BENCHMARK_SAID"], os.O_WRONLY)
os.write(said, f"{sys.argv[1]} {rank} {world_size} {restarts} {os.getpid()} {began}\\n".encode())
if rank == "1":
    with open(os.environ["BENCHMARK_GO"], "rb") as go:
        go.read(1)
    sys.exit(3)
time.sleep(600)
"""


SETTLING = 2  # seconds until the cost of the start is over


@dataclass(frozen=True)
class Worker:
    """The report of a started worker; `when` is in nanoseconds of the monotonic clock."""

    node: int
    rank: int
    world_size: int
    restarts: int
    pid: int
    when: int


class Job(Launches):
    """Several agents of one job, with one worker each.

    Args:
        backend: the option `--rdzv-backend`.
        endpoint: of an existing store; if empty, the first agent hosts it.
        nnodes: the option of that name.
    """

    def __init__(self, backend: str, endpoint: str, nnodes: str) -> None:
        super().__init__()
        self._has_host = not endpoint
        self._options = [
            f"--nnodes={nnodes}",
            f"--rdzv-backend={backend}",
            f"--rdzv-endpoint={endpoint or measuring.free_endpoint()}",
            f"--rdzv-id=benchmark-{os.urandom(6).hex()}",
        ]

    def begin(self) -> None:
        """Write the workers' script."""
        self._script = measuring.write_script(self.pipes.folder, "worker.py", WORKER)

    def start_node(self) -> int:
        """Start another agent; return the time before."""
        number = len(self.processes)
        conf = "last_call_timeout=1"
        if self._has_host:
            conf += f",is_host={'false' if number else 'true'}"
        argv = command("plaunch", *self._options, f"--rdzv-conf={conf}", self._script, str(number))
        began = time.monotonic_ns()
        self.launch(argv)
        return began

    def hear(self, world_size: int, count: int) -> list[Worker]:
        """Wait for `count` workers of a world of this size; return them by rank."""
        heard: list[Worker] = []
        for line in self.pipes.hear(f"{count} workers come to a world of {world_size}"):
            worker = Worker(*map(int, line.split()))
            self.workers.add(worker.pid)
            if worker.world_size != world_size or worker.restarts != 0:
                raise BenchmarkError(f"{worker} is none of a first world of {world_size} nodes")
            heard.append(worker)
            if len(heard) == count:
                break
        return sorted(heard, key=lambda worker: worker.rank)

    def kill_node(self, number: int) -> int:
        """Kill an agent with SIGKILL; return the time before."""
        began = time.monotonic_ns()
        self.processes[number].kill()
        return began

    def let_fail(self) -> int:
        """Let the worker of rank 1 fail; return the time before."""
        began = time.monotonic_ns()
        self.pipes.let_go()
        return began

    def ends(self) -> list[int]:
        """Return the times at which the agents ended, in order, all for the same reason."""
        poller = select.poll()
        fds = {os.pidfd_open(agent.pid): agent for agent in self.processes}
        for fd in fds:
            poller.register(fd, select.POLLIN)
        ends: list[int] = []
        deadline = time.monotonic() + LIMIT
        try:
            while len(ends) < len(fds):
                ready = poller.poll(max(deadline - time.monotonic(), 0) * 1e3)
                if not ready:
                    raise BenchmarkError(f"{len(fds) - len(ends)} agents have not ended")
                for fd, _ in ready:
                    ends.append(time.monotonic_ns())
                    poller.unregister(fd)
        finally:
            for fd in fds:
                os.close(fd)
        codes = {agent.wait() for agent in self.processes}
        if codes != {3}:
            raise BenchmarkError(f"a worker ended with exit code 3, the agents with {codes}")
        return ends


def seconds(began: int, ended: int) -> float:
    return (ended - began) / 1e9


def arrival_and_loss(backend: str, endpoint: str) -> list[float]:
    """A late node joins, and is then lost."""
    with Job(backend, endpoint, "1:2") as job:
        job.start_node()
        job.hear(1, 1)
        began = job.start_node()
        late = next(worker for worker in job.hear(2, 2) if worker.node == 1)
        killed = job.kill_node(1)
        (survivor,) = job.hear(1, 1)
    return [seconds(began, late.when), seconds(killed, survivor.when)]


def failure(backend: str, endpoint: str) -> list[float]:
    """One of four nodes fails, and no restart is left."""
    with Job(backend, endpoint, "4") as job:
        for _ in range(4):
            job.start_node()
        job.hear(4, 4)
        began = job.let_fail()
        ends = job.ends()
    return [seconds(ends[0], ends[-1]), seconds(began, ends[-1])]


def idle(backend: str, endpoint: str, seconds: float) -> list[float]:
    """Return the CPU of an agent beside a running worker, in percent of a core, and its threads.

    Of two agents the cheaper one is taken: the other one leads, and may host the store.
    """
    with Job(backend, endpoint, "2") as job:
        for _ in range(2):
            job.start_node()
        job.hear(2, 2)
        time.sleep(SETTLING)
        pids = [agent.pid for agent in job.processes]
        before, began = [*map(measuring.cpu_seconds, pids)], time.monotonic()
        time.sleep(seconds)
        after, passed = [*map(measuring.cpu_seconds, pids)], time.monotonic() - began
        used = min(end - begin for begin, end in zip(before, after, strict=True))
        threads = min(len(os.listdir(f"/proc/{pid}/task")) for pid in pids)
    return [used / passed * 100, threads]


def rows(
    idle_seconds: float,
) -> list[tuple[list[Measurement], Callable[[str, str], list[float]]]]:
    """Return the measurements, and the function that samples each of them."""
    arrival = [
        Measurement("arrival of a node", "s"),
        Measurement("loss of a node", "s"),
    ]
    ends = [
        Measurement("failure: spread of 4 exits", "s"),
        Measurement("failure to the last exit", "s"),
    ]
    quiet = [
        Measurement("idle CPU of an agent", "%"),
        Measurement("threads of an agent", ""),
    ]
    return [
        (arrival, arrival_and_loss),
        (ends, failure),
        (quiet, lambda backend, endpoint: idle(backend, endpoint, idle_seconds)),
    ]


LIMITS = {
    "arrival of a node": 6.0,
    "loss of a node": 8.0,
    "failure: spread of 4 exits": 1.0,
}


def goals(measurements: Sequence[Measurement]) -> list[Goal]:
    """Return the goals for the measurements."""
    return [
        Goal(
            f"{measurement.name}: at most {LIMITS[measurement.name]:g} s",
            measurement.median("plaunch"),
            LIMITS[measurement.name],
        )
        for measurement in measurements
        if measurement.name in LIMITS
    ]


def main() -> int:
    parser = measuring.parser(__doc__.partition("\n")[0], repeat=5)
    measuring.add_only(parser)
    parser.add_argument(
        "--backend", choices=["c10d", *ETCD], default="c10d", help="of the rendezvous (c10d)"
    )
    parser.add_argument(
        "--idle",
        type=measuring.positive,
        default=10,
        metavar="S",
        help="seconds to measure an idle agent (10)",
    )
    args = parser.parse_args()
    named = ((row, [measurement.name for measurement in row[0]]) for row in rows(args.idle))
    chosen = measuring.choose(parser, args.only, named)
    with contextlib.ExitStack() as stack:
        endpoint = ""
        if args.backend in ETCD:
            endpoint = stack.enter_context(measuring.etcd_server()).endpoint
        for _ in range(args.repeat):
            for measurements, sample in chosen:
                values = sample(args.backend, endpoint)
                for measurement, value in zip(measurements, values, strict=True):
                    measurement.add("plaunch", value)
    taken = [measurement for row in chosen for measurement in row[0]]
    measuring.print_platform(args.repeat)
    print(f"backend {args.backend}\n")
    measuring.print_table(taken)
    return measuring.report(goals(taken), taken, args, backend=args.backend)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchmarkError as error:
        sys.exit(f"membership.py: {error}")
