"""The cost of one heartbeat of a worker, with and without a listening launcher.

    python benchmarks/heartbeats.py [--count N]

It prints the best of five runs, in nanoseconds for one call.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from plaunch_hang.heartbeats import HeartbeatMemory
from plaunch_hang.worker import VARIABLE

RUNS = 5
BEATING = """\
import sys, time
from plaunch.worker import heartbeat
count, with_step = int(sys.argv[1]), sys.argv[2] == "step"
heartbeat()
began = time.perf_counter_ns()
if with_step:
    for step in range(count): heartbeat(step, count)
else:
    for step in range(count): heartbeat()
print((time.perf_counter_ns() - began) / count)
"""


def measure(count: int, kind: str, environ: dict[str, str]) -> float:
    """Return the nanoseconds of one call."""
    command = [sys.executable, "-c", BEATING, str(count), kind]
    return min(
        float(subprocess.run(command, env=environ, check=True, capture_output=True).stdout)
        for _ in range(RUNS)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300_000, help="calls in each run")
    count = parser.parse_args().count
    memory = HeartbeatMemory()
    watched = {**os.environ, VARIABLE: memory.variable(0)}
    alone = {name: value for name, value in os.environ.items() if name != VARIABLE}
    print("| call | with a launcher | without one |")
    print("|---|---|---|")
    for name, kind in (("heartbeat()", "plain"), ("heartbeat(step, total)", "step")):
        times = [measure(count, kind, environ) for environ in (watched, alone)]
        print(f"| `{name}` | {times[0]:.0f} ns | {times[1]:.0f} ns |")


if __name__ == "__main__":
    main()
