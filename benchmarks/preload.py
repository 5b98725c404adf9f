"""Workers that import torch: plaunch with preloaded modules, and torchrun, in turn.

    python benchmarks/preload.py [--repeat N] [--workers N] [--json FILE] [--check]

How long eight workers take to their first line after `import torch`, at the start and after one of
them was killed, and how much memory they have. Both launchers run under the interpreter that runs
this script, with the same script. benchmarks/README.md says how to read the table.
"""

from __future__ import annotations

import sys
import tempfile
import time
from typing import TYPE_CHECKING

import measuring
from measuring import BenchmarkError, Goal, Measurement, write_script
from supervision import WORKER, Job

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Worker 1 waits to be killed; after a restart, workers exit at once.
IMPORTING = """\
import torch
say(b"up", time.monotonic_ns())
if attempt == "0":
    time.sleep(600)
"""
START, RESTART, MEMORY = "start to last line", "death to last line", "memory of all workers"
UNITS = {START: "s", RESTART: "s", MEMORY: "MB"}


class Sampler:
    """Runs one job whose workers import torch, and takes the three measurements."""

    def __init__(self, folder: str, workers: int) -> None:
        self._script = write_script(folder, "importing.py", WORKER + IMPORTING)
        self._workers = workers

    def sample(self, name: str) -> dict[str, float]:
        """Run a job with this launcher; return seconds and MB by measurement."""
        options = [f"--nproc-per-node={self._workers}", "--max-restarts=1"]
        if name == "plaunch":
            options.append("--preload=torch")
        began = time.monotonic_ns()
        with Job(name, self._script, *options) as job:
            first = job.hear("up", self._workers)
            memory = sum(proportional_memory(message.pid) for message in first)
            died = job.kill(first[1].pid)
            again = job.hear("up", self._workers)
            job.ended()
            if job.process.wait() != 0:
                raise BenchmarkError(f"{name} failed although the restarted workers did not")
        return {
            START: (max(message.when for message in first) - began) / 1e9,
            RESTART: (max(message.when for message in again) - died) / 1e9,
            MEMORY: memory,
        }


def proportional_memory(pid: int) -> float:
    """Return a process's proportional set size (Pss) in MB."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1e3
    raise BenchmarkError(f"the kernel does not tell the memory of pid {pid}")


def goals(measurements: Sequence[Measurement]) -> Iterator[Goal]:
    """Return the goals for the measurements."""
    for measurement in measurements:
        name = measurement.name
        if name == RESTART:
            seconds = measurement.median("plaunch")
            yield Goal(f"{name}: at most 0.4 s", seconds, 0.4)
        if "torchrun" not in measurement.samples:
            continue
        ratio = measurement.ratio("plaunch", "torchrun")
        for which, text, limit in (
            (START, "1/3", 1 / 3),
            (RESTART, "1/15", 1 / 15),
            (MEMORY, "1/2", 1 / 2),
        ):
            if name == which:
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
    launchers = ["plaunch"] if args.no_torchrun else ["plaunch", "torchrun"]
    taken = [Measurement(name, unit) for name, unit in UNITS.items()]
    with tempfile.TemporaryDirectory() as folder:
        sampler = Sampler(folder, args.workers)
        sampler.sample("plaunch")  # warms caches; not counted
        for _ in range(args.repeat):
            for launcher in launchers:
                sample = sampler.sample(launcher)
                for measurement in taken:
                    measurement.add(launcher, sample[measurement.name])
    measuring.print_platform(args.repeat)
    measuring.print_table(taken)
    return measuring.report(list(goals(taken)), taken, args)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchmarkError as error:
        sys.exit(f"preload.py: {error}")
