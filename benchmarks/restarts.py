"""The duration of a restart of two nodes after a worker was killed, and of its parts.

    python benchmarks/restarts.py [--repeat N] [--workers N] [--json FILE] [--check]

Two agents on this machine meet over c10d, with four workers each, in bare Python. plaunch and
torchrun take turns; only plaunch reports the parts of a restart on each node.
benchmarks/README.md says how to read the table.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import measuring
from measuring import BenchmarkError, Goal, Measurement, command, write_script
from supervision import WORKER, Message, Speakers

if TYPE_CHECKING:
    from collections.abc import Iterator

# The first workers wait; workers that find that file exit at once. torchrun counts the
# restart on one of the nodes only, so the number of the attempt does not tell.
WAITING = """\
say(b"up", began)
if not os.path.exists(sys.argv[1]):
    time.sleep(600)
"""
TOTAL = "death to restarted"
PARTS = ("noticing", "stopping", "waiting", "starting", "total")
NODES = ("the other node", "where it died")  # by rank: the victim is of the node with rank 1


class Nodes(Speakers):
    """Two launchers of one job, whose workers report their steps.

    Args:
        launcher: a key of `LAUNCHERS`.
        workers: how many each of them has.
    """

    def __init__(self, launcher: str, workers: int) -> None:
        super().__init__()
        self._launcher, self._workers = launcher, workers
        self._endpoint = measuring.free_endpoint()

    def begin(self) -> None:
        """Start both launchers."""
        again = os.path.join(self.pipes.folder, "again")
        script = write_script(self.pipes.folder, "waiting.py", WORKER + WAITING)
        for node in range(2):
            self.launch(command(self._launcher, *self._options(node), script, again))

    def _options(self, node: int) -> Iterator[str]:
        yield from ("--nnodes=2", f"--nproc-per-node={self._workers}", "--max-restarts=1")
        yield from ("--rdzv-backend=c10d", f"--rdzv-endpoint={self._endpoint}", "--rdzv-id=restart")
        if self._launcher == "plaunch":
            yield from (
                "--event-log-handler=jsonl",
                f"--event-conf=jsonl.path={self._events(node)}",
            )

    def _events(self, node: int) -> str:
        return os.path.join(self.pipes.folder, f"node{node}.jsonl")

    def hear_all(self) -> list[Message]:
        """Wait until the workers of both nodes have started; return them by rank."""
        return self.hear("up", 2 * self._workers)

    def kill(self, pid: int) -> int:
        """Kill a worker with SIGKILL; return the time. Later workers exit at once."""
        write_script(self.pipes.folder, "again", "")
        return super().kill(pid)

    def finish(self) -> None:
        """Wait until both have succeeded."""
        measuring.wait_for_ends([process.pid for process in self.processes], self._launcher)
        codes = [process.wait() for process in self.processes]
        if any(codes):
            raise BenchmarkError(f"{self._launcher} failed although no worker did again: {codes}")

    def restarts(self) -> list[dict[str, float]]:
        """Return the parts of a restart in milliseconds, by node rank."""
        found: dict[int, dict[str, float]] = {}
        for node in range(2):
            with open(self._events(node), encoding="utf-8") as file:
                for event in map(json.loads, file):
                    if event["name"] == "plaunch.restart.completed":
                        metadata = event["metadata"]
                        seconds = {part: metadata[f"seconds_{part}"] * 1e3 for part in PARTS}
                        found[metadata["group_rank"]] = seconds
        if sorted(found) != [0, 1]:
            raise BenchmarkError(f"both nodes restart once, and say so; {found} did")
        return [found[rank] for rank in range(2)]


def sample(launcher: str, workers: int) -> dict[str, float]:
    """Return the duration of one restart in milliseconds, by measurement."""
    with Nodes(launcher, workers) as nodes:
        victim = nodes.hear_all()[-1]
        died = nodes.kill(victim.pid)
        restarted = max(message.when for message in nodes.hear_all())
        nodes.finish()
        taken = {TOTAL: (restarted - died) / 1e6}
        if launcher == "plaunch":
            for where, parts in zip(NODES, nodes.restarts(), strict=True):
                taken |= {f"{where}: {part}": value for part, value in parts.items()}
    return taken


def goals(total: Measurement) -> Iterator[Goal]:
    """Return the goals for the whole restart."""
    yield Goal(f"{TOTAL}: at most 300 ms", total.median("plaunch"), 300.0)
    if "torchrun" in total.samples:
        ratio = total.ratio("plaunch", "torchrun")
        yield Goal(f"{TOTAL}: at most 1/2 of torchrun's", ratio, 1 / 2)


def main() -> int:
    parser = measuring.parser(__doc__.partition("\n")[0], repeat=5)
    parser.add_argument(
        "--workers",
        type=measuring.positive,
        default=4,
        metavar="N",
        help="workers of each node (default: 4)",
    )
    args = parser.parse_args()
    launchers = ["plaunch"] if args.no_torchrun else ["plaunch", "torchrun"]
    sample("plaunch", args.workers)  # warms caches; not counted
    taken: dict[str, Measurement] = {}
    for _ in range(args.repeat):
        for launcher in launchers:
            for name, value in sample(launcher, args.workers).items():
                taken.setdefault(name, Measurement(name, "ms")).add(launcher, value)
    measuring.print_platform(args.repeat)
    measuring.print_table([*taken.values()])
    return measuring.report([*goals(taken[TOTAL])], [*taken.values()], args)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchmarkError as error:
        sys.exit(f"restarts.py: {error}")
