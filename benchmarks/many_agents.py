"""What agents of one job cost, with the backend c10d: real launchers on this machine.

    python benchmarks/many_agents.py [--agents N ...] [--many N ...] [--repeat N] [--check]

All agents have one worker each, which is bare Python. For each number in `--agents` it measures a
whole empty job of plaunch and of torchrun in turn. For each number in `--many` it measures plaunch
alone: the time until the last of all workers has started, the
processor time and the memory of an agent, and what the whole job uses while nothing happens.
benchmarks/README.md says how to read the table.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import measuring
from measuring import BenchmarkError, Goal, Launches, Measurement, command, start

if TYPE_CHECKING:
    from collections.abc import Sequence

BETWEEN = 30.0  # seconds for which an idle job is measured
SETTLED = 3.0  # seconds after the start of the last worker
_TICKS = os.sysconf("SC_CLK_TCK")

WORKER = """\
import os, time
said = os.open(os.environ["BENCHMARK_SAID"], os.O_WRONLY)
os.write(said, f"{os.environ['RANK']} {os.getpid()}\\n".encode())
time.sleep(600)
"""


def options(nodes: int, *more: str) -> list[str]:
    """Return the options of each agent of a new job."""
    return [
        f"--nnodes={nodes}",
        "--nproc-per-node=1",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={measuring.free_endpoint()}",
        f"--rdzv-id=many-{os.urandom(6).hex()}",
        *more,
    ]


def empty_job(launcher: str, nodes: int, script: str, *more: str) -> float:
    """Return the seconds that a job of `nodes` agents takes whose workers do nothing."""
    argv = command(launcher, *options(nodes, *more), script)
    began = time.monotonic()
    agents = [start(argv) for _ in range(nodes)]
    for agent in agents:
        measuring.finish(agent)
    return time.monotonic() - began


def processor_time(pid: int) -> float:
    """Return the processor time of a process so far, in seconds."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory(pid: int) -> float:
    """Return the memory of a process that no other one shares, in MB."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        lines = [line.split() for line in file]
    return sum(int(words[1]) for words in lines if words[0].startswith("Private_")) / 1e3


def resident(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


class ManyAgents(Launches):
    """A job of many agents, whose workers report their start and then sleep."""

    def __init__(self, nodes: int, limit: float) -> None:
        super().__init__()
        self.nodes = nodes
        self._limit = limit

    def begin(self) -> None:
        """Start all agents, and wait for all workers."""
        script = measuring.write_script(self.pipes.folder, "worker.py", WORKER)
        argv = command("plaunch", *options(self.nodes), script)
        began = time.monotonic()
        for _ in range(self.nodes):
            self.launch(argv)
        for line in self.pipes.hear_until(began + self._limit):
            self.workers.add(int(line.split()[1]))
            if len(self.workers) == self.nodes:
                self.seconds = time.monotonic() - began
                return
        raise BenchmarkError(
            f"{len(self.workers)} of {self.nodes} workers started within {self._limit:.0f} s"
        )

    def processor_times(self) -> list[float]:
        """Return the processor times of the agents."""
        return [processor_time(process.pid) for process in self.processes]


def measure_many(nodes: int, rows: dict[str, Measurement], limit: float) -> None:
    """Measure one job of so many agents."""
    with ManyAgents(nodes, limit) as job:
        pids = [process.pid for process in job.processes]
        used = job.processor_times()
        time.sleep(SETTLED)
        rows["start"].add("plaunch", job.seconds)
        rows["cpu"].add("plaunch", sum(used) / nodes)
        rows["memory"].add("plaunch", sum(map(resident, pids)) / nodes)
        rows["private"].add("plaunch", sum(map(memory, pids)))
        before = sum(job.processor_times())
        time.sleep(BETWEEN)
        idle = sum(job.processor_times()) - before
        rows["idle"].add("plaunch", 100 * idle / BETWEEN)


def rows_of(nodes: int) -> dict[str, Measurement]:
    """Return the empty measurements of a job of so many agents."""
    return {
        "start": Measurement(f"{nodes} agents: until all workers run", "s"),
        "cpu": Measurement(f"{nodes} agents: processor time of one", "s"),
        "memory": Measurement(f"{nodes} agents: resident memory of one", "MB"),
        "private": Measurement(f"{nodes} agents: private memory of all", "MB"),
        "idle": Measurement(f"{nodes} agents: idle, all of them", "%"),
    }


def goals(
    jobs: Sequence[tuple[int, Measurement]], many: Sequence[tuple[int, dict[str, Measurement]]]
) -> list[Goal]:
    """Return the goals for what was measured."""
    found = []
    for nodes, job in jobs:
        if "torchrun" in job.samples:
            text = f"empty job of {nodes} agents: at most 1/8 of torchrun's"
            found.append(Goal(text, job.ratio("plaunch", "torchrun"), 1 / 8))
    for nodes, rows in many:
        limits = {"cpu": 0.3, "memory": 25.0}
        if nodes == 64:
            limits |= {"start": 10.0, "idle": 2.0}
        if nodes == 256:
            limits |= {"start": 60.0, "private": 7000.0}
        for name, limit in limits.items():
            row = rows[name]
            found.append(
                Goal(f"{row.name}: at most {limit:g} {row.unit}", row.median("plaunch"), limit)
            )
    return found


def main() -> int:
    parser = measuring.parser(__doc__, repeat=3)
    parser.add_argument("--agents", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--many", type=int, nargs="*", default=[64])
    args = parser.parse_args()
    measuring.print_platform(args.repeat)
    jobs = [(nodes, Measurement(f"empty job, {nodes} agents", "s")) for nodes in args.agents]
    with measuring.Pipes() as pipes:
        script = measuring.write_script(pipes.folder, "empty.py", "")
        for _ in range(args.repeat):
            for nodes, job in jobs:
                job.add("plaunch", empty_job("plaunch", nodes, script))
                if not args.no_torchrun:
                    job.add("torchrun", empty_job("torchrun", nodes, script))
    many = [(nodes, rows_of(nodes)) for nodes in args.many]
    for nodes, rows in many:
        measure_many(nodes, rows, limit=max(60.0, nodes / 2))
    measurements = [job for _, job in jobs]
    for _, rows in many:
        measurements += rows.values()
    measuring.print_table(measurements)
    return measuring.report(goals(jobs, many), measurements, args)


if __name__ == "__main__":
    sys.exit(main())
