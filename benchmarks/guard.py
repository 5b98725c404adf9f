"""The time until a killed guard is replaced, on an idle and on a busy machine.

    python benchmarks/guard.py [--repeat=20] [--busy=100]

The time is from SIGKILL of a launcher's guard to the moment at which another one waits for the
launcher's end. Launchers start at most five guards in ten seconds, so each has to start three.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import time
from typing import TYPE_CHECKING

from busy import BusyProcesses, first_in_line
from measuring import LIMIT, BenchmarkError, Launches, command, positive, write_script

if TYPE_CHECKING:
    from collections.abc import Iterator

GUARDS = 3  # that each launcher must start
_ROW = "{:8} {:>12} {:>12}"
WORKER = """\
import os, time
said = os.open(os.environ["BENCHMARK_SAID"], os.O_WRONLY)
os.write(said, f"{os.getpid()}\\n".encode())
while True:
    time.sleep(60)
"""


def measure(busy: BusyProcesses | None) -> Iterator[float]:
    """Kill the guards of one launcher; return the seconds until each was replaced."""
    with Launches() as launches:
        script = write_script(launches.pipes.folder, "worker.py", WORKER)
        launches.launch(command("plaunch", script))
        launcher = launches.processes[0].pid
        launches.workers.add(int(next(launches.pipes.hear("a worker's line"))))
        guard = await_guard(launcher, {0})
        if busy is not None:
            busy.resume()
        try:
            for _ in range(GUARDS):
                time.sleep(0.5)
                with first_in_line():
                    began = time.monotonic()
                    os.kill(guard, signal.SIGKILL)
                    guard = await_guard(launcher, {guard})
                    yield time.monotonic() - began
        finally:
            if busy is not None:
                busy.pause()


def await_guard(launcher: int, former: set[int]) -> int:
    """Wait for a launcher's new guard, not one of `former`; return its process id."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        with open(f"/proc/{launcher}/task/{launcher}/children", encoding="ascii") as children:
            pids = {int(pid) for pid in children.read().split()}
        for pid in pids - former:
            if _read_name(pid) == "workers-guard":  # its last step before it waits
                return pid
        time.sleep(0.0005)
    raise BenchmarkError(f"the launcher {launcher} has no guard")


def _read_name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8") as comm:
            return comm.read().strip()
    except OSError:
        return ""


def main() -> int:
    """Measure, and print a row for the idle and one for the busy machine."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeat", type=positive, default=20, help="guards (default: 20)")
    parser.add_argument("--busy", type=positive, default=100, help="processes (default: 100)")
    args = parser.parse_args()
    print(f"{args.repeat} guards, {args.busy} busy processes, {os.cpu_count()} cores\n")
    print(_ROW.format("machine", "median", "max"))
    with BusyProcesses(args.busy) as busy:
        for name, load in (("idle", None), ("busy", busy)):
            samples: list[float] = []
            while len(samples) < args.repeat:
                samples += measure(load)
            cells = (f"{statistics.median(samples) * 1e3:.0f} ms", f"{max(samples) * 1e3:.0f} ms")
            print(_ROW.format(name, *cells), flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchmarkError as error:
        sys.exit(f"guard.py: {error}")
