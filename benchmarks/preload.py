"""Workers that train with torch: plaunch with and without preloaded modules, and torchrun, in turn.

    python benchmarks/preload.py [--repeat N] [--workers N] [--json FILE] [--check]

How long eight workers take to their first all-reduce after a step of an optimizer, at the start
and after one of them was killed, and how much memory they have. All launchers run under the
interpreter that runs this script, with the same script. benchmarks/README.md says how to read the
table.
"""

from __future__ import annotations

import glob
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import measuring
from measuring import BenchmarkError, Goal, Measurement, write_script
from supervision import WORKER, Job

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# All wait to be killed; after a restart, workers exit at once. The processes of a round meet in the
# store of the launcher.
TRAINING = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.AdamW([weight])
weight.sum().backward()
optimizer.step()
dist.all_reduce(weight.grad)
say(b"reduced", time.monotonic_ns())
if attempt == "0":
    time.sleep(600)
os._exit(0)
"""
START, RESTART = "start to all-reduce", "death to all-reduce"
MEMORY, SERVER = "memory of all workers", "memory of the fork server"
FRESH = ", no preload"  # the rows of plaunch as it is
UNITS = {
    START: "s",
    START + FRESH: "s",
    RESTART: "s",
    RESTART + FRESH: "s",
    MEMORY: "MB",
    MEMORY + FRESH: "MB",
    SERVER: "MB",
}
# torch resolves the addresses of its peers, which takes seconds without a name server.
ENV = {"RES_OPTIONS": "timeout:1 attempts:1", "OMP_NUM_THREADS": "1"}


class Sampler:
    """Runs one job whose workers train with torch, and takes the measurements."""

    def __init__(self, folder: str, workers: int) -> None:
        self._script = write_script(folder, "training.py", WORKER + TRAINING)
        self._workers = workers
        self.failed_restarts = 0  # of torchrun

    def sample(self, launcher: str, *, is_preloaded: bool = False) -> dict[str, float]:
        """Run a job with this launcher; return seconds and MB by measurement."""
        options = [f"--nproc-per-node={self._workers}", "--max-restarts=1"]
        if is_preloaded:
            options.append("--preload=torch")
        began = time.monotonic_ns()
        with Job(launcher, self._script, *options) as job:
            first = job.hear("reduced", self._workers)
            taken = {
                START: (max(message.when for message in first) - began) / 1e9,
                MEMORY: sum(proportional_memory(message.pid) for message in first),
            }
            if is_preloaded:
                taken[SERVER] = proportional_memory(find_fork_server(job.process.pid))
            died = job.kill(first[1].pid)
            try:
                again = job.hear("reduced", self._workers)
            except BenchmarkError:
                if launcher == "plaunch":
                    raise
                self.failed_restarts += 1
                return taken
            job.ended()
            if job.process.wait() != 0:
                raise BenchmarkError(f"{launcher} failed although the restarted workers did not")
            return {**taken, RESTART: (max(message.when for message in again) - died) / 1e9}


def proportional_memory(pid: int) -> float:
    """Return a process's proportional set size (Pss) in MB."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1e3
    raise BenchmarkError(f"the kernel does not tell the memory of pid {pid}")


def find_fork_server(launcher: int) -> int:
    """Return the process id of a launcher's fork server."""
    for path in glob.glob(f"/proc/{launcher}/task/*/children"):
        with open(path) as file:
            children = [int(pid) for pid in file.read().split()]
        for pid in children:
            with open(f"/proc/{pid}/comm") as file:
                if file.read() == "plaunch-preload\n":
                    return pid
    raise BenchmarkError(f"plaunch (pid {launcher}) has no fork server")


def goals(measurements: Sequence[Measurement]) -> Iterator[Goal]:
    """Return the goals for the measurements."""
    by_name = {measurement.name: measurement for measurement in measurements}
    preloaded, fresh = by_name[RESTART], by_name[RESTART + FRESH]
    yield Goal(f"{RESTART}: at most 0.4 s", preloaded.median("plaunch"), 0.4)
    ratio = preloaded.median("plaunch") / fresh.median("plaunch")
    yield Goal(f"{RESTART}: at most 1/10 of that without --preload", ratio, 1 / 10)
    for name, text, limit in (
        (START, "1/3", 1 / 3),
        (RESTART, "1/15", 1 / 15),
        (MEMORY, "1/2", 1 / 2),
    ):
        if "torchrun" in by_name[name].samples:
            ratio = by_name[name].ratio("plaunch", "torchrun")
            yield Goal(f"{name}: at most {text} of torchrun's", ratio, limit)


def main() -> int:
    parser = measuring.parser(__doc__.partition("\n")[0], repeat=3)
    parser.add_argument(
        "--workers",
        type=measuring.positive,
        default=8,
        metavar="N",
        help="workers of each job (default: 8)",
    )
    args = parser.parse_args()
    measuring.ENVIRON.update(ENV)
    taken = {name: Measurement(name, unit) for name, unit in UNITS.items()}
    with tempfile.TemporaryDirectory() as folder:
        sampler = Sampler(folder, args.workers)
        sampler.sample("plaunch", is_preloaded=True)  # warms caches; not counted
        for _ in range(args.repeat):
            for name, value in sampler.sample("plaunch", is_preloaded=True).items():
                taken[name].add("plaunch", value)
            for name, value in sampler.sample("plaunch").items():
                taken[name + FRESH].add("plaunch", value)
            if args.no_torchrun:
                continue
            for name, value in sampler.sample("torchrun").items():
                taken[name].add("torchrun", value)
                taken[name + FRESH].add("torchrun", value)
    measuring.print_platform(args.repeat)
    measuring.print_table(list(taken.values()))
    if sampler.failed_restarts:
        print(f"restarts that failed with torchrun: {sampler.failed_restarts} of {args.repeat}")
    return measuring.report(list(goals(list(taken.values()))), list(taken.values()), args)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchmarkError as error:
        sys.exit(f"preload.py: {error}")
